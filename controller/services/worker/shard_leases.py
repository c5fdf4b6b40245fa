"""Shard leases: several workers divide the topics, and the shards of a dead worker move to others within the
lease time.

Each worker announces itself with a lease `worker/<id>` and takes its fair share of the leases `shard/<i>`:
the number of shards divided by the number of live workers, rounded up. The database's clock decides on expiry
and terms. The holder trusts a lease for its time to live, counted from the *beginning* of the attempt. Each
transaction that acts for a shard checks the terms again (`demand_held`), so a worker that was paused cannot write
for lost shards.

The number of shards is a lease too, `shard-count`. All workers with this number hold the lease together, and a worker
with another number waits until the lease has ended: with two numbers in use, two workers would lead one topic.

Only one process at a time may use a worker's name. A restarted process waits for the lease of the previous
process. A process that sees another process renew this lease ends with WorkerNameInUse.

The leases are renewed in a thread of their own, so that a long operation does not let them expire.
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
"""Pause after a failed round, and between two reads of another process's lease."""
COUNT_LEASE = "shard-count"
"""Name of the lease of the number of shards. Its holder is the number, as text."""


class ShardLeases(OneProcess):
    """Acquires, renews and resigns the leases of this worker: the lease of its name, and the leases of its share of
    the shards. `held` is thread-safe within this process.
    """

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
        """`address` is the URL at which this worker serves consumers, None if it does not. `incarnation`
        distinguishes this process from others of its name. `schema` is compared with the database's schema in
        each round. A lease expires `ttl_seconds` after its last renewal. No lease is acquired before `round`.
        """
        self._store = store
        self._address = address
        self._worker_id = worker_id
        self._shard_count = shard_count
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._incarnation = incarnation
        self._schema = schema
        self._foreign_lease: Lease | None = None
        """The lease of another process of this name, as read last."""
        self.refused: WorkerNameInUse | None = None
        """The error with which `run` ended by itself; None if it did not."""
        self._leases: dict[int, Lease] = {}
        self._trusted_until = 0.0
        self._stop = threading.Event()
        self._lock = threading.Lock()

    @property
    def held(self) -> Shards:
        """The shards whose leases are trusted; none if the last successful round is older than the time to
        live.
        """
        return Shards.of(self._shard_count, self.terms)

    @property
    def terms(self) -> Mapping[int, int]:
        """The term of each shard in `held`."""
        with self._lock:
            trusted = self._clock.monotonic_seconds() < self._trusted_until
            return {shard: lease.term for shard, lease in self._leases.items()} if trusted else {}

    def demand_held(self, tx: Connection, shards: Shards, terms: Mapping[int, int] | None = None) -> None:
        """Raise FencedOut unless this worker holds the leases of all these shards at their terms, by the database's
        clock. Call this in the transaction that acts for the shards, so that the transaction of a worker that has
        lost a lease fails. The lease rows stay share-locked until the transaction ends, so no other process takes the
        leases over before, and the server ends the session if the transaction is idle for the lease time.

        `terms` are the terms, by shard, for which the caller acts. FencedOut is also raised if a shard's present term
        is another one, or has no entry: the caller's state may be older than a lease that was lost and acquired
        again. None accepts the present terms.
        """
        with self._lock:
            own_leases = {shard: lease for shard, lease in self._leases.items() if shard in shards.held}
        has_other_term = terms is not None and any(
            lease.term != terms.get(shard) for shard, lease in own_leases.items()
        )
        leases.limit_pause(tx, self._ttl_seconds)
        if (
            has_other_term
            or len(own_leases) < len(shards.held)
            or not leases.still_held(tx, list(own_leases.values()))
        ):
            raise FencedOut(
                f"worker {self._worker_id} lost a shard lease; another worker serves the topics of the shard"
            )

    def round(self) -> bool:
        """Renew the lease of the worker's name and the leases of its shards once, in one transaction. Before that,
        limit all leases that were renewed in the future (`limit_to_clock`). Resign shards beyond the worker's fair
        share, and acquire free shards up to the fair share. Return True if `held` changed: it has other shards, or its
        shards are trusted again after their time to live had passed. A shard that was lost and acquired again in the
        same round, at another term, is no change. Acquired shards, and lost or resigned shards, are logged and counted.

        Raises HeldUp while workers with another number of shards are up, HeldUp while another process of this name
        holds the lease of the name, WorkerNameInUse if that process
        has renewed the lease since the last round, and the errors of `Store.transaction`, such as StoreUnavailable.
        After an error `held` stays as it is until its time to live has passed.
        """
        began_at = self._clock.monotonic_seconds()
        # A transaction of its own, because the other one is rolled back while another process holds the name.
        self._store.in_single_statement(leases.limit_to_clock)
        self._demand_common_count()
        with self._store.transaction() as tx:
            leases.limit_pause(tx, self._ttl_seconds)
            self._take_name(tx)
            worker_count = len(leases.live_leases(tx, "worker/"))
            fair_share = ceil(self._shard_count / max(worker_count, 1))
            held_leases = self._renew(tx, fair_share)
            leases.resign_forgotten(tx, "shard/", self._worker_id, self._incarnation, [*held_leases.values()])
            missing = fair_share - len(held_leases)
            for shard in self._free_shards(tx) if missing > 0 else ():
                lease = leases.acquire(
                    tx, f"shard/{shard}", self._worker_id, self._ttl_seconds, self._incarnation
                )
                if lease is not None:
                    held_leases[shard] = lease
                if len(held_leases) >= fair_share:
                    break
        with self._lock:
            previous = self._leases
            changed = held_leases.keys() != previous.keys() or (
                bool(held_leases) and began_at >= self._trusted_until
            )
            self._leases, self._trusted_until = held_leases, began_at + self._ttl_seconds
        self._report_changes(
            "got", {shard: lease for shard, lease in held_leases.items() if shard not in previous}
        )
        self._report_changes(
            "lost", {shard: lease for shard, lease in previous.items() if shard not in held_leases}
        )
        if changed:
            log.info(
                "shards held",
                worker=self._worker_id,
                held=len(held_leases),
                share=fair_share,
                workers=worker_count,
            )
        return changed

    def _demand_common_count(self) -> None:
        """Renew or acquire the lease of the number of shards. Raises HeldUp while workers with another number hold
        the lease. The lease lasts longer than the trust in the shards of this round.
        """
        # A transaction of its own, so that no worker that is paused locks the row, which all workers write.
        count = str(self._shard_count)
        ttl_seconds = 2 * self._ttl_seconds
        if self._store.in_single_statement(leases.renew_or_acquire, COUNT_LEASE, count, ttl_seconds) is None:
            raise HeldUp(
                f"other workers divide the topics into another number of shards than {count}; stop them first, or give "
                "CLEAVE_WORKER_SHARDS the holder of the lease shard-count in inspect.leases",
                RETRY_SECONDS,
            )

    def _take_name(self, tx: Connection) -> None:
        """Renew or acquire the lease of the worker's name, in the caller's transaction, and store this process's web
        address and schema version with the lease. Then log a warning, once for each version, if the schema of the
        database is newer than this program. Raises HeldUp while another process of the name, which may be dead, holds
        the lease. Raises WorkerNameInUse if that process has renewed the lease since the last call, which proves that
        it is alive.
        """
        name = f"worker/{self._worker_id}"
        own_lease = leases.renew_or_acquire(
            tx, name, self._worker_id, self._ttl_seconds, incarnation=self._incarnation
        )
        if own_lease is None:
            last_lease, self._foreign_lease = self._foreign_lease, leases.read(tx, name)
            if (
                last_lease is not None
                and self._foreign_lease is not None
                and self._foreign_lease.expires_at > last_lease.expires_at
            ):
                raise WorkerNameInUse(
                    f"another worker runs under the name {self._worker_id}; give each worker a unique name"
                )
            raise HeldUp(
                f"another process holds the lease of worker {self._worker_id}; this process waits until that lease ends",
                RETRY_SECONDS,
            )
        self._foreign_lease = None
        known_schema = None if self._schema is None else self._schema.known
        leases.announce(tx, name, self._worker_id, self._address, known_schema)
        if self._schema is not None:
            self._schema.compare(tx)

    def _report_changes(self, change: str, changed: Mapping[int, Lease]) -> None:
        """Count the leases, by shard, that were acquired (`change` is `got`) or lost or resigned (`lost`), and log a
        line for each.
        """
        metrics.LEASE_CHANGES.labels(change).inc(len(changed))
        event = "shard acquired" if change == "got" else "shard lost"
        for shard, lease in sorted(changed.items()):
            log.info(event, shard=shard, worker=self._worker_id, term=lease.term)

    def _renew(self, tx: Connection, fair_share: int) -> dict[int, Lease]:
        """Renew the leases that this process holds according to its memory, lowest shard first, up to `fair_share`
        leases, and resign the remaining leases. Return the renewed leases by shard. A lease that has expired or
        passed to another holder is absent, and does not count towards `fair_share`.
        """
        held_leases: dict[int, Lease] = {}
        for shard, lease in sorted(self._leases.items()):
            if len(held_leases) >= fair_share:
                leases.resign(tx, lease)
            elif (renewed := leases.renew(tx, lease, self._ttl_seconds)) is not None:
                held_leases[shard] = renewed
        return held_leases

    def _free_shards(self, tx: Connection) -> list[int]:
        """Return the shards that no worker holds."""
        leased_names = {lease.name for lease in leases.live_leases(tx, "shard/")}
        return [shard for shard in range(self._shard_count) if f"shard/{shard}" not in leased_names]

    def run(self, on_change: Callable[[], None], on_refused: Callable[[], None] = lambda: None) -> None:
        """Run rounds at a third of the lease time until `stop`; the first round begins after one such pause. After a
        round that changed `held`, call `on_change` in this thread.

        A failed round is logged and repeated. The pause after a Retryable error is at most `RETRY_SECONDS`, so that
        leases that have not expired are renewed as soon as the store answers; the pause after any other error is at
        most a third of the lease time. If another process uses the worker's name (WorkerNameInUse), the error is
        stored in `refused` instead of being raised, `on_refused` is called, and `run` returns. The leases are not
        resigned at the end; call `resign`.
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
        """Make `run` return after the current round."""
        self._stop.set()

    def resign(self) -> None:
        """End all leases of this process at once: of its shards, of its name, and leases that this process does not
        know of. Other workers need not wait for the expiry. `held` is empty afterwards. A Retryable error, such as an
        unavailable store, is logged and not raised; the leases then expire by themselves. Other errors are raised.
        The caller ensures that `run` has ended, because a round would acquire leases again.
        """
        with self._lock:
            own_leases, self._leases = self._leases, {}
        try:
            with self._store.transaction() as tx:
                for lease in own_leases.values():
                    leases.resign(tx, lease)
                leases.resign_all(tx, self._worker_id, self._incarnation)
        except Retryable as error:
            log.warning(
                "leases not resigned; they expire by themselves",
                worker=self._worker_id,
                error=str(error),
            )
        for shard, lease in sorted(own_leases.items()):
            log.info("shard resigned", shard=shard, worker=self._worker_id, term=lease.term)
