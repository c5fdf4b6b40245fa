"""Shard leases: several workers share the topics, and a dead one's share moves within the lease time.

Each worker announces itself by a lease `worker/<id>` and takes its fair share of `shard/<i>`: the shards divided
by the workers that are alive, rounded up. Expiry and terms are judged by the database's clock; the holder trusts a
lease for its time to live counted from when the attempt *began*. The terms are checked again inside each
transaction that acts for a shard (`fence`), so a paused worker that wakes up writes nothing.

A worker's name belongs to one process at a time. A restarted process waits for the lease of the process before it; a
process that sees the other one renew the lease ends with WorkerNameInUse.

Runs beside the work loop in a thread of its own, so that a long operation does not let the leases lapse.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from math import ceil

from sqlalchemy import Connection

from controller import metrics, telemetry
from controller.clock import Clock
from controller.domain.errors import FencedOut, HeldUp, Retryable, WorkerNameInUse
from controller.forks import OneProcess
from controller.repeating import Repeating
from controller.services.worker.schema_version import SchemaVersion
from controller.store import leases
from controller.store.leases import Lease
from controller.store.postgres.engine import Store
from controller.store.shards import Shards

log = telemetry.get_logger(__name__)

RETRY_SECONDS = 0.5
"""Pause after a round that failed, and between two looks at a lease of another process."""


class ShardLeases(OneProcess):
    """The shards this worker holds. `held` may be read from any thread, of this process alone."""

    _endings = frozenset({"stop", "resign"})

    def __init__(
        self,
        store: Store,
        worker_id: str,
        *,
        shard_count: int,
        ttl_seconds: float,
        clock: Clock,
        address: str | None = None,
        incarnation: str | None = None,
        schema: SchemaVersion | None = None,
    ) -> None:
        """`address` is where this worker serves consumers, if it does. `incarnation` tells this process from others of
        its name. `schema` is compared with the database's in each round.
        """
        self._store = store
        self._address = address
        self._worker_id = worker_id
        self._shard_count = shard_count
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._incarnation = incarnation
        self._schema = schema
        self._other: Lease | None = None
        """The lease of another process of this name, as it was seen last."""
        self.refused: WorkerNameInUse | None = None
        """Why `run` ended by itself."""
        self._leases: dict[int, Lease] = {}
        self._trusted_until = 0.0
        self._stop = threading.Event()
        self._lock = threading.Lock()

    @property
    def held(self) -> Shards:
        """Shards whose leases are trusted now; none once the last good round is a time to live ago."""
        return Shards.of(self._shard_count, self.terms)

    @property
    def terms(self) -> Mapping[int, int]:
        """The term of each shard in `held`."""
        with self._lock:
            trusted = self._clock.monotonic_seconds() < self._trusted_until
            return {shard: lease.term for shard, lease in self._leases.items()} if trusted else {}

    def fence(self, tx: Connection, shards: Shards, terms: Mapping[int, int] | None = None) -> None:
        """Raise FencedOut unless the leases of these shards are ours, at their terms, by the database's clock.

        Called inside the transaction that acts, so that a lease that moved cannot be acted upon. With `terms` they are to be
        the terms that the caller acts for: what it knows may be from before a lease that was lost and won again.
        """
        with self._lock:
            mine = {shard: lease for shard, lease in self._leases.items() if shard in shards.held}
        is_another = terms is not None and any(
            lease.term != terms.get(shard) for shard, lease in mine.items()
        )
        leases.limit_pause(tx, self._ttl_seconds)
        if is_another or len(mine) < len(shards.held) or not leases.still_held(tx, list(mine.values())):
            raise FencedOut(
                f"Worker {self._worker_id} lost a shard lease; another worker has its topics now."
            )

    def round(self) -> bool:
        """Renew, give up or take leases once; True if `held` changed: other shards, or trusted again."""
        began = self._clock.monotonic_seconds()
        with self._store.transaction() as tx:
            leases.limit_pause(tx, self._ttl_seconds)
            self._take_name(tx)
            workers = len(leases.live_leases(tx, "worker/"))
            share = ceil(self._shard_count / max(workers, 1))
            kept = self._renew(tx, share)
            leases.resign_forgotten(tx, "shard/", self._worker_id, self._incarnation, [*kept.values()])
            wanted = share - len(kept)
            for shard in self._free_shards(tx) if wanted > 0 else ():
                lease = leases.acquire(
                    tx, f"shard/{shard}", self._worker_id, self._ttl_seconds, self._incarnation
                )
                if lease is not None:
                    kept[shard] = lease
                if len(kept) >= share:
                    break
        with self._lock:
            before = self._leases
            changed = kept.keys() != before.keys() or (bool(kept) and began >= self._trusted_until)
            self._leases, self._trusted_until = kept, began + self._ttl_seconds
        self._say("got", {shard: lease for shard, lease in kept.items() if shard not in before})
        self._say("lost", {shard: lease for shard, lease in before.items() if shard not in kept})
        if changed:
            log.info("shards", worker=self._worker_id, held=len(kept), share=share, workers=workers)
        return changed

    def _take_name(self, tx: Connection) -> None:
        """Renew or take the lease of the worker itself, and record what others need to know of this process.

        Raises HeldUp while another process of this name may be dead, WorkerNameInUse when it has renewed its lease.
        """
        name = f"worker/{self._worker_id}"
        mine = leases.renew_or_acquire(
            tx, name, self._worker_id, self._ttl_seconds, incarnation=self._incarnation
        )
        if mine is None:
            seen, self._other = self._other, leases.read(tx, name)
            if seen is not None and self._other is not None and self._other.expires_at > seen.expires_at:
                raise WorkerNameInUse(
                    f"another worker runs as {self._worker_id}; give each worker a name of its own"
                )
            raise HeldUp(
                f"another process has the lease of worker {self._worker_id}; waiting for the end of that lease",
                RETRY_SECONDS,
            )
        self._other = None
        known = None if self._schema is None else self._schema.known
        leases.announce(tx, name, self._worker_id, self._address, known)
        if self._schema is not None:
            self._schema.compare(tx)

    def _say(self, change: str, changed: Mapping[int, Lease]) -> None:
        """Count what was got or lost, and a line for each."""
        metrics.LEASE_CHANGES.labels(change).inc(len(changed))
        said = "shard got" if change == "got" else "shard lost"
        for shard, lease in sorted(changed.items()):
            log.info(said, shard=shard, worker=self._worker_id, term=lease.term)

    def _renew(self, tx: Connection, share: int) -> dict[int, Lease]:
        kept: dict[int, Lease] = {}
        for shard, lease in sorted(self._leases.items()):
            if len(kept) >= share:
                leases.resign(tx, lease)
            elif (renewed := leases.renew(tx, lease, self._ttl_seconds)) is not None:
                kept[shard] = renewed
        return kept

    def _free_shards(self, tx: Connection) -> list[int]:
        taken = {lease.name for lease in leases.live_leases(tx, "shard/")}
        return [shard for shard in range(self._shard_count) if f"shard/{shard}" not in taken]

    def run(self, on_change: Callable[[], None], on_refused: Callable[[], None] = lambda: None) -> None:
        """Rounds at a third of the lease time until `stop`; a failed round is repeated soon, so that leases which run
        still are renewed as soon as the store answers. Calls `on_refused` and ends when another process has the name.
        """
        pause_seconds = self._ttl_seconds / 3

        def renew() -> float:
            if self.round():
                on_change()
            return pause_seconds

        rounds = Repeating(
            renew,
            self._stop,
            log.bind(worker=self._worker_id),
            "lease round failed",
            retry_seconds=(0.0, min(pause_seconds, RETRY_SECONDS)),
            longest_pause_seconds=pause_seconds,
            ends_with=(WorkerNameInUse,),
            says_once=True,
        )
        try:
            rounds.run(first_pause_seconds=pause_seconds)
        except WorkerNameInUse as error:
            self.refused = error
            on_refused()

    def stop(self) -> None:
        """End `run`, after the round in hand."""
        self._stop.set()

    def resign(self) -> None:
        """Give every lease back, so that others need not wait for the expiry. Not while `run` may take some."""
        with self._lock:
            held, self._leases = self._leases, {}
        try:
            with self._store.transaction() as tx:
                for lease in held.values():
                    leases.resign(tx, lease)
                leases.resign_all(tx, self._worker_id, self._incarnation)
        except Retryable as error:
            log.warning(
                "leases could not be resigned; they expire by themselves",
                worker=self._worker_id,
                error=str(error),
            )
        for shard, lease in sorted(held.items()):
            log.info("shard given back", shard=shard, worker=self._worker_id, term=lease.term)
