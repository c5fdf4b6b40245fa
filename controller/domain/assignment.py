"""Which consumer reads which buckets: a pure function of layout, drained segments, names and present owners.

Equal input gives equal output on every machine, whatever the order of what goes in. Three laws, the first before the
others:

1. Order. A segment is handed out only when everything it descends from is drained. Pulsar looks at the parents of ACTIVE
   segments only, so that a sealed parent and its sealed child may go to different consumers at once (apache/pulsar#26274).
2. Fairness. Each of up to as many consumers as there are segments reads whole segments, as many as the others or one more.
   More consumers than that share segments by entry buckets (PIP-486) where `share_buckets` allows it; a segment of very many
   buckets by runs of them (`entry_buckets.ownership_units`), which count as buckets here.
3. Few moves. Among the fair assignments one that takes the fewest buckets from those who own them now. With whole
   segments it is the fewest; with shared ones nearly so, since which segments get another reader is chosen greedily.

Who owns a bucket is stored elsewhere, and so is the hand-over from one owner to the next.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from controller.domain import entry_buckets
from controller.domain.drain_barrier import candidates
from controller.domain.hash_range import HashRange
from controller.domain.segment import Segment
from controller.domain.segment_graph import SegmentGraph
from controller.domain.transport import heaviest


class SegmentBucket(NamedTuple):
    """The unit of ownership. `bucket` is a range of bucket hashes: of one entry bucket, or of a run of them where the segment has
    too many to own each; the full one where the segment has one bucket.
    """

    segment_id: int
    bucket: HashRange


Assignment = dict[str, tuple[SegmentBucket, ...]]
"""The buckets of every consumer, by the range of the segment, its id and the bucket; empty for one that is idle."""

NO_OWNERS: Mapping[SegmentBucket, str] = MappingProxyType({})

_Homes = Sequence[Sequence[int]]
"""For each bucket of a segment the consumers, by their places among the names, with whom it is at home: to give it to one
of them is no move. Empty where it is free.
"""


def assign(
    layout: SegmentGraph,
    drained: Collection[int],
    consumers: Collection[str],
    owners: Mapping[SegmentBucket, str] = NO_OWNERS,
    *,
    share_buckets: bool = False,
    parents_block: bool = True,
    drain_consumers: int = 1,
    strict_pulsar: bool = False,
) -> Assignment:
    """The buckets of each consumer; every consumer has an entry.

    `drain_consumers` (1 or more): where each consumer reads whole segments, so many of them at most share the buckets of a sealed
    one until it is drained, beside what else they read.

    `owners` says who has which bucket now, and who had those of the parents of new segments: a new bucket is at home with
    the consumer that owned most of the same bucket hashes of its parents, or with each of several that owned equally much.
    Owners that are gone do not count. With `strict_pulsar` owners play no part: segments and buckets are dealt as Pulsar 5
    deals them (the order of parents and children stays ours).
    """
    names = sorted(set(consumers))
    ready = candidates(layout, drained, parents_block=parents_block)
    if not names:
        return {}
    sharing = share_buckets and len(names) > len(ready)
    fans_out = drain_consumers > 1 and not sharing and not strict_pulsar
    buckets = _Buckets()

    def deal(held: Mapping[SegmentBucket, str]) -> Assignment:
        if strict_pulsar:
            sizes = [len(buckets.of(segment)) for segment in ready]
            dealt = _runs(sizes, names) if sharing else _in_turn(sizes, len(names))
        else:
            homes = _homes(ready, buckets, names, held)
            dealt = _shared(homes, len(names)) if sharing else _whole(homes, len(names))
            if fans_out:
                dealt = _fanned_out(ready, homes, dealt, len(names), drain_consumers)
        shares: list[list[SegmentBucket]] = [[] for _ in names]
        for segment, readers in zip(ready, dealt, strict=True):
            for bucket, reader in zip(buckets.of(segment), readers, strict=True):
                shares[reader].append(SegmentBucket(segment.segment_id, bucket))
        return {name: tuple(share) for name, share in zip(names, shares, strict=True)}

    return _settled(deal, owners) if fans_out else deal(owners)


_MOST_LOOKS = 16


def _settled(
    deal: Callable[[Mapping[SegmentBucket, str]], Assignment], owners: Mapping[SegmentBucket, str]
) -> Assignment:
    """Dealt again until a look moves nothing. Who helps to drain a segment owns some of it by then, which may tip the scales
    for others. Where looks go round in a circle the least of them is taken, from wherever in it one begins.
    """
    seen = [deal(owners)]
    while len(seen) < _MOST_LOOKS:
        after = deal({unit: name for name, share in seen[-1].items() for unit in share})
        if after in seen:
            return min(seen[seen.index(after) :], key=lambda shares: sorted(shares.items()))
        seen.append(after)
    return seen[-1]


class _Buckets:
    """The units of a segment, worked out once for all segments that are cut alike."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], tuple[HashRange, ...]] = {}

    def of(self, segment: Segment) -> tuple[HashRange, ...]:
        splits = segment.bucket_splits
        found = self._known.get(splits)
        if found is None:
            found = self._known[splits] = entry_buckets.ownership_units(splits)
        return found


# Where buckets are at home


def _homes(
    ready: Sequence[Segment],
    buckets: _Buckets,
    names: Sequence[str],
    owners: Mapping[SegmentBucket, str],
) -> list[_Homes]:
    """Of every candidate. A bucket that has an owner is at home with it and with nobody else, gone or not. Where the owners have
    the segment in other pieces it is at home as if those were a parent's.
    """
    places = {name: place for place, name in enumerate(names)}
    held: dict[int, dict[HashRange, int | None]] = {}
    for (segment_id, bucket), owner in owners.items():
        held.setdefault(segment_id, {})[bucket] = places.get(owner)
    inherited: dict[tuple[tuple[int, ...], tuple[int, ...]], _Homes] = {}  # siblings inherit alike
    found: list[_Homes] = []
    for segment in ready:
        ranges = buckets.of(segment)
        own = held.get(segment.segment_id, {})
        is_cut_alike = len(own) == sum(unit in own for unit in ranges)
        in_pieces: _Homes = [()] * len(ranges) if is_cut_alike else _inherited(ranges, [own])
        descent = (segment.parent_ids, segment.bucket_splits)
        if descent not in inherited:
            inherited[descent] = _inherited(ranges, [held[i] for i in segment.parent_ids if i in held])
        found.append(
            [
                _only(own[b]) if b in own else here or home
                for b, here, home in zip(ranges, in_pieces, inherited[descent], strict=True)
            ]
        )
    return found


def _only(place: int | None) -> Sequence[int]:
    return () if place is None else (place,)


def _inherited(ranges: Sequence[HashRange], parents: Sequence[Mapping[HashRange, int | None]]) -> _Homes:
    """For each range who owned most of its hashes in the parents, however they were cut; `ranges` tile the ring."""
    starts = [bucket.start for bucket in ranges]
    widths: list[Counter[int]] = [Counter() for _ in ranges]
    for bucket, place in (item for parent in parents for item in parent.items()):
        if place is not None:
            for index in range(bisect_right(starts, bucket.start) - 1, bisect_right(starts, bucket.end)):
                own = ranges[index]
                widths[index][place] += min(own.end, bucket.end) - max(own.start, bucket.start) + 1
    return [_widest(found) for found in widths]


def _widest(widths: Mapping[int, int]) -> Sequence[int]:
    most = max(widths.values(), default=0)
    return sorted(place for place, width in widths.items() if width == most)


def _counted(homes: Iterable[Sequence[int]]) -> dict[int, int]:
    """How many of these buckets are at home with each consumer."""
    return dict(Counter(place for bucket in homes for place in bucket))


# Whole segments


def _whole(homes: Sequence[_Homes], consumers: int) -> list[Sequence[int]]:
    """The reader of each bucket of each segment, where a segment has one reader for all of them."""
    readers = _dealt([_counted(segment) for segment in homes], consumers)
    return [[reader] * len(segment) for reader, segment in zip(readers, homes, strict=True)]


def _dealt(weights: Sequence[Mapping[int, int]], places: int, *, in_runs: bool = False) -> list[int]:
    """The place of each good: as many at each as at the others or one more, and the greatest weight of all such ways.

    Goods that nobody wants go to the places in turn, or `in_runs`: as many as are missing to the first, then to the next.
    """
    least, more = divmod(len(weights), places)
    alike: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for good, wanted in enumerate(weights):
        if wanted:
            alike.setdefault(tuple(sorted(wanted.items())), []).append(good)
    sent = heaviest(
        [len(goods) for goods in alike.values()], [least] * places, [dict(k) for k in alike], pool=more
    )
    found: dict[int, int] = {}
    taken = [0] * places
    for goods, ways in zip(alike.values(), sent, strict=True):
        waiting = iter(goods)
        for place, amount in ways.items():
            taken[place] += amount
            found.update((next(waiting), place) for _ in range(amount))
    free = iter(_free(taken, least, more, in_runs))
    return [found[good] if good in found else next(free) for good in range(len(weights))]


def _free(taken: Sequence[int], least: int, more: int, in_runs: bool) -> list[int]:
    """The places of the goods that are left, in their order. One more than the least goes to the first that have not got it."""
    more -= sum(count > least for count in taken)
    free: list[tuple[int, int]] = []
    for place, count in enumerate(taken):
        size = least
        if count <= least and more:
            size, more = least + 1, more - 1
        free += ((0 if in_runs else number, place) for number in range(count, size))
    return [place for _, place in sorted(free)]


def _fanned_out(
    ready: Sequence[Segment],
    homes: Sequence[_Homes],
    dealt: Sequence[Sequence[int]],
    consumers: int,
    most: int,
) -> list[Sequence[int]]:
    """The buckets of each sealed segment over several readers: who has it as a whole, who has some of it now, then those who help
    with fewest others.
    """
    helping: Counter[int] = Counter()
    found = list(dealt)
    for index, segment in enumerate(ready):
        number = min(most, len(homes[index]), consumers)
        if segment.is_active or number == 1:
            continue
        first = dealt[index][0]
        here = _counted(homes[index])
        others = sorted(
            (n for n in range(consumers) if n != first), key=lambda n: (-here.get(n, 0), helping[n], n)
        )[: number - 1]
        helping.update(others)
        found[index] = _divided(homes[index], sorted([first, *others]))
    return found


# Segments that consumers share


class _Claim(NamedTuple):
    """What a consumer has of a segment's buckets: those at home with it, and those of them that count as its alone."""

    at_home: int
    settled: int


_Claims = Sequence[Mapping[int, _Claim]]
"""For each segment the consumers who own some of it."""


def _shared(homes: Sequence[_Homes], consumers: int) -> list[Sequence[int]]:
    """The reader of each bucket of each segment, where every consumer reads one segment at the most.

    Which segments get one reader more than others is chosen by what each would win or lose by one. The consumers are seated
    twice: first to see to which segment's buckets each would rather hold on, since who owns some of several keeps one, then
    on the chosen numbers of seats.
    """
    sizes = [len(segment) for segment in homes]
    claims = _claims(homes)
    least, _, surplus = _equal_readers(sizes, consumers)
    widest = [[(-(-size // number), number)] for size, number in zip(sizes, least, strict=True)]
    upheld = _upheld(claims, _seated(claims, widest, consumers, pool=surplus))
    numbers = _numbers_of_readers(sizes, consumers, upheld)
    seats = [_seats(size, number) for size, number in zip(sizes, numbers, strict=True)]
    seated = _seated(claims, seats, consumers)
    _fill(seated, numbers, consumers)
    return [_divided(segment, readers) for segment, readers in zip(homes, seated, strict=True)]


def _claims(homes: Sequence[_Homes]) -> _Claims:
    """A bucket that is at home with several counts as that one's which has fewest so far."""
    totals: Counter[int] = Counter()
    found: list[Mapping[int, _Claim]] = []
    for segment in homes:
        settled: Counter[int] = Counter()
        for bucket in segment:
            if bucket:
                consumer = min(bucket, key=lambda n: (totals[n], n))
                totals[consumer] += 1
                settled[consumer] += 1
        found.append({n: _Claim(count, settled[n]) for n, count in _counted(segment).items()})
    return found


def _upheld(claims: _Claims, seated: Sequence[Sequence[int]]) -> _Claims:
    """Each consumer's claim to the segment that it reads, and no others."""
    return [{n: own[n] for n in here if n in own} for own, here in zip(claims, seated, strict=True)]


def _equal_readers(sizes: Sequence[int], consumers: int) -> tuple[list[int], list[int], int]:
    """Readers per segment, as equal as the bucket counts allow: the least of each, which may have one more, how many do."""
    least = [1] * len(sizes)
    surplus = consumers - len(sizes)
    open_to_more = [i for i, size in enumerate(sizes) if size > 1]
    while open_to_more and surplus >= len(open_to_more):
        for index in open_to_more:
            least[index] += 1
        surplus -= len(open_to_more)
        open_to_more = [i for i in open_to_more if sizes[i] > least[i]]
    return least, open_to_more, surplus if open_to_more else 0


def _numbers_of_readers(sizes: Sequence[int], consumers: int, claims: _Claims) -> list[int]:
    """Readers per segment. Those who are left over go where they win most, or cost owners least; of equals to the first."""
    numbers, open_to_more, surplus = _equal_readers(sizes, consumers)

    def won_by_one_more(index: int) -> int:
        counts = sorted((claim.settled for claim in claims[index].values()), reverse=True)
        return _kept(counts, sizes[index], numbers[index] + 1) - _kept(counts, sizes[index], numbers[index])

    won = {index: won_by_one_more(index) for index in open_to_more}
    for index in sorted(open_to_more, key=won.__getitem__, reverse=True)[:surplus]:
        numbers[index] += 1
    return numbers


def _kept(counts: Sequence[int], buckets: int, readers: int) -> int:
    """Buckets that stay where they are if those who hold most read the segment; `counts` falls."""
    share, more = divmod(buckets, readers)
    first = counts[:readers]
    return sum(min(count, share) for count in first) + min(more, sum(count > share for count in first))


def _seats(buckets: int, readers: int) -> list[tuple[int, int]]:
    """How many buckets a reader gets, and how many readers get so many."""
    share, more = divmod(buckets, readers)
    return [(share + 1, more), (share, readers - more)]


def _seated(
    claims: _Claims, seats: Sequence[Sequence[tuple[int, int]]], consumers: int, *, pool: int = 0
) -> list[list[int]]:
    """The readers of each segment who keep most by it, `pool` more than there are seats; without a claim nobody has one."""
    scale = 1 + max((claim.at_home for own in claims for claim in own.values()), default=0)
    wanted: list[dict[int, int]] = [{} for _ in range(consumers)]
    rooms: list[int] = []
    segment_at: list[int] = []
    for index, own in enumerate(claims):
        for share, room in seats[index]:
            for consumer, claim in own.items():
                wanted[consumer][len(rooms)] = scale * min(claim.at_home, share) + min(claim.settled, share)
            rooms.append(room)
            segment_at.append(index)
    readers: list[list[int]] = [[] for _ in claims]
    for consumer, seat in enumerate(heaviest([1] * consumers, rooms, wanted, pool=pool)):
        for place in seat:
            readers[segment_at[place]].append(consumer)
    return readers


def _fill(seated: Sequence[list[int]], numbers: Sequence[int], consumers: int) -> None:
    """Seat the others in the order of their names; who finds none is idle."""
    taken = {consumer for readers in seated for consumer in readers}
    waiting = (consumer for consumer in range(consumers) if consumer not in taken)
    for readers, number in zip(seated, numbers, strict=True):
        readers += islice(waiting, number - len(readers))
        readers.sort()


def _divided(homes: _Homes, readers: Sequence[int]) -> Sequence[int]:
    """The reader of each bucket of one segment."""
    at = {reader: place for place, reader in enumerate(readers)}
    weights = [{at[n]: 1 for n in bucket if n in at} for bucket in homes]
    return [readers[place] for place in _dealt(weights, len(readers), in_runs=True)]


# As Pulsar 5 does it


def _in_turn(sizes: Sequence[int], consumers: int) -> list[Sequence[int]]:
    """Candidate i to consumer i mod K."""
    return [[index % consumers] * size for index, size in enumerate(sizes)]


def _runs(sizes: Sequence[int], names: Sequence[str]) -> list[Sequence[int]]:
    """Consecutive runs of consumers, one a segment, who share its buckets as the broker's dispatcher deals them."""
    dealt: list[Sequence[int]] = []
    first = 0
    for size, number in zip(sizes, _numbers_of_readers(sizes, len(names), [{}] * len(sizes)), strict=True):
        run = entry_buckets.owners(size, names[first : first + number])
        dealt.append([reader for reader, own in enumerate(run.values(), first) for _ in own])
        first += number
    return dealt
