"""Which consumer reads which buckets: a pure function of layout, drained segments, consumer names and current
owners.

Equal input gives equal output on every machine, whatever the order of the input. The function obeys three rules;
the first has priority over the others:

1. Order. A segment is assigned only after all its ancestors are drained. Pulsar checks the parents of ACTIVE
   segments only, so that a sealed parent and its sealed child may be read by different consumers at once
   (apache/pulsar#26274).
2. Fairness. While there are no more consumers than segments, each consumer reads whole segments, and the numbers of
   segments differ by at most one. More consumers share segments by entry buckets (PIP-486) if `share_buckets`
   allows it. A segment with very many buckets is divided into runs of buckets (`entry_buckets.ownership_units`),
   which count as buckets here.
3. Few moves. Among the fair assignments, one is chosen that takes the fewest buckets from their current owners.
   With whole segments the number of moves is minimal. With shared segments it is close to minimal, because the
   segments that get another reader are chosen greedily.

The functions below `assign` identify a consumer by the index of its name in the sorted names. The *homes* of a
bucket are the consumers that may get the bucket without a move. Storing the owners, and the hand-over from one
owner to the next, are left to other modules.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from controller.domain import entry_buckets
from controller.domain.drain_barrier import candidates
from controller.domain.hash_range import HashRange
from controller.domain.segment import Segment
from controller.domain.segment_graph import SegmentGraph
from controller.domain.transportation_problem import heaviest


class SegmentBucket(NamedTuple):
    """The unit of ownership. `bucket` is a range of bucket hashes: the range of one entry bucket, or of a run of buckets
    if the segment has too many to own separately. It is the full range if the segment has one bucket.
    """

    segment_id: int
    bucket: HashRange


Assignment = dict[str, tuple[SegmentBucket, ...]]
"""The buckets of each consumer, ordered by the range of the segment, its id and the bucket; empty for an idle consumer.
"""

NO_OWNERS: Mapping[SegmentBucket, str] = MappingProxyType({})

_Homes = Sequence[Sequence[int]]
"""For each bucket of a segment the consumers, as indexes into the sorted names, that may get the bucket without a move.
Empty if no consumer may.
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
    """Return the buckets of each consumer, by the consumer's name. Each bucket of each readable segment has one
    consumer. A segment is readable if it is not drained and all its ancestors are drained. An idle consumer has an
    empty entry. The result is empty if there is no consumer.

    `drained` contains ids of drained segments. `share_buckets`: True if several consumers may read one segment; they
    do so only while there are more consumers than readable segments. `parents_block`: False if a segment need not
    wait for its ancestors. `drain_consumers` (1 or more): while consumers do not share segments, at most this many
    consumers share the buckets of a sealed segment, in addition to the segments that they read alone.

    `owners` gives the current owner of each bucket, and the owners of the buckets of the parents of new segments.
    Owners that are not among `consumers` do not count. As far as equal numbers allow, a bucket stays with its owner.
    A new bucket goes to the consumer that owned most of the bucket's hashes in the parents; if several consumers
    owned equally many, to one of these consumers.

    With `strict_pulsar`, `owners` and `drain_consumers` have no effect: segments and buckets are assigned as Pulsar 5
    assigns them, except that children still wait for their ancestors if `parents_block`.
    """
    names = sorted(set(consumers))
    ready = candidates(layout, drained, parents_block=parents_block)
    if not names:
        return {}
    sharing = share_buckets and len(names) > len(ready)
    fans_out = drain_consumers > 1 and not sharing and not strict_pulsar
    units = cache(entry_buckets.ownership_units)  # many segments have the same boundaries

    def distribute(current_owners: Mapping[SegmentBucket, str]) -> Assignment:
        """Return the buckets of each consumer if the buckets have `current_owners`, names of consumers, at present.
        Under `strict_pulsar` the owners have no effect.
        """
        if strict_pulsar:
            sizes = [len(units(segment.bucket_splits)) for segment in ready]
            reader_lists = _runs(sizes, names) if sharing else _in_turn(sizes, len(names))
        else:
            homes = _homes(ready, units, names, current_owners)
            reader_lists = _share_segments(homes, len(names)) if sharing else _assign_whole(homes, len(names))
            if fans_out:
                reader_lists = _fan_out(ready, homes, reader_lists, len(names), drain_consumers)
        shares: list[list[SegmentBucket]] = [[] for _ in names]
        for segment, readers in zip(ready, reader_lists, strict=True):
            for bucket, reader in zip(units(segment.bucket_splits), readers, strict=True):
                shares[reader].append(SegmentBucket(segment.segment_id, bucket))
        return {name: tuple(share) for name, share in zip(names, shares, strict=True)}

    return _stabilize(distribute, owners) if fans_out else distribute(owners)


_MAX_ROUNDS = 16
"""Maximum number of distributions that `_stabilize` computes."""


def _stabilize(
    distribute: Callable[[Mapping[SegmentBucket, str]], Assignment], owners: Mapping[SegmentBucket, str]
) -> Assignment:
    """Distribute repeatedly, until the assignment does not change, and return this assignment. `distribute` returns
    the assignment for given owners. The first round gives `owners` to `distribute`; each further round gives it the
    owners of the assignment of the round before. Rounds are needed because a consumer that helps to drain a segment
    then owns a part of the segment, which may change the choice for other consumers.

    If the assignments repeat in a cycle of several, return the least assignment of the cycle (compared by consumer
    name and buckets), so that the result does not depend on the starting point. After `_MAX_ROUNDS` rounds, return
    the last assignment.
    """
    assignments = [distribute(owners)]
    while len(assignments) < _MAX_ROUNDS:
        assignment = distribute({unit: name for name, share in assignments[-1].items() for unit in share})
        if assignment in assignments:
            return min(
                assignments[assignments.index(assignment) :], key=lambda shares: sorted(shares.items())
            )
        assignments.append(assignment)
    return assignments[-1]


# The consumers with which a bucket stays


def _homes(
    ready: Sequence[Segment],
    units: Callable[[tuple[int, ...]], tuple[HashRange, ...]],
    names: Sequence[str],
    owners: Mapping[SegmentBucket, str],
) -> list[_Homes]:
    """Return, for each segment of `ready`, the homes of each bucket: the consumers, as indexes into the sorted
    `names`, that may get the bucket without a move. `units` returns the buckets for the boundaries of a segment.
    `owners` has owners of buckets of the segments and of their parents.

    A bucket that has an owner has this owner as its only home, or no home if the owner is not among `names`. For a
    bucket without an owner, the homes are the consumers that own most of the bucket's hashes in other pieces of the
    same segment. If no consumer of `names` owns such a piece, the homes are the consumers that owned most of the
    bucket's hashes in the segment's parents. If no consumer did, the bucket has no home. Consumers with equally many
    hashes are all homes.
    """
    indexes = {name: index for index, name in enumerate(names)}
    owners_by_segment: dict[int, dict[HashRange, int | None]] = {}
    for (segment_id, bucket), owner in owners.items():
        owners_by_segment.setdefault(segment_id, {})[bucket] = indexes.get(owner)
    homes_by_descent: dict[tuple[tuple[int, ...], tuple[int, ...]], _Homes] = {}  # siblings inherit alike
    homes_of_segments: list[_Homes] = []
    for segment in ready:
        ranges = units(segment.bucket_splits)
        own_owners = owners_by_segment.get(segment.segment_id, {})
        has_same_units = len(own_owners) == sum(unit in own_owners for unit in ranges)
        from_pieces: _Homes = [()] * len(ranges) if has_same_units else _inherited(ranges, [own_owners])
        descent_key = (segment.parent_ids, segment.bucket_splits)
        if descent_key not in homes_by_descent:
            homes_by_descent[descent_key] = _inherited(
                ranges, [owners_by_segment[i] for i in segment.parent_ids if i in owners_by_segment]
            )
        homes_of_segments.append(
            [
                _only(own_owners[b]) if b in own_owners else piece_home or home
                for b, piece_home, home in zip(
                    ranges, from_pieces, homes_by_descent[descent_key], strict=True
                )
            ]
        )
    return homes_of_segments


def _only(consumer: int | None) -> Sequence[int]:
    """Return the owner of a bucket as its only home; empty if the owner is gone."""
    return () if consumer is None else (consumer,)


def _inherited(ranges: Sequence[HashRange], parents: Sequence[Mapping[HashRange, int | None]]) -> _Homes:
    """Return, for each range, the consumers (indexes into the sorted names, ascending) that owned more of its hashes
    than any other consumer: several if they owned equally many, none if no consumer owned a part.

    `parents` has one mapping for each parent, or one for the present pieces of the segment itself: the owner of each
    piece, by the piece's range. Pieces whose owner is None, because the owner is gone, are ignored. The hashes of
    several parents add up. `ranges` are ascending and tile 0..65535; the pieces may have other boundaries.
    """
    starts = [bucket.start for bucket in ranges]
    widths: list[Counter[int]] = [Counter() for _ in ranges]
    for bucket, consumer in (item for parent in parents for item in parent.items()):
        if consumer is not None:
            for index in range(bisect_right(starts, bucket.start) - 1, bisect_right(starts, bucket.end)):
                own = ranges[index]
                widths[index][consumer] += min(own.end, bucket.end) - max(own.start, bucket.start) + 1
    return [_widest(owned) for owned in widths]


def _widest(widths: Mapping[int, int]) -> Sequence[int]:
    """Return the consumers with the largest number of hashes, ascending; empty if `widths`, the number of hashes of
    each consumer, is empty.
    """
    widest = max(widths.values(), default=0)
    return sorted(consumer for consumer, width in widths.items() if width == widest)


def _count_by_consumer(homes: Iterable[Sequence[int]]) -> dict[int, int]:
    """Return, for each consumer, the number of buckets in `homes` that may stay with the consumer. Consumers without
    a bucket are absent.
    """
    return dict(Counter(consumer for bucket in homes for consumer in bucket))


# Whole segments


def _assign_whole(homes: Sequence[_Homes], consumers: int) -> list[Sequence[int]]:
    """Return the reader of each bucket of each segment, if one consumer reads all buckets of a segment. The
    consumers' numbers of segments differ by at most one, and as many buckets as possible stay with their consumers.
    """
    readers = _distribute([_count_by_consumer(segment) for segment in homes], consumers)
    return [[reader] * len(segment) for reader, segment in zip(readers, homes, strict=True)]


def _distribute(weights: Sequence[Mapping[int, int]], places: int, *, in_runs: bool = False) -> list[int]:
    """Return the index of the place that gets each item. Items are segments and places are consumers, or items are the
    buckets of a segment and places are its readers; `places` is the number of places, at least 1. `weights` has for
    each item the positive weights of the places that may keep the item, by the index of the place; empty if no place
    may. The numbers of items per place differ by at most one, and the sum of the weights of the kept items is the
    greatest of all such distributions.

    Each item that no place keeps, in the order of the items, goes to the place that has the fewest items so far. With
    `in_runs` the first place gets as many of these items as it lacks, then the next place.
    """
    least, surplus = divmod(len(weights), places)
    items_by_weights: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for item, by_place in enumerate(weights):
        if by_place:
            items_by_weights.setdefault(tuple(sorted(by_place.items())), []).append(item)
    flows = heaviest(
        [len(items) for items in items_by_weights.values()],
        [least] * places,
        [dict(item_weights) for item_weights in items_by_weights],
        pool=surplus,
    )
    place_of: dict[int, int] = {}
    counts = [0] * places
    for items, amounts in zip(items_by_weights.values(), flows, strict=True):
        waiting = iter(items)
        for place, amount in amounts.items():
            counts[place] += amount
            place_of.update((next(waiting), place) for _ in range(amount))
    free_places = iter(_free_places(counts, least, surplus, in_runs))
    return [place_of[item] if item in place_of else next(free_places) for item in range(len(weights))]


def _free_places(counts: Sequence[int], least: int, surplus: int, in_runs: bool) -> list[int]:
    """Return the places for the items that keep no place, in the order of these items. `counts` has the number of items
    that each place keeps. Each place is filled to `least` items. `surplus` places get one item more: the places that
    already keep more than `least`, then the first places. With `in_runs` one place is filled after the other; otherwise
    the next item goes to the place with the fewest items, of several to the first.
    """
    surplus -= sum(count > least for count in counts)
    free_places: list[tuple[int, int]] = []
    for place, count in enumerate(counts):
        size = least
        if count <= least and surplus:
            size, surplus = least + 1, surplus - 1
        free_places += ((0 if in_runs else number, place) for number in range(count, size))
    return [place for _, place in sorted(free_places)]


def _fan_out(
    ready: Sequence[Segment],
    homes: Sequence[_Homes],
    reader_lists: Sequence[Sequence[int]],
    consumers: int,
    limit: int,
) -> list[Sequence[int]]:
    """Return a copy of `reader_lists` in which the buckets of each sealed segment are divided equally among several
    readers. Active segments keep their readers. `reader_lists` has the reader of each bucket of each segment, where
    one consumer reads all buckets of a segment. Consumers are indexes into the sorted names, and `consumers` is their
    number.

    A sealed segment gets `limit` readers, but not more than it has buckets, nor more than there are consumers. The
    readers are the present reader of the segment and the consumers with which most of the segment's buckets may stay
    (`homes`). Among consumers with equally many, the consumers that were added to the fewest earlier segments of
    `ready` are chosen.
    """
    helped_segments: Counter[int] = Counter()
    result = list(reader_lists)
    for index, segment in enumerate(ready):
        number = min(limit, len(homes[index]), consumers)
        if segment.is_active or number == 1:
            continue
        reader = reader_lists[index][0]
        owned = _count_by_consumer(homes[index])
        helpers = sorted(
            (consumer for consumer in range(consumers) if consumer != reader),
            key=lambda consumer: (-owned.get(consumer, 0), helped_segments[consumer], consumer),
        )[: number - 1]
        helped_segments.update(helpers)
        result[index] = _divide_buckets(homes[index], sorted([reader, *helpers]))
    return result


# Segments that consumers share


class _Claim(NamedTuple):
    """Numbers of buckets of a segment that may stay with a consumer: `at_home` counts all of them, `settled` only the
    buckets that are counted for no other consumer.
    """

    at_home: int
    settled: int


_Claims = Sequence[Mapping[int, _Claim]]
"""For each segment the claims of the consumers with which at least one bucket may stay, by the consumer."""


def _share_segments(homes: Sequence[_Homes], consumers: int) -> list[Sequence[int]]:
    """Return the reader of each bucket of each segment, as an index into the sorted names, where every consumer reads
    at most one segment. Consumers for which no bucket is left read nothing. `consumers` is the number of consumers;
    it must not be less than the number of segments.

    The numbers of readers of the segments are as equal as the numbers of buckets allow. A segment gets one reader
    more than others if the additional reader keeps the most buckets with their consumers.

    The readers are placed twice. The first placement finds the segment whose buckets each consumer keeps, because a
    consumer that owns buckets of several segments keeps one segment. The second placement uses the chosen numbers of
    readers.
    """
    sizes = [len(segment) for segment in homes]
    claims = _claims(homes)
    least, _, surplus = _equal_readers(sizes, consumers)
    widest = [[(-(-size // number), number)] for size, number in zip(sizes, least, strict=True)]
    kept_claims = _keep_claims(claims, _place_readers(claims, widest, consumers, pool=surplus))
    numbers = _numbers_of_readers(sizes, consumers, kept_claims)
    shares = [_bucket_shares(size, number) for size, number in zip(sizes, numbers, strict=True)]
    readers_by_segment = _place_readers(claims, shares, consumers)
    _place_idle(readers_by_segment, numbers, consumers)
    return [
        _divide_buckets(segment, readers) for segment, readers in zip(homes, readers_by_segment, strict=True)
    ]


def _claims(homes: Sequence[_Homes]) -> _Claims:
    """Return the claims of each segment, by the consumer: the number of its buckets that may stay with the consumer. A
    bucket that may stay with several consumers counts as settled for one of them: the consumer that has the fewest
    settled buckets so far in all segments, of several the first.
    """
    totals: Counter[int] = Counter()
    claims: list[Mapping[int, _Claim]] = []
    for segment in homes:
        settled: Counter[int] = Counter()
        for bucket in segment:
            if bucket:
                consumer = min(bucket, key=lambda n: (totals[n], n))
                totals[consumer] += 1
                settled[consumer] += 1
        claims.append({n: _Claim(count, settled[n]) for n, count in _count_by_consumer(segment).items()})
    return claims


def _keep_claims(claims: _Claims, readers_by_segment: Sequence[Sequence[int]]) -> _Claims:
    """Return each consumer's claim to the segment that the consumer reads, and no other claims."""
    return [
        {n: own[n] for n in readers if n in own}
        for own, readers in zip(claims, readers_by_segment, strict=True)
    ]


def _equal_readers(sizes: Sequence[int], consumers: int) -> tuple[list[int], list[int], int]:
    """Return how many readers each segment gets if the numbers of readers are as equal as the numbers of buckets
    (`sizes`) allow. The result has three parts: the number of readers that each segment gets at least; the indexes of
    the segments that have a bucket for one more reader; and the number of readers that are left over for these
    segments, which is less than the number of these segments, or 0 if there are no such segments.

    `consumers` is the number of consumers; it must not be less than the number of segments.
    """
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
    """Return the number of readers of each segment, at most its number of buckets (`sizes`). The numbers differ by at
    most one, except where a segment has too few buckets. The readers that are left over go to the segments in which one
    more reader keeps the most buckets with their consumers (`settled` of `claims`); among equals to the first segments.
    Needs at least as many consumers as segments.
    """
    numbers, open_to_more, surplus = _equal_readers(sizes, consumers)

    def gain_of_one_more(index: int) -> int:
        """Return how many more buckets of the segment stay with their consumers if it gets another reader."""
        counts = sorted((claim.settled for claim in claims[index].values()), reverse=True)
        return _count_kept(counts, sizes[index], numbers[index] + 1) - _count_kept(
            counts, sizes[index], numbers[index]
        )

    gains = {index: gain_of_one_more(index) for index in open_to_more}
    for index in sorted(open_to_more, key=gains.__getitem__, reverse=True)[:surplus]:
        numbers[index] += 1
    return numbers


def _count_kept(counts: Sequence[int], buckets: int, readers: int) -> int:
    """Return the number of buckets that stay with their consumers if `readers` consumers read the segment's `buckets` in
    equal shares. `counts` has the number of buckets that each consumer owns, in descending order; the first of these
    consumers are the readers.
    """
    share, more = divmod(buckets, readers)
    first = counts[:readers]
    return sum(min(count, share) for count in first) + min(more, sum(count > share for count in first))


def _bucket_shares(buckets: int, readers: int) -> list[tuple[int, int]]:
    """Return the equal shares of `buckets` among `readers` as two pairs of a number of buckets and the number of readers
    that get this many: the larger share, which may have no reader, then the smaller share.
    """
    share, more = divmod(buckets, readers)
    return [(share + 1, more), (share, readers - more)]


def _place_readers(
    claims: _Claims, shares: Sequence[Sequence[tuple[int, int]]], consumers: int, *, pool: int = 0
) -> list[list[int]]:
    """Return the readers of each segment, as ascending indexes into the sorted names, so that the sum of the readers'
    weights is the greatest. The weight of a reader is the number of buckets that the reader keeps (`at_home` of the
    claim). Between readers that keep equally many buckets, the number of `settled` buckets decides.

    `shares` has pairs for each segment: a number of buckets, and how many readers may keep at most this number. A
    segment gets at most as many readers as the pairs allow together. In addition, up to `pool` of all the pairs may
    each have one reader more. A consumer reads at most one segment. A consumer without a claim is not placed, so a
    segment may get fewer readers than the pairs allow. `consumers` is the number of consumers.
    """
    scale = 1 + max((claim.at_home for own in claims for claim in own.values()), default=0)
    weights: list[dict[int, int]] = [{} for _ in range(consumers)]
    capacities: list[int] = []
    segment_at: list[int] = []
    for index, own in enumerate(claims):
        for share, capacity in shares[index]:
            for consumer, claim in own.items():
                weights[consumer][len(capacities)] = scale * min(claim.at_home, share) + min(
                    claim.settled, share
                )
            capacities.append(capacity)
            segment_at.append(index)
    readers: list[list[int]] = [[] for _ in claims]
    for consumer, assigned in enumerate(heaviest([1] * consumers, capacities, weights, pool=pool)):
        for place in assigned:
            readers[segment_at[place]].append(consumer)
    return readers


def _place_idle(readers_by_segment: Sequence[list[int]], numbers: Sequence[int], consumers: int) -> None:
    """Add the consumers that read no segment yet to the lists of `readers_by_segment`, in the order of their names,
    until each segment, the first segment first, has its number of readers (`numbers`), and sort the lists. The lists
    are changed in place. Consumers for which no place is left stay idle.
    """
    placed = {consumer for readers in readers_by_segment for consumer in readers}
    waiting = (consumer for consumer in range(consumers) if consumer not in placed)
    for readers, number in zip(readers_by_segment, numbers, strict=True):
        readers += islice(waiting, number - len(readers))
        readers.sort()


def _divide_buckets(homes: _Homes, readers: Sequence[int]) -> Sequence[int]:
    """Return the reader of each bucket of one segment: an element of `readers`, which must not be empty. The readers'
    numbers of buckets differ by at most one, and as many buckets as possible stay with their consumers. The other
    buckets go to the readers in runs, in the order of `readers`.
    """
    at = {reader: place for place, reader in enumerate(readers)}
    weights = [{at[n]: 1 for n in bucket if n in at} for bucket in homes]
    return [readers[place] for place in _distribute(weights, len(readers), in_runs=True)]


# The assignment of Pulsar 5


def _in_turn(sizes: Sequence[int], consumers: int) -> list[Sequence[int]]:
    """Return the reader of each bucket of each segment if consumer i modulo `consumers` reads segment i, as Pulsar 5
    assigns whole segments. `sizes`: number of buckets of each segment.
    """
    return [[index % consumers] * size for index, size in enumerate(sizes)]


def _runs(sizes: Sequence[int], names: Sequence[str]) -> list[Sequence[int]]:
    """Return the reader of each bucket of each segment if a run of consecutive consumers shares each segment, as
    Pulsar's dispatcher distributes the buckets. A reader is an index into the sorted `names`. `sizes`: number of
    buckets of each segment. The last consumers read nothing if there are fewer buckets. Needs at least as many
    consumers as segments.
    """
    reader_lists: list[Sequence[int]] = []
    first = 0
    for size, number in zip(sizes, _numbers_of_readers(sizes, len(names), [{}] * len(sizes)), strict=True):
        run = entry_buckets.owners(size, names[first : first + number])
        reader_lists.append([reader for reader, own in enumerate(run.values(), first) for _ in own])
        first += number
    return reader_lists
