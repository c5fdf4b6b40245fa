"""The transportation problem: goods are sent to places of limited capacity, so that the total weight is the greatest
possible.

Solved exactly by the primal-dual method: shortest augmenting paths by Dijkstra over reduced costs, and all paths of
one length at once, as Dinic does it. Integers in, integers out; equal input gives equal output. The module does not
depend on segments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

_SOURCE, _SINK, _POOL, _FIRST = 0, 1, 2, 3


def heaviest(
    supplies: Sequence[int], capacities: Sequence[int], weights: Sequence[Mapping[int, int]], *, pool: int = 0
) -> list[dict[int, int]]:
    """Return how many units of each good go to each place, so that the sum of the weights of these units is the
    greatest possible. The result has for each good a dict from the index of a place to the number of units; places
    that get no unit of the good are absent. Units may also go to no place.

    `supplies`: the number of units of each good. `weights[i]`: the weight of one unit of good i, by the index of each
    place that accepts the good; a weight is at least 1. Place j takes at most `capacities[j]` units. In addition, up
    to `pool` places take one unit more each.

    The running time is about the number of weights for every distinct weight.
    """
    max_weight = max((weight for by_place in weights for weight in by_place.values()), default=0)
    network = _Network(_FIRST + len(supplies) + len(capacities))
    first_place = _FIRST + len(supplies)
    network.link(_POOL, _SINK, pool, 0)
    links: list[dict[int, int]] = []
    for good, (supply, by_place) in enumerate(zip(supplies, weights, strict=True), _FIRST):
        network.link(_SOURCE, good, supply, 0)
        links.append(
            {
                place_index: network.link(good, first_place + place_index, supply, max_weight - weight)
                for place_index, weight in sorted(by_place.items())
            }
        )
    for place, capacity in enumerate(capacities, first_place):
        network.link(place, _SINK, capacity, 0)
        if pool:
            network.link(place, _POOL, 1, 0)
    while network.lower_potentials() < max_weight:
        while network.find_levels():
            network.push()
    return [
        {place_index: amount for place_index, link in good.items() if (amount := network.room[link ^ 1])}
        for good in links
    ]


class _Network:
    """Residual network of nodes 0 to `nodes` - 1, without links at first; nodes 0, 1 and 2 are the source, the sink and
    the pool. Link `i ^ 1` is the reverse of link i, and its room is the flow through link i.
    """

    def __init__(self, nodes: int) -> None:
        self.room: list[int] = []
        self._end: list[int] = []
        self._cost: list[int] = []
        self._out: list[list[int]] = [[] for _ in range(nodes)]
        self._potential = [0] * nodes
        self._level: list[int] = []
        self._next: list[int] = []

    def link(self, start: int, end: int, room: int, cost: int) -> int:
        """Add a link from node `start` to node `end` with this room and cost, both at least 0, and its reverse with
        room 0. Return the number of the link; its reverse has the next number.
        """
        number = len(self.room)
        self.room += (room, 0)
        self._end += (end, start)
        self._cost += (cost, -cost)
        self._out[start].append(number)
        self._out[end].append(number + 1)
        return number

    def lower_potentials(self) -> float:
        """Set potentials under which the cheapest paths from the source to the sink cost nothing. Return the true cost of
        these paths; infinity, without a change of the potentials, if no path has room.
        """
        infinity = float("inf")
        distance: list[float] = [infinity] * len(self._out)
        distance[_SOURCE] = 0
        heap: list[tuple[int, int]] = [(0, _SOURCE)]
        while heap:
            reached_cost, node = heappop(heap)
            if reached_cost > distance[node]:
                continue
            if node == _SINK:
                break
            offset = reached_cost + self._potential[node]
            for number in self._out[node]:
                if self.room[number]:
                    end = self._end[number]
                    cost = offset + self._cost[number] - self._potential[end]
                    if cost < distance[end]:
                        distance[end] = cost
                        heappush(heap, (cost, end))
        path_cost = distance[_SINK]
        if path_cost == infinity:
            return infinity
        for node, node_cost in enumerate(distance):
            self._potential[node] += int(min(node_cost, path_cost))
        return self._potential[_SINK] - self._potential[_SOURCE]

    def find_levels(self) -> bool:
        """Number the nodes by their distance from the source in links that cost nothing and have room, -1 for nodes
        that are not reached before the sink, and reset the links that `push` has tried. Return True if the sink is
        reached.
        """
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
        """Send as much flow from the source to the sink as the levels of the last `find_levels` allow, which must have
        returned True. A link without a continuation is tried only once.
        """
        path: list[int] = []
        node = _SOURCE
        while True:
            if node == _SINK:
                node = self._send(path)
            number = self._next_link(node)
            if number is not None:
                path.append(number)
                node = self._end[number]
            elif path:
                node = self._end[path.pop() ^ 1]
                self._next[node] += 1
            else:
                return

    def _send(self, path: list[int]) -> int:
        """Send as much flow along the path (numbers of links) as its links have room for. Remove from `path`, in place,
        the first link that is full and all links after it. Return the node at which the shortened path ends.
        """
        amount = min(self.room[number] for number in path)
        for number in path:
            self.room[number] -= amount
            self.room[number ^ 1] += amount
        full = next(index for index, number in enumerate(path) if not self.room[number])
        node = self._end[path[full] ^ 1]
        del path[full:]
        return node

    def _next_link(self, node: int) -> int | None:
        """Return the number of the next link that leads from the node to the level above, has room and costs nothing;
        None if there is none. Links that are passed over are not tried again until `find_levels` is called.
        """
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
        """Return True if the link from node `start` to node `end` costs nothing under the present potentials."""
        return self._cost[number] + self._potential[start] == self._potential[end]
