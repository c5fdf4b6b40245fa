"""The transportation problem: goods go to places of limited room, so that the total weight is the greatest possible.

Solved exactly by the primal-dual method: shortest augmenting paths by Dijkstra over reduced costs, and all paths of one
length at once, as Dinic does it. Integers in, integers out; equal input gives equal output. It knows nothing of segments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

_SOURCE, _SINK, _POOL, _FIRST = 0, 1, 2, 3


def heaviest(
    supplies: Sequence[int], rooms: Sequence[int], weights: Sequence[Mapping[int, int]], *, pool: int = 0
) -> list[dict[int, int]]:
    """How many of each good go to which place; a good may stay behind, for a weight of 0.

    `weights[i]` says what one of good i is worth at each place that wants it: at least 1, nothing elsewhere. Place j takes
    `rooms[j]`, and one more while fewer than `pool` places have done so. Costs about the number of weights for every
    different weight there is.
    """
    top = max((weight for wanted in weights for weight in wanted.values()), default=0)
    network = _Network(_FIRST + len(supplies) + len(rooms))
    first_place = _FIRST + len(supplies)
    network.link(_POOL, _SINK, pool, 0)
    ways: list[dict[int, int]] = []
    for good, (supply, wanted) in enumerate(zip(supplies, weights, strict=True), _FIRST):
        network.link(_SOURCE, good, supply, 0)
        ways.append(
            {j: network.link(good, first_place + j, supply, top - w) for j, w in sorted(wanted.items())}
        )
    for place, room in enumerate(rooms, first_place):
        network.link(place, _SINK, room, 0)
        if pool:
            network.link(place, _POOL, 1, 0)
    while network.lower_potentials() < top:
        while network.find_levels():
            network.push()
    return [{j: sent for j, way in good.items() if (sent := network.room[way ^ 1])} for good in ways]


class _Network:
    """Residual network. Link `i ^ 1` is the way back of link i, and its room is what flows through link i."""

    def __init__(self, nodes: int) -> None:
        self.room: list[int] = []
        self._end: list[int] = []
        self._cost: list[int] = []
        self._out: list[list[int]] = [[] for _ in range(nodes)]
        self._potential = [0] * nodes
        self._level: list[int] = []
        self._next: list[int] = []

    def link(self, start: int, end: int, room: int, cost: int) -> int:
        """Add a link of that room, which is at least 0, and cost, at least 0 also; returns its number."""
        number = len(self.room)
        self.room += (room, 0)
        self._end += (end, start)
        self._cost += (cost, -cost)
        self._out[start].append(number)
        self._out[end].append(number + 1)
        return number

    def lower_potentials(self) -> float:
        """Potentials under which the cheapest ways to the sink cost nothing; returns what they cost, inf without any."""
        far = float("inf")
        distance: list[float] = [far] * len(self._out)
        distance[_SOURCE] = 0
        heap: list[tuple[int, int]] = [(0, _SOURCE)]
        while heap:
            so_far, node = heappop(heap)
            if so_far > distance[node]:
                continue
            if node == _SINK:
                break
            here = so_far + self._potential[node]
            for number in self._out[node]:
                if self.room[number]:
                    end = self._end[number]
                    length = here + self._cost[number] - self._potential[end]
                    if length < distance[end]:
                        distance[end] = length
                        heappush(heap, (length, end))
        reached = distance[_SINK]
        if reached == far:
            return far
        for node, found in enumerate(distance):
            self._potential[node] += int(min(found, reached))
        return self._potential[_SINK] - self._potential[_SOURCE]

    def find_levels(self) -> bool:
        """Number the nodes by their distance in links that cost nothing; whether the sink is among them."""
        self._level = [-1] * len(self._out)
        self._next = [0] * len(self._out)
        self._level[_SOURCE] = 0
        waiting = deque([_SOURCE])
        while waiting and self._level[_SINK] < 0:
            node = waiting.popleft()
            for number in self._out[node]:
                end = self._end[number]
                if self._level[end] < 0 and self.room[number] and self._is_free(number, node, end):
                    self._level[end] = self._level[node] + 1
                    waiting.append(end)
        return self._level[_SINK] >= 0

    def push(self) -> None:
        """Send as much as the levels let through. A link that leads nowhere is tried once only."""
        path: list[int] = []
        node = _SOURCE
        while True:
            if node == _SINK:
                node = self._send(path)
            number = self._onward(node)
            if number is not None:
                path.append(number)
                node = self._end[number]
            elif path:
                node = self._end[path.pop() ^ 1]
                self._next[node] += 1
            else:
                return

    def _send(self, path: list[int]) -> int:
        """Fill the path, and cut it at its first full link; returns the node where it ends now."""
        amount = min(self.room[number] for number in path)
        for number in path:
            self.room[number] -= amount
            self.room[number ^ 1] += amount
        full = next(index for index, number in enumerate(path) if not self.room[number])
        node = self._end[path[full] ^ 1]
        del path[full:]
        return node

    def _onward(self, node: int) -> int | None:
        """The next open link of the node to the level above."""
        out = self._out[node]
        while self._next[node] < len(out):
            number = out[self._next[node]]
            end = self._end[number]
            above = self._level[end] == self._level[node] + 1
            if above and self.room[number] and self._is_free(number, node, end):
                return number
            self._next[node] += 1
        return None

    def _is_free(self, number: int, start: int, end: int) -> bool:
        return self._cost[number] + self._potential[start] == self._potential[end]
