"""What every criterion shares: what it is measured from, its declaration, and the registry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from ...registry import Declaration, Need, Part, Registry
from ..clock import Devices
from ..objective.problem import Problem
from ..types import Evaluation, LocalTraining, ModelSpec

ANY = 1e12  # the default upper end: no honest measurement exceeds it, and products of a few stay finite


@dataclass(frozen=True)
class ClientFacts:
    """What n clients know of themselves. It stays with them; only criteria computed from it are sent."""

    num_samples: Tensor  # [n] training samples
    label_counts: Tensor  # [n, C] training samples per class
    training_loss: Tensor  # [n] mean loss in the last local epoch
    attributes: Mapping[str, Tensor]  # facts about the client, each [n]
    sample_attributes: Mapping[str, Tensor]  # facts about the samples, each [N]
    load_inputs: Callable[[], Tensor]  # loads the samples, which few criteria need
    training: LocalTraining | None = None  # the task; None if clientwise does not train the clients
    # The received model's mean loss on their samples [n]
    load_start_loss: Callable[[], Tensor] | None = None
    device: Devices | None = None  # what their devices can do; None if unknown
    seconds: Tensor | None = None  # [n] training time by their own clocks

    @cached_property
    def inputs(self) -> Tensor:
        """All training samples of the n clients [N, ...], as the model sees them."""
        return self.load_inputs()

    @cached_property
    def owner(self) -> Tensor:
        """Which of the n clients holds each sample [N]."""
        return torch.repeat_interleave(torch.arange(len(self.num_samples)), self.num_samples)

    def mean_over_samples(self, values: Tensor) -> Tensor:
        """Mean per client [n] of a value per sample [N]; zero for a client without samples."""
        sums = torch.zeros(len(self.num_samples), dtype=torch.float64, device=values.device)
        sums.index_add_(0, self.owner.to(values.device), values.double())
        return sums.cpu() / self.num_samples.clamp(min=1)


@dataclass(frozen=True)
class Arrivals:
    """What the server sees when n updates arrive: a chunk of the cohort, or all of it for `whole_cohort`."""

    client_ids: tuple[int, ...]
    models: Tensor  # [n, d]
    global_model: Tensor  # [d]
    spec: ModelSpec
    # Evaluates models [c, d] on the server's set, or by the clients
    judge: Callable[[Tensor], Evaluation]
    # Of these clients by criterion, each [n]
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    attributes: Mapping[str, Tensor] = field(default_factory=dict)  # known to the server, each [n]
    server_update: Callable[[], Tensor] | None = None  # [d] the update of the server's own training
    metric: str = "accuracy"  # the problem's usual metric
    seconds: Tensor | None = None  # [n] from request to response
    ages: Tensor | None = None  # [n] rounds since each was asked
    _cache: list[Evaluation] = field(default_factory=list)

    def evaluation(self) -> Evaluation:
        """The models on the server's set; evaluated once, however many criteria ask."""
        if not self._cache:
            self._cache.append(self.judge(self.models))
        return self._cache[0]


@dataclass(frozen=True)
class Outcome:
    """Outcome of a round, for criteria with a memory."""

    client_ids: Sequence[int]  # accepted
    updates: Sequence[Tensor]  # of each, without the buffers
    refused: Sequence[int]
    late: Collection[int] = ()  # of the accepted, those that were asked in an earlier round


class Memory(Protocol):
    """A value per client that a criterion keeps from round to round."""

    def first(self, num_clients: int) -> Tensor:
        """Values [K] before the first round."""
        ...

    def after(self, remembered: Tensor, outcome: Outcome) -> Tensor:
        """Values [K] after a round."""
        ...


# A number, or a function of the problem and the criterion's options
Upper = float | Callable[..., float]
Measure = Callable[..., Tensor]
CRITERIA: Registry[Measure] = Registry("criterion", "criteria", "What is measured about a client")


@dataclass(frozen=True)
class CriterionDeclaration(Declaration):
    """What a criterion says about itself."""

    measured_by: Literal["client", "server"] = "server"
    high: Upper = ANY
    memory: Memory | None = None
    alike: bool = False  # constant across clients by design
    fixed: bool = False  # a fact of the client's data, which stays the same from round to round


@dataclass(frozen=True)
class Criterion:
    """A criterion with its options, ready to measure."""

    part: Part
    measure: Callable[[Any], Tensor]
    measured_by: Literal["client", "server"]
    upper: Upper
    needs: frozenset[Need]
    memory: Memory | None
    alike: bool

    @property
    def name(self) -> str:
        """The column's name: the label, or the criterion's name."""
        return self.part.called

    def high(self, problem: Problem) -> float:
        """The largest value that can be true."""
        return self.upper(problem, **self.part.options) if callable(self.upper) else self.upper

    def fault_in(self, values: object, clients: int, problem: Problem) -> str | None:
        """Why the values of so many clients cannot be right; None: one for each, finite, from 0 to `high`."""
        if not isinstance(values, Tensor) or tuple(values.shape) != (clients,):
            given = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            return f"must return a tensor with one value per client, returned {given} for {clients}"
        if not bool((values.isfinite() & (values >= 0)).all()):
            return f"must be finite and not negative, is {values.tolist()}"
        high = self.high(problem)
        if float(values.max()) > high:
            return f"= {float(values.max()):g} for one of the clients, above its bound {high:g}"
        return None


def criterion(
    name: str,
    *,
    measured_by: Literal["client", "server"],
    high: Upper = ANY,
    needs: Iterable[Need] = (),
    memory: Memory | None = None,
    alike: bool = False,
    fixed: bool = False,
) -> Callable[[Measure], Measure]:
    """Decorator: register a criterion.

    Args:
        name: its name in TOML.
        measured_by: "client" for functions of `ClientFacts`, "server" for functions of `Arrivals`.
        high: the largest possible value: a number, or a function of the problem and the options.
        needs: what it needs to run. With "whole_cohort" the server calls it once per round with all
            clients, instead of chunk by chunk.
        memory: keeps a value per client from round to round; see `trust`.
        alike: it is constant across clients by design. For others the record notes when that happens.
        fixed: it is a fact of the client's data and stays the same from round to round. In a
            deployment, a client that claims another value is refused.
    """
    if measured_by == "client" and "whole_cohort" in needs:
        raise ValueError(
            f"criterion {name!r}: a client cannot see the whole cohort; measure it on the server"
        )
    every_need = set(needs)
    if memory:
        every_need.add("models")  # memories are updated by the models of the round
    declared = CriterionDeclaration(
        frozenset(every_need),
        measured_by=measured_by,
        high=high,
        memory=memory,
        alike=alike,
        fixed=fixed,
    )
    return CRITERIA.register(name, declared)


def make_criterion(name: str, label: str = "", /, **options: Any) -> Criterion:
    """A registered criterion with its options; options that are not given have their defaults."""
    declared = CRITERIA.declared(name)
    if not isinstance(declared, CriterionDeclaration):
        raise TypeError(
            f"criterion {name!r} does not declare measured_by: register it with @criterion"
        )
    defaults = {
        option.name: option.default for option in CRITERIA.options(name) if not option.required
    }
    given = defaults | options
    part = Part(name, given, label)
    return Criterion(
        part=part,
        measure=partial(CRITERIA.get(name), **given),
        measured_by=declared.measured_by,
        upper=declared.high,
        needs=CRITERIA.needs(part),
        memory=declared.memory,
        alike=declared.alike,
    )


def is_fixed(part: Part) -> bool:
    """Whether a criterion is a fact of the client's data, the same in every round."""
    declared = CRITERIA.declared(part.name)
    return isinstance(declared, CriterionDeclaration) and declared.fixed


def is_claimed(part: Part) -> bool:
    """Whether a criterion's value is the client's own claim; otherwise the server measures it."""
    declared = CRITERIA.declared(part.name)
    return isinstance(declared, CriterionDeclaration) and declared.measured_by == "client"


def source_of(part: Part) -> str:
    """Where a criterion's value comes from, in words.

    >>> source_of(Part("dataset_size", {})), source_of(Part("model_divergence", {}))
    ('claimed by the client', 'measured by the server')
    """
    return "claimed by the client" if is_claimed(part) else "measured by the server"


def measure_clients(criteria: Sequence[Part], clients: ClientFacts) -> dict[str, Tensor]:
    """Measure all criteria that clients are asked for: by label, each [n] in float64. Runs on the clients."""
    measured = {}
    for part in criteria:
        values = make_criterion(part.name, **part.options).measure(clients)
        measured[part.called] = values.double().cpu()
    return measured
