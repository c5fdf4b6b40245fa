"""Splits and unloads bundles. The outcome is read from the cluster, independent of the broker's answer.

A broker answers 204 to a split that changes nothing, 412 to a split of a bundle that another client has split, and does not answer
if it is slow. So each action reads the state, sends one request, and reads the state again. A request is never repeated. After a
DataPlaneTimeout the action may still happen; the next attempt then finds its result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar
from urllib.parse import quote

import requests
import tenacity

from controller.bundles.brokers.calls import Reply, error_of, send
from controller.bundles.brokers.reader import BundleReader
from controller.bundles.domain.ring import NamespaceBundle, NamespaceBundles, edge_text
from controller.domain.errors import (
    BundleNotFound,
    CleaveError,
    Conflict,
    DataPlaneTimeout,
    DataPlaneUnavailable,
    InvalidInput,
    LostRace,
    NotFound,
)

SPECIFIED_POSITIONS = "specified_positions_divide"
_FIRST_LOOK_SECONDS, _LAST_LOOK_SECONDS = 0.05, 1.0

Answer = TypeVar("Answer")


class ActOutcome(StrEnum):
    """Outcome of an action that raised no error."""

    DONE = "done"
    DONE_ALREADY = "done-already"
    """The result existed before the request."""
    NOTHING_CHANGED = "nothing-changed"
    """The broker answered with success and changed nothing."""


@dataclass(frozen=True, slots=True)
class SplitResult:
    """Boundaries of the namespace after the split, and the parts of the bundle, rising (the bundle itself if nothing was cut)."""

    outcome: ActOutcome
    bundles: NamespaceBundles
    children: tuple[NamespaceBundle, ...]


@dataclass(frozen=True, slots=True)
class UnloadResult:
    """Owner of the bundle after the unload; None if no broker owns it until a client looks it up."""

    outcome: ActOutcome
    owner: str | None


class BundleActions:
    """Splits and unloads in one cluster. Thread-safe if its session is."""

    def __init__(
        self, session: requests.Session, reader: BundleReader, *, settle_seconds: float = 10.0
    ) -> None:
        """Create the actions, without a request. `session` sends requests with its credentials to the admin address of
        `reader`, which reads the same cluster.

        An action waits at most `settle_seconds` for its result. After that the outcome is NOTHING_CHANGED if the
        broker answered with success. If the outcome is unknown, the action raises DataPlaneTimeout.
        """
        self._session, self.reader = session, reader
        self._settle_seconds = settle_seconds

    def split_at(
        self, bundle: NamespaceBundle, positions: Collection[int], *, unload: bool = False
    ) -> SplitResult:
        """Split a bundle at these positions, and wait until the namespace's boundaries show it. With `unload`, the broker also closes the
        parts.

        All positions go in one call. A broker that refuses more than one position gets one call for each (the extensible load manager
        refuses, and version 4.2.4 never answers a list with a repetition). A split that another process began with the same positions is
        continued; if all positions are boundaries already, the outcome is DONE_ALREADY and no request is sent. If a broker changes nothing,
        the split ends there with NOTHING_CHANGED. Cuts that were made before that, or before an error, stay.

        Raises BundleNotFound if the bundle does not exist or another client split it elsewhere; InvalidInput for no position, for a
        position not strictly inside the bundle or for a split that the broker refuses with 412; NotFound for an unknown namespace; Conflict
        or Terminal for another refusal; DataPlaneTimeout if the split may still happen, or a read has no complete answer; and
        DataPlaneUnavailable if a broker does not answer.
        """
        cuts = sorted(set(positions))
        if not cuts:
            raise InvalidInput(f"no position to split bundle {bundle} at; give at least one")
        for cut in cuts:
            if not bundle.lower < cut < bundle.upper:
                raise InvalidInput(f"position {edge_text(cut)} is not strictly inside bundle {bundle}")
        bundles = self.reader.bundles(bundle.namespace)
        outcome, at_once = ActOutcome.DONE_ALREADY, len(cuts)
        while open_cuts := _left_to_cut(bundles, bundle, cuts):
            part = bundles.bundle_at(open_cuts[0])
            now = [cut for cut in open_cuts if part.contains(cut)][:at_once]
            try:
                result = self._split(part, now, unload)
            except InvalidInput:
                if len(now) == 1:
                    raise
                at_once = 1
                continue
            outcome, bundles = result.outcome, result.bundles
            if outcome is ActOutcome.NOTHING_CHANGED:
                break
        return SplitResult(outcome, bundles, _children(bundles, bundle))

    def unload(
        self, bundle: NamespaceBundle, *, destination: str | None = None, source: str | None = None
    ) -> UnloadResult:
        """Unload a bundle from its owner, and assign it to `destination` (`host:port` as brokers are listed), if given. After a
        successful answer, look up a topic of the bundle at the destination, so that the destination loads the bundle at once; a bundle
        without topics waits for a client. If the bundle has an owner, wait until the owner has changed, for at most `settle_seconds`.

        No request is sent (DONE_ALREADY) if the destination owns the bundle already, or if no broker owns it and no destination is given.
        NOTHING_CHANGED: the request succeeded, and the previous owner has the bundle, usually again. DONE does not say that the destination
        owns the bundle: `owner` may be another broker, or None.

        Raises LostRace if `source` is given and neither the source nor the destination owns the bundle, but another broker does;
        BundleNotFound if the bundle has been split; NotFound for an unknown namespace; Conflict for a destination that is not active;
        InvalidInput or Terminal for another refusal; DataPlaneTimeout if the unload may still happen, or a read has no complete answer; and
        DataPlaneUnavailable if a broker does not answer, also if this broker may own the bundle.
        """
        first = [name for name in (source, destination) if name]
        _demand_present(self.reader.bundles(bundle.namespace), bundle)
        owner = self.reader.owner(bundle, first=first)
        if owner is not None and owner == destination:
            return UnloadResult(ActOutcome.DONE_ALREADY, owner)
        if owner is None and destination is None:
            return UnloadResult(ActOutcome.DONE_ALREADY, None)
        if owner is not None and source is not None and owner != source:
            raise LostRace(f"bundle {bundle} is owned by {owner}, not by {source}; decide again")
        parameters = {"destinationBroker": destination} if destination else {}
        topic = self._topic_in(bundle) if destination else None
        path = f"/admin/v2/namespaces/{bundle.namespace}/{bundle.range_text}/unload"
        reply = self._ask(path, parameters, None)
        if topic is not None and destination is not None and isinstance(reply, Reply) and reply.is_success:
            self._look_up(topic, destination)
        return self._settled_unload(bundle, owner, destination, reply)

    def _topic_in(self, bundle: NamespaceBundle) -> str | None:
        """Return the first topic of the bundle by name. None if the bundle has no topic or the topics cannot be read."""
        with suppress(CleaveError):
            return min(self.reader.topic_hashes(bundle), default=None)
        return None

    def _look_up(self, topic: str, broker: str) -> None:
        """Make the destination load the topic's bundle at once, before clients reconnect (they wait 0.1 s at first). Errors are ignored,
        because the owner is read afterwards.

        The leader uses a destination for the first look-up only and then forgets it. The topics of a bundle are looked up at the same
        time, so the other look-ups are sent elsewhere, and the broker that claims the bundle first gets it (apache/pulsar#24884).
        Therefore this method sends the look-up to the destination itself, as the leader would.
        """
        domain, _, name = topic.partition("://")
        with suppress(CleaveError, StopIteration):  # the broker has left the list meanwhile
            url = next(listed.url for listed in self.reader.brokers() if listed.name == broker)
            send(
                self._session,
                "GET",
                f"{url}/lookup/v2/topic/{domain}/{quote(name)}",
                self.reader.deadline(),
                trusted=self.reader.trusted(),
                parameters={"authoritative": "true"},
            )

    def _split(self, bundle: NamespaceBundle, cuts: Sequence[int], unload: bool) -> SplitResult:
        """Send one request to cut the bundle at all of `cuts`, and return the result by the boundaries that the cluster shows afterwards.
        `unload`: the broker also closes the parts. Raises DataPlaneUnavailable if the request certainly was not processed, and the errors
        of `_settled_split`.
        """
        parameters = {"unload": str(unload).lower(), "splitAlgorithmName": SPECIFIED_POSITIONS}
        path = f"/admin/v2/namespaces/{bundle.namespace}/{bundle.range_text}/split"
        return self._settled_split(bundle, cuts, self._ask(path, parameters, list(cuts)))

    def _ask(
        self, path: str, parameters: dict[str, str], document: list[int] | None
    ) -> Reply | DataPlaneTimeout:
        """Send one PUT request. Return the answer, or a DataPlaneTimeout as a value if the outcome is unknown: no complete answer, or a
        status of 500 or above. Raises DataPlaneUnavailable if the request certainly was not processed.
        """
        try:
            with self.reader.admin_address() as admin_url:
                reply = send(
                    self._session,
                    "PUT",
                    admin_url + path,
                    self.reader.deadline(),
                    trusted=self.reader.trusted(),
                    parameters=parameters,
                    document=document,
                )
        except DataPlaneTimeout as error:
            return error
        return DataPlaneTimeout(error_of(reply).message, 5.0) if reply.status >= 500 else reply

    def _settled_split(
        self, bundle: NamespaceBundle, cuts: Sequence[int], reply: Reply | DataPlaneTimeout
    ) -> SplitResult:
        """Return the result of a split, by the boundaries that are read after the broker's answer `reply`. If the split may have
        happened, wait for its result. DONE: the bundle is cut at all of `cuts`, even if the broker refused because another client cut
        it. NOTHING_CHANGED: the broker answered with success, but the bundle is whole.

        Raises BundleNotFound if another client split the bundle elsewhere. If the bundle is whole, raises DataPlaneTimeout for an unknown
        outcome, and NotFound, Conflict, InvalidInput or the error of `error_of` for a refusal. Raises the errors of reading the
        boundaries.
        """
        # The list may come from a broker whose cache is behind. A split that succeeded will show.
        is_expected = isinstance(reply, DataPlaneTimeout) or reply.is_success
        after = self._look(
            lambda: self.reader.bundles(bundle.namespace),
            until=lambda bundles: not is_expected or not _is_present(bundles, bundle),
        )
        if not _is_present(after, bundle):
            if not {bundle.lower, bundle.upper, *cuts} <= set(after.boundaries):
                raise _split_by_others(bundle, after)
            return SplitResult(ActOutcome.DONE, after, _children(after, bundle))
        if isinstance(reply, DataPlaneTimeout):
            raise DataPlaneTimeout(
                f"whether bundle {bundle} will be split is not known yet ({reply.message}); look again",
                reply.delay_seconds,
            )
        if reply.is_success:
            return SplitResult(ActOutcome.NOTHING_CHANGED, after, (bundle,))
        raise _refused("split", bundle, reply)

    def _settled_unload(
        self,
        bundle: NamespaceBundle,
        before: str | None,
        destination: str | None,
        reply: Reply | DataPlaneTimeout,
    ) -> UnloadResult:
        """Return the result of an unload, by the owner that is read after the broker's answer `reply`. Wait until the owner is no longer
        `before`, for at most `settle_seconds`; if `before` is None, read the owner once. DONE: the owner is another broker or None, or
        `before` is None. NOTHING_CHANGED: the broker answered with success, but `before` owns the bundle.

        If the broker refused, raises BundleNotFound for a bundle that was split, otherwise NotFound, Conflict, InvalidInput or the error of
        `error_of`. Raises DataPlaneTimeout if `before` still owns the bundle and the outcome is unknown. Raises the errors of reading the
        boundaries and the owner.
        """
        if isinstance(reply, Reply) and not reply.is_success:
            _demand_present(self.reader.bundles(bundle.namespace), bundle)
            raise _refused("unload", bundle, reply)
        first = [name for name in (before, destination) if name]
        owner = self._look(
            lambda: self.reader.owner(bundle, first=first),
            until=lambda owner: owner != before or before is None,
        )
        if owner != before or before is None:
            return UnloadResult(ActOutcome.DONE, owner)
        if isinstance(reply, DataPlaneTimeout):
            raise DataPlaneTimeout(
                f"whether bundle {bundle} will leave {before} is not known yet ({reply.message}); look again",
                reply.delay_seconds,
            )
        # The bundle was unloaded, a client looked it up at once, and the placement assigned it to the same broker.
        return UnloadResult(ActOutcome.NOTHING_CHANGED, owner)

    def _look(self, read: Callable[[], Answer], until: Callable[[Answer], bool]) -> Answer:
        """Repeat `read` with growing pauses until `until` accepts the result, for at most `settle_seconds`. Return the last result,
        accepted or not.

        A DataPlaneUnavailable is retried, and raised if the last read failed. Any other error is raised at once.
        """
        looked: Answer = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(DataPlaneUnavailable)
            | tenacity.retry_if_result(lambda answer: not until(answer)),
            wait=tenacity.wait_exponential(_FIRST_LOOK_SECONDS, _LAST_LOOK_SECONDS, min=_FIRST_LOOK_SECONDS),
            stop=tenacity.stop_after_delay(self._settle_seconds),
            retry_error_callback=_result,
            sleep=time.sleep,
        )(read)
        return looked


def _result(state: tenacity.RetryCallState) -> object:
    """Return the result of the last attempt. Raises the error of the attempt if there was one."""
    assert state.outcome is not None  # noqa: S101  # tenacity calls this only after an attempt
    return state.outcome.result()


def _is_present(bundles: NamespaceBundles, bundle: NamespaceBundle) -> bool:
    """Return True if the bundle, with exactly these ends, is in the list. Raises InvalidInput for a bundle of another namespace."""
    try:
        bundles.require(bundle)
    except BundleNotFound:
        return False
    return True


def _demand_present(bundles: NamespaceBundles, bundle: NamespaceBundle) -> None:
    """Raise BundleNotFound unless the bundle is in the list."""
    if not _is_present(bundles, bundle):
        raise _split_by_others(bundle, bundles)


def _split_by_others(bundle: NamespaceBundle, bundles: NamespaceBundles) -> BundleNotFound:
    """Return the error for a bundle that another client has split; the message names the present bundles inside it, if there are any."""
    inside = _children(bundles, bundle)
    now = ", ".join(child.range_text for child in inside) if inside else "other bundles"
    return BundleNotFound(
        f"bundle {bundle} no longer exists: another client split it into {now}; decide again"
    )


def _left_to_cut(bundles: NamespaceBundles, bundle: NamespaceBundle, cuts: Sequence[int]) -> list[int]:
    """Return the positions that are not boundaries yet. Raises BundleNotFound if the bundle's own boundaries are missing, or if positions
    are left and another client cut the bundle elsewhere.
    """
    edges = set(bundles.boundaries)
    inside = {edge for edge in edges if bundle.lower < edge < bundle.upper}
    open_cuts = [cut for cut in cuts if cut not in edges]
    if not {bundle.lower, bundle.upper} <= edges or (open_cuts and not inside <= set(cuts)):
        raise _split_by_others(bundle, bundles)
    return open_cuts


def _children(bundles: NamespaceBundles, bundle: NamespaceBundle) -> tuple[NamespaceBundle, ...]:
    """Return the listed bundles that lie inside the bundle, rising."""
    return tuple(
        child for child in bundles.bundles if bundle.lower <= child.lower and child.upper <= bundle.upper
    )


def _refused(act: str, bundle: NamespaceBundle, reply: Reply) -> CleaveError:
    """Return the error for an unsuccessful answer to `act` ("split" or "unload") on an existing bundle: NotFound for 404, Conflict for
    409, InvalidInput for 412, DataPlaneUnavailable for 429 and from 500 on, Terminal for any other status.
    """
    reason = reply.reason or f"status {reply.status}"
    if reply.status == 404:
        return NotFound(f"cannot {act} bundle {bundle}: {reason}")
    if reply.status == 409:
        return Conflict(f"cannot {act} bundle {bundle} now: {reason}")
    if reply.status == 412:
        return InvalidInput(f"the broker refuses to {act} bundle {bundle}: {reason}")
    return error_of(reply)
