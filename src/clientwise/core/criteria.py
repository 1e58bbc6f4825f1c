"""Criteria: numbers measured about a client, by the client itself or by the server when an update arrives.

A criterion is a function of n clients that returns n values, zero or more; larger is better:

    @criterion("label_diversity", measured_by="client")
    def label_diversity(clients: ClientFacts) -> Tensor:
        '''Number of distinct labels a client holds (P1 5.1, LD).'''
        return (clients.label_counts > 0).sum(-1)

Its keyword-only parameters are its options in TOML. Of what a client measures, only these values leave
the client. The server refuses an update whose value is outside [0, `high`].

Functions of `ClientFacts` run on the client, functions of `Arrivals` on the server.

A new criterion goes into this file, or into a plugin. `python docs/make_config.py` lists it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from ..registry import Declaration, Names, Need, NonNegativeFloat, Part, PositiveFloat, Registry
from .clock import Devices
from .objective.metrics import METRICS, highest_performance, performance
from .objective.problem import Problem
from .training import part_of
from .types import Evaluation, LocalTraining, ModelSpec

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


class RunningMean:
    """value ← 0.8·value + 0.2·gain of clients that answered, 0 for a refused update; starts at 1.

    Args:
        gains: of the accepted clients [n], from the outcome of a round.
    """

    def __init__(self, gains: Callable[[Outcome], Tensor]) -> None:
        self._gains = gains

    def first(self, num_clients: int) -> Tensor:
        """1 for every client [K]."""
        return torch.ones(num_clients)

    def after(self, remembered: Tensor, outcome: Outcome) -> Tensor:
        """The values [K] of all clients after a round."""
        result = remembered.clone()
        accepted = list(outcome.client_ids)
        refused = [client for client in outcome.refused if 0 <= client < len(result)]
        result[accepted + refused] *= 0.8
        result[accepted] += 0.2 * self._gains(outcome).to(result)
        return result


# A number, or a function of the problem and the criterion's options
Upper = float | Callable[..., float]
Measure = Callable[..., Tensor]
CRITERIA: Registry[Measure] = Registry("criterion", "criteria", "What is measured about a client")


@dataclass(frozen=True)
class CriterionDeclaration(Declaration):
    """What a criterion says about itself."""

    measured_by: Literal["client", "server"] = "server"
    upper: Upper = ANY
    memory: RunningMean | None = None
    alike: bool = False  # constant across clients by design
    fixed: bool = False  # a fact of the client's data, which stays the same from round to round


@dataclass(frozen=True, kw_only=True)
class Criterion(CriterionDeclaration):
    """A criterion with its options, ready to measure."""

    part: Part
    measure: Callable[[Any], Tensor]

    @property
    def name(self) -> str:
        """The column's name: the label, or the criterion's name."""
        return self.part.called

    @property
    def fact(self) -> str:
        """The attribute of the clients that it takes as it is; of others, empty."""
        return str(self.part.options["of"]) if self.part.name == "attribute" else ""

    def high(self, problem: Problem) -> float:
        """The largest value that can be true."""
        return self.upper(problem, **self.part.options) if callable(self.upper) else self.upper

    def column(self, seen: Any, clients: int) -> Tensor:
        """The values of so many clients [n] in float64, on the CPU; TypeError for anything but a column."""
        values = self.measure(seen)
        if isinstance(values, Tensor) and tuple(values.shape) == (clients,):
            return values.double().cpu()
        given = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(
            f"{self.name} must return a tensor with one value per client, returned {given} for {clients}"
        )


def criterion(
    name: str,
    *,
    measured_by: Literal["client", "server"],
    high: Upper = ANY,
    needs: Iterable[Need] = (),
    memory: RunningMean | None = None,
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
        upper=high,
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
    known = CRITERIA.options(name)
    given = {one.name: one.default for one in known if not one.required} | options
    part = Part(name, given, label)
    stated = vars(declared) | {"needs": CRITERIA.needs(part)}
    return Criterion(**stated, part=part, measure=partial(CRITERIA.get(name), **given))


def is_fixed(part: Part) -> bool:
    """Whether a criterion is a fact of the client's data, the same in every round."""
    return getattr(CRITERIA.declared(part.name), "fixed", False)


def is_claimed(part: Part) -> bool:
    """Whether a criterion's value is the client's own claim; otherwise the server measures it."""
    return getattr(CRITERIA.declared(part.name), "measured_by", "server") == "client"


def measure_clients(criteria: Sequence[Part], clients: ClientFacts) -> dict[str, Tensor]:
    """Measure all criteria that clients are asked for: by label, each [n] in float64. Runs on the clients."""
    measured = {}
    for part in criteria:
        made = make_criterion(part.name, part.label, **part.options)
        measured[made.name] = made.column(clients, len(clients.num_samples))
    return measured


@criterion("dataset_size", measured_by="client", fixed=True)
def dataset_size(clients: ClientFacts) -> Tensor:
    """Number of training samples (DS; alone it is FedAvg).

    Returns:
        Values [n], zero or more.
    """
    return clients.num_samples


@criterion(
    "label_diversity",
    measured_by="client",
    high=lambda problem: problem.num_classes,
    needs={"classes"},
    fixed=True,
)
def label_diversity(clients: ClientFacts) -> Tensor:
    """Number of distinct labels a client holds (P1 5.1, LD).

    Returns:
        Values [n], 0 to C, the number of classes.
    """
    return (clients.label_counts > 0).sum(-1)


@criterion(
    "class_balance",
    measured_by="client",
    high=1.0,
    needs={"classes"},
    fixed=True,
)
def class_balance(clients: ClientFacts) -> Tensor:
    """Binary: min(#pos, #neg)/max(#pos, #neg) (P1 Eq. 9, CB). More classes: label entropy divided by log C.

    Returns:
        Values [n] in [0, 1].
    """
    counts = clients.label_counts.double()
    if counts.shape[-1] == 2:
        return counts.amin(-1) / counts.amax(-1).clamp(min=1)
    share = counts / counts.sum(-1, keepdim=True).clamp(min=1)
    entropy: Tensor = torch.special.entr(share).sum(-1)
    return (entropy / math.log(counts.shape[-1])).clamp(max=1.0)


@criterion("sharpness", measured_by="client", high=1.0, fixed=True)
def sharpness(clients: ClientFacts, *, blurry: str) -> Tensor:
    """Fraction of images not marked by the sample attribute `blurry` (P1 5.2, IS).

    Args:
        clients: n clients with images.
        blurry: name of a sample attribute that is above 0 for blurry images.

    Returns:
        Values [n] in [0, 1].
    """
    marks = clients.sample_attributes
    if blurry not in marks:
        raise KeyError(f"the data has no sample attribute {blurry!r}; it has {sorted(marks)}")
    return clients.mean_over_samples((marks[blurry] <= 0).double())


@criterion("training_loss", measured_by="client", high=1.0)
def training_loss(clients: ClientFacts) -> Tensor:
    """1/(1 + loss) of the last local epoch: clients whose model fits their data weigh more.

    Returns:
        Values [n] in (0, 1].
    """
    return 1.0 / (1.0 + clients.training_loss.double())


@criterion("start_loss", measured_by="client")
def start_loss(clients: ClientFacts) -> Tensor:
    """Loss of the received model on the client's training samples, before it trains (q-FedAvg, FOCUS).

    Returns:
        Values [n], zero or more.
    """
    if clients.load_start_loss is None:
        raise KeyError("start_loss needs clients that clientwise trains")
    return clients.load_start_loss()


@criterion("local_steps", measured_by="client", fixed=True)
def local_steps(clients: ClientFacts) -> Tensor:
    """Local steps τ; with momentum or a proximal term, as many plain steps (FedNova's ‖a‖₁, Wang et al., 2020).

    Returns:
        Values [n], zero or more.
    """
    training = clients.training
    if training is None:
        raise KeyError("local_steps needs clients that clientwise trains")
    steps = training.num_steps(clients.num_samples).double()
    momentum: float = part_of(training.optimizer).options.get("momentum", 0.0)
    if momentum:
        # Σ_t (1 − ρ^t)/(1 − ρ): an early gradient still moves the model in later steps
        rest = momentum * (1 - momentum**steps) / (1 - momentum)
        return (steps - rest) / (1 - momentum)
    if training.proximal:
        # Σ_t (1 − ημ)^t: later steps pull an early gradient back
        kept = 1 - training.learning_rate * training.proximal
        return (1 - kept**steps) / (1 - kept)
    return steps


def _agreement(outcome: Outcome) -> Tensor:
    return agreement_with_others(outcome.updates).clamp(0.0, 1.0)


def _in_time(outcome: Outcome) -> Tensor:
    return torch.tensor([float(client not in outcome.late) for client in outcome.client_ids])


@criterion("trust", measured_by="server", high=1.0, memory=RunningMean(_agreement))
def trust(arrivals: Arrivals) -> Tensor:
    """Running mean of the agreement between a client's updates and those of the others; starts at 1.

    After a round, trust ← 0.8·trust + 0.2·agreement. The agreement is the cosine between the client's
    update and the mean direction of the others'. It is 0 where the cosine is negative, and for refused
    updates. Every client has one vote, whatever the norm of its update or its weight.

    Returns:
        Values [n] in [0, 1].
    """
    return arrivals.memory["trust"]


def agreement_with_others(updates: Sequence[Tensor]) -> Tensor:
    """Cosine [n] between each update and the sum of the others' directions; 1 for a single client.

    >>> north, east = torch.tensor([0.0, 2.0]), torch.tensor([3.0, 0.0])
    >>> agreement_with_others([north, north, east])
    tensor([0.7071, 0.7071, 0.0000])
    """
    if len(updates) < 2:
        return torch.ones(len(updates))
    total = torch.zeros_like(updates[0], dtype=torch.float64)
    for update in updates:
        total += _direction(update)
    cosines = []
    for (
        update
    ) in updates:  # computed again: in float64, all directions take twice what the updates do
        mine = _direction(update)
        cosines.append(float(cosine_similarity(mine, total - mine, dim=0)))
    return torch.tensor(cosines)


def _direction(update: Tensor) -> Tensor:
    return normalize(update.double(), dim=0)


@criterion("compute_speed", measured_by="client", high=1.0, needs={"clock"})
def compute_speed(clients: ClientFacts, *, fast: PositiveFloat = 1000.0) -> Tensor:
    """Training samples per second, divided by `fast`; 1 at most.

    Args:
        clients: n clients with devices, or with training times of their own.
        fast: samples per second from which on more does not count.

    Returns:
        Values [n] in [0, 1].
    """
    training = clients.training
    seconds = clients.seconds
    if clients.device is not None:
        speed = clients.device.speed
    elif seconds is not None and training is not None:  # by its own clock
        speed = training.epochs * clients.num_samples / seconds.clamp(min=1e-6)
    else:
        raise KeyError("compute_speed needs to know the clients' devices: see docs/devices.md")
    return (speed / fast).clamp(max=1.0)


@criterion("response_time", measured_by="server", high=1.0, needs={"clock"})
def response_time(arrivals: Arrivals, *, half: PositiveFloat = 60.0) -> Tensor:
    """1/(1 + t/`half`) for a response after t seconds by the server's clock: 1 at once, 1/2 after `half` seconds.

    Args:
        arrivals: n clients with response times.
        half: seconds after which the value is 1/2.

    Returns:
        Values [n] in (0, 1].
    """
    if arrivals.seconds is None:
        raise KeyError("response_time needs a server that measures response times")
    return 1 / (1 + arrivals.seconds / half)


@criterion("staleness", measured_by="server", high=1.0, needs={"clock"})
def staleness(arrivals: Arrivals, *, power: NonNegativeFloat = 0.5) -> Tensor:
    """(1 + age)^−`power` for an update that was begun `age` rounds ago: 1 for one of this round (FedBuff).

    Args:
        arrivals: n updates and their ages in rounds.
        power: how fast the value falls with the age; 0: not at all.

    Returns:
        Values [n] in (0, 1].
    """
    if arrivals.ages is None:
        raise KeyError("staleness needs a server that knows the ages of updates")
    return (1 + arrivals.ages) ** -power


@criterion(
    "timeliness", measured_by="server", high=1.0, needs={"clock"}, memory=RunningMean(_in_time)
)
def timeliness(arrivals: Arrivals) -> Tensor:
    """Running mean of how often a client responded within its round and was not refused; starts at 1.

    After a round, timeliness ← 0.8·timeliness + 0.2 for clients that responded in time. It is
    0.8·timeliness for clients that were late, dropped out or were refused.

    Returns:
        Values [n] in [0, 1].
    """
    return arrivals.memory["timeliness"]


SHORT_ROW = 2**15  # values that PyTorch adds up in one thread
CACHED = 2**17  # values compared at once, so that they stay in a core's cache
HONEST = "honest, as the simulation knows"  # attribute of the clients, in simulations


@criterion("uniform", measured_by="server", high=1.0, alike=True)
def uniform(arrivals: Arrivals) -> Tensor:
    """1 for all clients: the plain mean of the models, whatever the sizes of the datasets."""
    return torch.ones(len(arrivals.client_ids))


@criterion("model_divergence", measured_by="server", high=1.0)
def model_divergence(arrivals: Arrivals, *, per_layer: bool = False) -> Tensor:
    """1/√(‖Θ − Θ_a‖₂ + 1) (P1 5.1, MW); `per_layer`: the mean norm over the kernels, as in the papers' code.

    Args:
        arrivals: models [n, d] and the global model [d]; buffers do not count.
        per_layer: take the mean of the norms of all tensors with two or more dimensions.

    Returns:
        Values [n] in (0, 1]: 1 for a model that did not move.
    """
    spans = [slice(arrivals.spec.num_parameters)]
    if per_layer:
        kernels = [layer for layer in arrivals.spec.layers if len(layer.shape) > 1]
        spans = [slice(layer.start, layer.stop) for layer in kernels]
    models = arrivals.models
    at_once = len(models) if models.is_cuda else CACHED // models.shape[1]
    norms = []
    for some in torch.split(models, max(1, at_once)):
        difference = some - arrivals.global_model  # [at_once, d]
        norms.append(torch.stack([_row_norms(difference[:, span]) for span in spans]).mean(0))
    return (torch.cat(norms).double() + 1).rsqrt()


def _row_norms(rows: Tensor) -> Tensor:
    """Norms [n]. On a CPU their last bits do not depend on the number of rows.

    Where PyTorch shares a long row among threads, they would: such rows come one by one. On a GPU that would be a
    launch for every client.
    """
    if rows.is_cuda or rows.shape[1] <= SHORT_ROW:
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
        return norms
    return torch.stack([torch.linalg.vector_norm(row) for row in rows])


@criterion(
    "server_performance",
    measured_by="server",
    needs={"server_set"},
    high=lambda problem, metric: min(ANY, highest_performance(metric or problem.weighed_by)),
)
def server_performance(
    arrivals: Arrivals, *, metric: Annotated[str | None, Names(METRICS)] = None
) -> Tensor:
    """The model's performance on the server's set (P3): accuracy unless `metric` says otherwise; errors as 1/error.

    Args:
        arrivals: models [n, d], and who evaluates them.
        metric: a registered metric; None takes the problem's: accuracy, RMSE (MAPE if that is the metric), concordance.

    Returns:
        Values [n]: the metric, or 1/(error + 10⁻⁶).
    """
    return performance(metric or arrivals.metric, arrivals.evaluation().counts)


@criterion("server_cosine", measured_by="server", high=1.0, needs={"server_samples"})
def server_cosine(arrivals: Arrivals) -> Tensor:
    """max(0, cos(Δ_a, Δ_s)) with Δ_s, the update of the server's own training (FLTrust, Cao et al., 2021).

    Returns:
        Values [n] in [0, 1].
    """
    if arrivals.server_update is None:
        raise KeyError("server_cosine needs a server that trains on samples of its own")
    count = arrivals.spec.num_parameters
    trusted = arrivals.server_update()[:count].double()
    updates = (arrivals.models - arrivals.global_model)[:, :count]
    # Row by row: on a GPU the last bits may otherwise depend on the number of rows.
    cosines = [cosine_similarity(row.double(), trusted, dim=0) for row in updates]
    return torch.stack(cosines).clamp(0.0, 1.0)


@criterion("attribute", measured_by="server", high=lambda problem, of, high: high)
def attribute(arrivals: Arrivals, *, of: str, high: PositiveFloat = ANY) -> Tensor:
    """A boolean or graded fact about the client that the server knows (P1 4.2, commercial targets), by its name.

    Args:
        arrivals: n clients and their attributes.
        of: name of the attribute.
        high: largest possible value: 1 for a share, 120 for an age.

    Returns:
        Values [n] in [0, high].
    """
    if of in arrivals.attributes:
        return arrivals.attributes[of]
    known = sorted(arrivals.attributes.keys() - {HONEST})  # which only simulations have
    raise KeyError(f"the clients have no attribute {of!r}; they have {known}")


@criterion("honest", measured_by="server", high=1.0, needs={"simulation"})
def honest(arrivals: Arrivals) -> Tensor:
    """1 for honest clients and 0 for hostile ones: a control, for simulations only.

    Combine it with what the method weighs by: `criteria = ["honest", "dataset_size"]`, `score = "product"`.
    """
    if HONEST not in arrivals.attributes:
        raise KeyError(
            "honest is for simulations: elsewhere it is unknown which clients are hostile"
        )
    return arrivals.attributes[HONEST]


def fact_columns(attributes: Mapping[str, Any]) -> dict[str, Tensor]:
    """Facts about n clients, numbers or booleans, as columns of numbers [n]; yes is 1.

    >>> fact_columns({"member": [True, False]})
    {'member': tensor([1., 0.], dtype=torch.float64)}
    """
    return {name: torch.as_tensor(values).double() for name, values in attributes.items()}
