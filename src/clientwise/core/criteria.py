"""Criteria: what is measured about a client. Each says who measures it, the client or the server on arrival.

A criterion is a function of a batch of n clients that returns n values, zero or more, the larger the better:

    @criterion("label_diversity", measured_by="client")
    def label_diversity(clients: ClientFacts) -> Tensor:
        '''Number of distinct labels a client holds (P1 5.1, LD).'''
        return (clients.label_counts > 0).sum(-1)

Its keyword-only parameters are its options in TOML. What the client measures never leaves it but as that number;
the server checks it against the range [0, `high`] before it counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any, Literal, Protocol

import torch
from annotated_types import MinLen
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from ..registry import Declaration, Names, Need, NonNegativeFloat, Part, PositiveFloat, Registry
from .clock import Devices
from .metrics import METRICS, highest_performance, performance
from .problem import Problem
from .types import Evaluation, LocalTraining, ModelSpec

ANY = 1e12  # without another bound: no honest measurement exceeds it, and no sum or product of a few overflows
Fact = str | bool | float  # about a client: a word, yes or no, a number
MOST_WORDS = 1_000  # for one attribute: each takes a column
HONEST = "honest, as the simulation knows"  # an attribute of the clients


@dataclass(frozen=True)
class ClientFacts:
    """What n clients know about themselves. It stays with them: only the criteria computed from it are sent."""

    num_samples: Tensor  # [n] training samples
    label_counts: Tensor  # [n, C] training samples per class
    training_loss: Tensor  # [n] mean loss in the last local epoch
    attributes: Mapping[str, Tensor]  # facts about the client, each [n]
    sample_attributes: Mapping[str, Tensor]  # facts about the samples, each [N]
    load_inputs: Callable[[], Tensor]  # the samples themselves; a function, since few criteria need them
    training: LocalTraining | None = None  # how they were asked to train; None where clientwise does not train them
    load_start_loss: Callable[[], Tensor] | None = None  # the received model's mean loss on their samples [n]; likewise
    device: Devices | None = None  # what their devices can do, each [n]; None where nobody knows
    seconds: Tensor | None = None  # [n] how long they trained, by their own clocks

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
    """What the server sees when n updates arrive: some of a cohort, or all where a criterion needs that."""

    client_ids: tuple[int, ...]
    models: Tensor  # [n, d]
    global_model: Tensor  # [d]
    spec: ModelSpec
    judge: Callable[[Tensor], Evaluation]  # evaluates models [c, d] on the server's set, or by the clients
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # what criteria remember of these clients, each [n]
    attributes: Mapping[str, Tensor] = field(default_factory=dict)  # what the server knows about them, each [n]
    server_update: Callable[[], Tensor] | None = None  # [d] how far the server's own training moves the global model
    metric: str = "accuracy"  # the problem's
    seconds: Tensor | None = None  # [n] from being asked to having answered
    ages: Tensor | None = None  # [n] rounds since each was asked
    _cache: list[Evaluation] = field(default_factory=list)

    def evaluation(self) -> Evaluation:
        """The arrived models on the server's set; evaluated once however many criteria ask."""
        if not self._cache:
            self._cache.append(self.judge(self.models))
        return self._cache[0]


@dataclass(frozen=True)
class Outcome:
    """What a criterion that remembers learns at the end of a round."""

    client_ids: Sequence[int]  # accepted
    updates: Sequence[Tensor]  # of each, how far its parameters moved; without the buffers, which agree in any case
    refused: Sequence[int]
    late: Collection[int] = ()  # of the accepted, those who were asked in an earlier round


class Memory(Protocol):
    """What a criterion remembers of every client from round to round."""

    def first(self, num_clients: int) -> Tensor:
        """Of all clients [K], before the first round."""
        ...

    def after(self, remembered: Tensor, outcome: Outcome) -> Tensor:
        """The same after a round."""
        ...


Upper = float | Callable[..., float]  # a number, or a function of the problem and the criterion's options
Measure = Callable[..., Tensor]
CRITERIA: Registry[Measure] = Registry("criterion", "criteria", "What is measured about a client")


@dataclass(frozen=True)
class CriterionDeclaration(Declaration):
    """What a criterion says about itself."""

    measured_by: Literal["client", "server"] = "server"
    high: Upper = ANY
    memory: Memory | None = None
    alike: bool = False  # the same for everybody by design


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
        """What the column is called."""
        return self.part.called

    def high(self, problem: Problem) -> float:
        """The largest value that can be true."""
        return self.upper(problem, **self.part.options) if callable(self.upper) else self.upper


def criterion(
    name: str,
    *,
    measured_by: Literal["client", "server"],
    high: Upper = ANY,
    needs: Iterable[Need] = (),
    memory: Memory | None = None,
    alike: bool = False,
) -> Callable[[Measure], Measure]:
    """Decorator: register a criterion.

    `high` is the largest value that can be true: a number, or a function of the problem and the criterion's options.
    `needs={"whole_cohort"}` has a server-side criterion called once a round with all clients instead of chunk by chunk.
    `memory` keeps a value per client from round to round (see `trust`). `alike` says that the criterion is the same for
    everybody by design; of others the record says so when it happens.
    """
    if measured_by == "client" and "whole_cohort" in needs:
        raise ValueError(f"criterion {name!r}: a client never sees the whole cohort; measure it on the server")
    every_need = frozenset[Need]({*needs, *(("models",) if memory else ())})  # a round is remembered by its models
    declared = CriterionDeclaration(every_need, measured_by=measured_by, high=high, memory=memory, alike=alike)
    return CRITERIA.register(name, declared)


def make_criterion(name: str, label: str = "", /, **options: Any) -> Criterion:
    """A registered criterion, bound to its options; those not given have their defaults."""
    declared = CRITERIA.declared(name)
    if not isinstance(declared, CriterionDeclaration):
        raise TypeError(f"criterion {name!r} does not say who measures it: register it with @criterion")
    given = {option.name: option.default for option in CRITERIA.options(name) if not option.required} | options
    part, measure = Part(name, given, label), partial(CRITERIA.get(name), **given)
    needs = CRITERIA.needs(part)
    return Criterion(part, measure, declared.measured_by, declared.high, needs, declared.memory, declared.alike)


def measure_clients(criteria: Sequence[Part], clients: ClientFacts) -> dict[str, Tensor]:
    """All criteria a client is asked for, by name, each [n] in float64. Runs where the data is."""
    return {part.called: make_criterion(part.name, **part.options).measure(clients).double().cpu() for part in criteria}


# Quality of the local data ---------------------------------------------------------------------------------------


@criterion("dataset_size", measured_by="client")
def dataset_size(clients: ClientFacts) -> Tensor:
    """Number of training samples (DS; alone it is FedAvg)."""
    return clients.num_samples


@criterion("label_diversity", measured_by="client", high=lambda problem: problem.num_classes, needs={"classes"})
def label_diversity(clients: ClientFacts) -> Tensor:
    """Number of distinct labels a client holds (P1 5.1, LD)."""
    return (clients.label_counts > 0).sum(-1)


@criterion("class_balance", measured_by="client", high=1.0, needs={"classes"})
def class_balance(clients: ClientFacts) -> Tensor:
    """Binary: min(#pos, #neg)/max(#pos, #neg) (P1 Eq. 9, CB). More classes: label entropy divided by log C."""
    counts = clients.label_counts.double()
    if counts.shape[-1] == 2:
        return counts.amin(-1) / counts.amax(-1).clamp(min=1)
    share = counts / counts.sum(-1, keepdim=True).clamp(min=1)
    entropy: Tensor = torch.special.entr(share).sum(-1)
    return (entropy / math.log(counts.shape[-1])).clamp(max=1.0)


@criterion("sharpness", measured_by="client", high=lambda problem, blurry, high: high if blurry is None else 1.0)
def sharpness(clients: ClientFacts, *, blurry: str | None = None, high: PositiveFloat = 16.0) -> Tensor:
    """Fraction of images not marked by the sample attribute `blurry` (P1 5.2, IS); without one, from the pixels.

    From the pixels it is the mean variance of the Laplacian, the usual measure of focus. Of pixels between 0 and 1 it
    is 16 at most; for others say with `high` what can be true.
    """
    if blurry is not None:
        if blurry not in clients.sample_attributes:
            raise KeyError(f"the data has no sample attribute {blurry!r}; it has {sorted(clients.sample_attributes)}")
        return clients.mean_over_samples((clients.sample_attributes[blurry] <= 0).double())
    return clients.mean_over_samples(laplacian_variance(clients.inputs))


def laplacian_variance(images: Tensor) -> Tensor:
    """Variance of the Laplacian [N] of images [N, C, H, W] (colour is averaged) or [N, H, W]."""
    if images.ndim not in (3, 4):
        raise ValueError(f"sharpness from pixels needs images, got samples of shape {tuple(images.shape[1:])}")
    grey = images.mean(1) if images.ndim == 4 else images
    centre = grey[:, 1:-1, 1:-1]
    neighbours = grey[:, :-2, 1:-1] + grey[:, 2:, 1:-1] + grey[:, 1:-1, :-2] + grey[:, 1:-1, 2:]
    return (neighbours - 4 * centre).flatten(1).var(1, unbiased=False)


@criterion("uniform", measured_by="server", high=1.0, alike=True)
def uniform(arrivals: Arrivals) -> Tensor:
    """1 for everybody: the plain mean of the models, whoever holds how much."""
    return torch.ones(len(arrivals.client_ids))


@criterion("label_closeness", measured_by="client", high=1.0, needs={"classes"})
def label_closeness(clients: ClientFacts) -> Tensor:
    """1 − d with d = ‖label shares − 1/C‖₂, the distance from all classes alike (FedDisco, Ye et al., 2023)."""
    share = clients.label_counts / clients.label_counts.sum(-1, keepdim=True).clamp(min=1)
    distance: Tensor = torch.linalg.vector_norm(share.double() - 1.0 / share.shape[-1], dim=-1)
    return 1.0 - distance  # which is √(1 − 1/C) at most


# Fulfilment of commercial targets --------------------------------------------------------------------------------


@criterion("attribute", measured_by="server", high=lambda problem, of, high: high)
def attribute(arrivals: Arrivals, *, of: str, high: PositiveFloat = ANY) -> Tensor:
    """A boolean or graded fact about the client that the server knows (P1 4.2, commercial targets), by its name.

    `high` is the largest value that can be true: 1 for a share, 120 for an age.
    """
    if of not in arrivals.attributes:
        words = any(name.startswith(category(of, "")) for name in arrivals.attributes)
        known = f"they have {_listed(arrivals.attributes)}"
        hint = "it has words, which the criterion is_one_of weighs" if words else known
        raise KeyError(f"the clients have no attribute {of!r}; {hint}")
    return arrivals.attributes[of]


@criterion("is_one_of", measured_by="server", high=1.0)
def is_one_of(arrivals: Arrivals, *, of: str, values: Annotated[list[Fact], MinLen(1)]) -> Tensor:
    """1 for clients whose attribute `of` is one of `values` (P1 4.2: nationality, job ...), 0 for the others."""
    known, found = arrivals.attributes, torch.zeros(len(arrivals.client_ids), dtype=torch.bool)
    for value in values:
        if of in known and not isinstance(value, str):
            found |= known[of] == value
        elif isinstance(value, str) and category(of, value) in known:
            found |= known[category(of, value)] > 0
        else:
            raise KeyError(f"no client is known to have {of!r} = {value!r}; there are {_listed(known)}")
    return found.double()


def category(attribute: str, word: str) -> str:
    """What the column is called that tells which clients have a word for an attribute.

    >>> category("job", "nurse")
    'job = nurse'
    """
    return f"{attribute} = {word}"


def fact_columns(attributes: Mapping[str, Sequence[Fact]]) -> dict[str, Tensor]:
    """Facts about n clients as numbers, each [n]: yes is 1, and every word has a column of its own.

    >>> {name: column.tolist() for name, column in fact_columns({"job": ["nurse", "cook", "nurse"]}).items()}
    {'job = cook': [0.0, 1.0, 0.0], 'job = nurse': [1.0, 0.0, 1.0]}
    """
    columns: dict[str, Tensor] = {}
    for name, values in attributes.items():
        words = sorted({value for value in values if isinstance(value, str)})
        if not words:
            columns[name] = torch.as_tensor(values).double()
        elif not all(isinstance(value, str) for value in values):
            raise ValueError(f"{name!r} has words and numbers: give every client one or the other")
        elif len(words) > MOST_WORDS:
            raise ValueError(
                f"{name!r} has {len(words):,} different words: more than {MOST_WORDS:,} tell no kinds apart"
            )
        else:
            columns |= {
                category(name, word): torch.tensor([value == word for value in values]).double() for word in words
            }
    return columns


def _listed(attributes: Mapping[str, Tensor]) -> str:
    """Names of attributes for a message, without what only the simulation knows."""
    return str(sorted(attributes.keys() - {HONEST}))


@criterion("honest", measured_by="server", high=1.0, needs={"simulation"})
def honest(arrivals: Arrivals) -> Tensor:
    """1 for honest clients and 0 for hostile ones: the control that knows who is who, in simulations alone.

    Whatever else a method weighs by: `criteria = ["honest", "dataset_size"]` with `score = "product"`.
    """
    if HONEST not in arrivals.attributes:
        raise KeyError("nobody knows who is honest: this criterion is for simulations")
    return arrivals.attributes[HONEST]


# Quality of the local model --------------------------------------------------------------------------------------


@criterion("training_loss", measured_by="client", high=1.0)
def training_loss(clients: ClientFacts) -> Tensor:
    """1/(1 + loss) of the last local epoch: clients whose model fits their data weigh more."""
    return 1.0 / (1.0 + clients.training_loss.double())


@criterion("exp_loss", measured_by="client", high=1.0)
def exp_loss(clients: ClientFacts, *, beta: PositiveFloat = 1.0) -> Tensor:
    """exp(−β·loss) of the last local epoch: divided by the cohort's sum, a softmax (DGA, Dimitriadis et al., 2021)."""
    return (-beta * clients.training_loss.double()).exp()


@criterion("start_loss", measured_by="client")
def start_loss(clients: ClientFacts) -> Tensor:
    """Loss of the received model on the client's training samples, before it trains (q-FedAvg, AFL)."""
    if clients.load_start_loss is None:
        raise KeyError("start_loss is measured where clientwise trains the clients; here it does not")
    return clients.load_start_loss()


@criterion("local_steps", measured_by="client")
def local_steps(clients: ClientFacts) -> Tensor:
    """Local steps τ, with momentum or a proximal term as many as plain ones (FedNova's ‖a‖₁, Wang et al., 2020)."""
    training = clients.training
    if training is None:
        raise KeyError("local_steps is measured where clientwise trains the clients; here it does not")
    steps = training.num_steps(clients.num_samples).double()
    if training.momentum:  # Σ_t (1 − ρ^t)/(1 − ρ): the gradient of an early step still moves the model in later ones
        rest = training.momentum * (1 - training.momentum**steps) / (1 - training.momentum)
        return (steps - rest) / (1 - training.momentum)
    if training.proximal:  # Σ_t (1 − ημ)^t: the gradient of an early step is pulled back in later ones
        kept = 1 - training.learning_rate * training.proximal
        return (1 - kept**steps) / (1 - kept)
    return steps


@criterion("model_divergence", measured_by="server", high=1.0)
def model_divergence(arrivals: Arrivals, *, per_layer: bool = False) -> Tensor:
    """1/√(‖Θ − Θ_a‖₂ + 1) (P1 5.1, MW); `per_layer`: the mean norm over the kernels, as in the papers' code."""
    difference = arrivals.models - arrivals.global_model  # [n, d]
    if per_layer:
        kernels = [layer for layer in arrivals.spec.layers if len(layer.shape) > 1]
        norm = torch.stack([_row_norms(difference[:, layer.start : layer.stop]) for layer in kernels]).mean(0)
    else:
        norm = _row_norms(difference[:, : arrivals.spec.num_parameters])
    return (norm.double() + 1).rsqrt()


def _row_norms(rows: Tensor) -> Tensor:
    """One by one: on a GPU the norm of a row may otherwise depend on how many there are."""
    return torch.stack([torch.linalg.vector_norm(row) for row in rows])


@criterion(
    "server_performance",
    measured_by="server",
    needs={"server_set"},
    high=lambda problem, metric: min(ANY, highest_performance(metric or problem.usual_metric)),
)
def server_performance(arrivals: Arrivals, *, metric: Annotated[str | None, Names(METRICS)] = None) -> Tensor:
    """The model's performance on the server's set (P3): accuracy unless `metric` says otherwise; errors as 1/error."""
    return performance(metric or arrivals.metric, arrivals.evaluation().counts)


@criterion("server_cosine", measured_by="server", high=1.0, needs={"server_samples"})
def server_cosine(arrivals: Arrivals) -> Tensor:
    """max(0, cos(Δ_a, Δ_s)) with Δ_s, what the server's own training does to the model (FLTrust, Cao et al., 2021)."""
    if arrivals.server_update is None:
        raise KeyError("server_cosine needs a server that trains; here it does not")
    count = arrivals.spec.num_parameters
    trusted = arrivals.server_update()[:count].double()
    updates = (arrivals.models - arrivals.global_model)[:, :count]
    # Row by row: on a GPU a product of a row may otherwise depend on how many there are.
    return torch.stack([cosine_similarity(row.double(), trusted, dim=0) for row in updates]).clamp(0.0, 1.0)


# Trustworthiness of the device -----------------------------------------------------------------------------------


class Trust:
    """trust ← 0.8·trust + 0.2·agreement; everyone starts at 1, and who is refused agrees with nobody."""

    def first(self, num_clients: int) -> Tensor:
        """Everyone is trusted."""
        return torch.ones(num_clients)

    def after(self, remembered: Tensor, outcome: Outcome) -> Tensor:
        """The trust [K] of all clients after a round."""
        result = remembered.clone()
        rows = torch.tensor(outcome.client_ids, dtype=torch.int64)
        agreement = agreement_with_others(outcome.updates).clamp(0.0, 1.0)
        result[rows] = 0.8 * result[rows] + 0.2 * agreement.to(result)
        known = [client for client in outcome.refused if 0 <= client < len(result)]
        result[known] = 0.8 * result[known]
        return result


@criterion("trust", measured_by="server", high=1.0, memory=Trust())
def trust(arrivals: Arrivals) -> Tensor:
    """Running record of how far a client's updates pointed where those of the others did; everyone starts at 1.

    After a round, trust ← 0.8·trust + 0.2·agreement. The agreement is the cosine between the client's update and the
    mean direction of the others', zero where that is negative, and zero for a refused update. Every client has one
    vote whatever the size of its update or its weight, so nobody is trusted for being loud.
    """
    return arrivals.memory["trust"]


def agreement_with_others(updates: Sequence[Tensor]) -> Tensor:
    """Cosine [n] between each update and the sum of the others' directions; 1 for a client alone."""
    if len(updates) < 2:
        return torch.ones(len(updates))
    directions = [normalize(update.double(), dim=0) for update in updates]
    total = torch.stack(directions).sum(0)
    return torch.tensor([float(cosine_similarity(mine, total - mine, dim=0)) for mine in directions])


# Devices and time ------------------------------------------------------------------------------------------------


def _device(clients: ClientFacts, criterion: str) -> Devices:
    if clients.device is None:
        raise KeyError(f"{criterion} is a fact about devices, and nobody has said what they are (docs/devices.md)")
    return clients.device


@criterion("compute_speed", measured_by="client", high=1.0, needs={"clock"})
def compute_speed(clients: ClientFacts, *, fast: PositiveFloat = 1000.0) -> Tensor:
    """Training samples per second, as a share of what counts as `fast`: more is worth no more."""
    if clients.device is None and clients.seconds is not None and clients.training is not None:  # by its own clock
        speed = clients.training.epochs * clients.num_samples / clients.seconds.clamp(min=1e-6)
    else:
        speed = _device(clients, "compute_speed").speed
    return (speed / fast).clamp(max=1.0)


@criterion("connection", measured_by="client", high=1.0, needs={"clock"})
def connection(clients: ClientFacts, *, fast: PositiveFloat = 1e6) -> Tensor:
    """Bytes per second, down and up together, as a share of what counts as `fast`: more is worth no more."""
    device = _device(clients, "connection")
    return (2 / (1 / device.up + 1 / device.down) / fast).clamp(max=1.0)


@criterion("availability", measured_by="client", high=1.0, needs={"clock"})
def availability(clients: ClientFacts) -> Tensor:
    """The share of the day in which a client can be asked."""
    return _device(clients, "availability").available_hours / 24


@criterion("battery_level", measured_by="client", high=1.0, needs={"clock"})
def battery_level(clients: ClientFacts) -> Tensor:
    """What is left of the device's battery, a share."""
    return _device(clients, "battery_level").battery


@criterion("response_time", measured_by="server", high=1.0, needs={"clock"})
def response_time(arrivals: Arrivals, *, half: PositiveFloat = 60.0) -> Tensor:
    """1/(1 + t/`half`) for an answer after t seconds by the server's clock: 1 at once, 1/2 after `half` seconds."""
    if arrivals.seconds is None:
        raise KeyError("response_time needs a server that measures it; here it does not")
    return 1 / (1 + arrivals.seconds / half)


@criterion("staleness", measured_by="server", high=1.0, needs={"clock"})
def staleness(arrivals: Arrivals, *, power: NonNegativeFloat = 0.5) -> Tensor:
    """(1 + age)^−`power` for an update that was begun `age` rounds ago: 1 for one of this round (FedBuff)."""
    if arrivals.ages is None:
        raise KeyError("staleness needs a server that knows how old updates are; here it does not")
    return (1 + arrivals.ages) ** -power


class Timeliness:
    """timeliness ← 0.8·timeliness + 0.2·(1 if in time); everyone starts at 1."""

    def first(self, num_clients: int) -> Tensor:
        """Nobody has been late yet."""
        return torch.ones(num_clients)

    def after(self, remembered: Tensor, outcome: Outcome) -> Tensor:
        """The timeliness [K] of all clients after a round."""
        result = remembered.clone()
        asked = [client for client in (*outcome.client_ids, *outcome.refused) if 0 <= client < len(result)]
        in_time = [client for client in outcome.client_ids if client not in outcome.late]
        result[asked] *= 0.8
        result[in_time] += 0.2
        return result


@criterion("timeliness", measured_by="server", high=1.0, needs={"clock"}, memory=Timeliness())
def timeliness(arrivals: Arrivals) -> Tensor:
    """Running record of how often a client answered in its own round, and was not refused; everyone starts at 1.

    After a round, timeliness ← 0.8·timeliness + 0.2 for those who answered in time, 0.8·timeliness for the late, those
    who dropped out and those whose update was refused.
    """
    return arrivals.memory["timeliness"]
