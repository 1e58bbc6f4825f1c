"""Bounds: the weights that a policy allows."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .policy import Policy

NO_WEIGHT = 1e-100  # a smaller weight counts as zero
ALMOST_NONE = 1e-200  # stands for a weight of zero: it counts only where no other weight is left
ROUNDING = 1e-9
LEFT = "probation"  # in a policy's memory: rounds that a client is still on probation, [K]


class InfeasibleError(ValueError):
    """No weights meet the bounds. The text has the arithmetic."""


@dataclass(frozen=True)
class Bounds(Policy):
    """The weights nearest to the given ones (least Kullback-Leibler divergence) that the policy allows.

    Without groups, w_a ← clamp(t·w_a, floor, cap), with the t that makes them sum to 1: weights in
    between keep their proportions. A group whose sum would leave its own bounds has a t of its own,
    with which it sums to that bound. Groups are disjoint or nested, so that all t are found exactly,
    segment by segment of piecewise linear functions. A floor also lifts weights of 0; where clients
    with a weight cannot have all of it, the others share the rest equally.

    Args:
        cap: largest weight of an accepted client.
        floor: smallest weight of an accepted client.
        groups: bounds on several clients together, or on one.
        probation: the cap of newcomers.
        quorum: least number of accepted updates.
        note: why the policy is as it is.

    Example:
        >>> Bounds(cap=0.4).apply(torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64))[0]
        tensor([0.4000, 0.4000, 0.2000], dtype=torch.float64)
    """

    # Probation --------------------------------------------------------------------------------

    def first_memory(self, num_clients: int) -> dict[str, Tensor]:
        """Before the first round: the rounds that every client is on probation, [K]."""
        if self.probation is None:
            return {}
        left = torch.zeros(num_clients, dtype=torch.int64)
        left[[int(client) for client in self.probation.clients]] = self.probation.rounds
        return {LEFT: left}

    def memory_after(
        self, memory: Mapping[str, Tensor], accepted: Sequence[int], num_clients: int
    ) -> dict[str, Tensor]:
        """The memory after a round in which these clients' updates were accepted."""
        if self.probation is None:
            return {}
        left = self._left(memory, num_clients).clone()
        left[list(accepted)] -= 1
        return {LEFT: left.clamp(min=0)}

    def newcomers(self, memory: Mapping[str, Tensor], num_clients: int) -> frozenset[int]:
        """The clients on probation."""
        if self.probation is None:
            return frozenset()
        return frozenset(self._left(memory, num_clients).nonzero().flatten().tolist())

    def _left(self, memory: Mapping[str, Tensor], num_clients: int) -> Tensor:
        """Rounds of probation [K]; clients that the memory does not have yet joined since."""
        assert self.probation is not None
        known = memory[LEFT]
        joined = torch.full((num_clients - len(known),), self.probation.rounds, dtype=torch.int64)
        return torch.cat([known, joined])

    # Feasibility and weights ------------------------------------------------------------------

    def check(self, clients: Sequence[int], newcomers: frozenset[int] = frozenset()) -> None:
        """InfeasibleError, with the arithmetic, where no weights of these clients meet the bounds."""
        self._tree(torch.ones(len(clients), dtype=torch.float64), clients, newcomers)

    def apply(
        self,
        weights: Tensor,
        clients: Sequence[int] | None = None,
        newcomers: frozenset[int] = frozenset(),
    ) -> tuple[Tensor, tuple[str, ...]]:
        """Bring weights within the bounds.

        Args:
            weights: sum to 1, [n].
            clients: whose weights they are, by number; None: 0 to n − 1.
            newcomers: the clients on probation.

        Returns:
            The bounded weights [n], and notes. InfeasibleError where no weights meet the bounds.
        """
        clients = range(len(weights)) if clients is None else clients
        nothing = weights < NO_WEIGHT
        tree = self._tree(torch.where(nothing, ALMOST_NONE, weights), clients, newcomers)
        bounded = torch.zeros_like(weights)
        tree.fill(0.0, bounded)
        bounded[nothing & (bounded < NO_WEIGHT)] = 0.0
        notes: tuple[str, ...] = ()
        if bool((nothing & (bounded > tree.floors + ROUNDING)).any()):
            some = _clients(int((~nothing).sum()))
            notes = (f"bounds: weight of {some} alone cannot meet them: the others get the rest",)
        return bounded, notes

    def limits(
        self, clients: Sequence[int], newcomers: frozenset[int] = frozenset()
    ) -> tuple[Tensor, Tensor]:
        """Floors and caps [n] of single clients."""
        floors = torch.full((len(clients),), self.floor, dtype=torch.float64)
        caps = torch.full((len(clients),), self.cap, dtype=torch.float64)
        row_of = {client: row for row, client in enumerate(clients)}
        for group in self.groups:
            row = row_of.get(int(group.clients[0])) if len(group.clients) == 1 else None
            if row is None:
                continue
            floors[row] = self.floor if group.floor is None else group.floor
            caps[row] = self.cap if group.cap is None else group.cap
        if self.probation is not None:
            rows = [row for row, client in enumerate(clients) if client in newcomers]
            caps[rows] = caps[rows].clamp(max=self.probation.cap)
            floors[rows] = 0.0
        return floors, caps

    def _tree(
        self, weights: Tensor, clients: Sequence[int], newcomers: frozenset[int]
    ) -> _GroupNode:
        """The clients in their groups; InfeasibleError where the bounds of a group cannot be met."""
        if len(clients) < self.quorum:
            raise InfeasibleError(f"quorum = {self.quorum}, and there are {_clients(len(clients))}")
        floors, caps = self.limits(clients, newcomers)
        for row in (floors > caps).nonzero().flatten().tolist():
            own = f"its floor {float(floors[row]):g} is above its cap {float(caps[row]):g}"
            raise InfeasibleError(f"client {clients[row]}: {own}")
        shared = [group for group in self.groups if len(group.clients) > 1]
        shared.sort(key=lambda group: len(group.clients))
        free = dict.fromkeys(range(len(clients)))  # rows that are in no group yet, in their order
        nodes: list[tuple[frozenset[int], _GroupNode]] = []
        for group in shared:
            members = frozenset(map(int, group.clients))
            inner = [(own, node) for own, node in nodes if own <= members]
            nodes = [one for one in nodes if one not in inner]
            rows = [row for row in free if clients[row] in members]
            for row in rows:
                del free[row]
            floor = group.floor or 0.0
            cap = 1.0 if group.cap is None else group.cap
            children = [node for _, node in inner]
            node = _GroupNode(group.called, rows, children, floor, cap, weights, floors, caps)
            nodes.append((members, node))
        children = [node for _, node in nodes]
        return _GroupNode("", list(free), children, 1.0, 1.0, weights, floors, caps)


class _GroupNode:
    """Clients and groups with bounds on their sum; the root is all of them, with the sum 1."""

    low: float  # the least and the most that it can have
    high: float

    def __init__(
        self,
        name: str,
        rows: Sequence[int],
        children: Sequence[_GroupNode],
        floor: float,
        cap: float,
        weights: Tensor,
        floors: Tensor,
        caps: Tensor,
    ) -> None:
        self.name = name
        self.rows = torch.tensor(rows, dtype=torch.int64)
        self.children = children
        self.floors = floors
        self._weights = weights[self.rows]
        self._lows = floors[self.rows]
        self._highs = caps[self.rows]
        low = float(self._lows.sum()) + sum(child.low for child in children)
        high = float(self._highs.sum()) + sum(child.high for child in children)
        self._refuse_infeasible(floor, cap, low, high)
        self.low = max(low, floor)
        self.high = min(high, cap)
        self._at_low = self.factor(self.low) if self.low > low else 0.0
        self._at_high = self.factor(self.high) if self.high < high else None

    def value(self, factor: float) -> float:
        """The sum of its weights where they are multiplied by a factor."""
        return min(max(self._unbounded(factor), self.low), self.high)

    def factor(self, total: float) -> float:
        """The factor with which its weights sum to a total; exact, between two points."""
        points = sorted({0.0, *self._points()})
        index = bisect_left(points, total, key=self._unbounded)
        if index == len(points):  # the total is the most it can have, but for rounding
            return points[-1]
        if index == 0:
            return points[0]
        start, end = points[index - 1], points[index]
        before, after = self._unbounded(start), self._unbounded(end)
        return start + (end - start) * (total - before) / (after - before)

    def fill(self, factor: float, into: Tensor) -> None:
        """Write its weights [n] for a factor."""
        unbounded = self._unbounded(factor)
        if unbounded < self.low:
            factor = self._at_low
        elif unbounded > self.high and self._at_high is not None:
            factor = self._at_high
        into[self.rows] = self._own(factor)
        for child in self.children:
            child.fill(factor, into)

    def _own(self, factor: float) -> Tensor:
        return (factor * self._weights).clamp(self._lows, self._highs)

    def _unbounded(self, factor: float) -> float:
        return float(self._own(factor).sum()) + sum(child.value(factor) for child in self.children)

    def _points(self) -> list[float]:
        """The factors at which the sum changes its slope: a client or a group reaches a bound."""
        points = [*(self._lows / self._weights).tolist(), *(self._highs / self._weights).tolist()]
        for child in self.children:
            points += [*child._points(), child._at_low]
            if child._at_high is not None:
                points.append(child._at_high)
        return points

    def _refuse_infeasible(self, floor: float, cap: float, low: float, high: float) -> None:
        where = f"group {self.name!r}" if self.name else "all clients"
        if floor > cap:
            raise InfeasibleError(f"{where}: its floor {floor:g} is above its cap {cap:g}")
        if floor and not len(self.rows) and not self.children:
            raise InfeasibleError(f"{where}: none takes part, and its floor is {floor:g}")
        if low > cap + ROUNDING:
            floors = self._sum(self._lows, lambda child: child.low, low)
            raise InfeasibleError(
                f"{where}: the floors sum to {floors}, more than {self._limit('cap', cap)}"
            )
        if high < floor - ROUNDING:
            caps = self._sum(self._highs, lambda child: child.high, high)
            raise InfeasibleError(
                f"{where}: the caps sum to {caps}, less than {self._limit('floor', floor)}"
            )

    def _limit(self, what: str, value: float) -> str:
        return f"its {what} {value:g}" if self.name else "1"

    def _sum(self, values: Tensor, of_child: Callable[[_GroupNode], float], total: float) -> str:
        """A sum written out: `2 × 0.3 + 0.2 (group 'rural') = 0.8`."""
        counted = Counter(values.tolist())
        terms = [f"{count} × {value:g}" for value, count in counted.items()]
        terms += [f"{of_child(child):g} (group {child.name!r})" for child in self.children]
        return f"{' + '.join(terms)} = {total:g}"


def _clients(count: int) -> str:
    return "1 client" if count == 1 else f"{count} clients"
