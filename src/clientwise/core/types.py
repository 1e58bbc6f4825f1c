"""What passes between the parts of a round: frozen dataclasses, no behaviour beyond what can be read off them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import torch
from annotated_types import Gt, Le, doc
from torch import Tensor

from ..registry import Decay, NonNegativeFloat, Part, PositiveFloat, PositiveInt
from .clock import Clock
from .loss import Loss

if TYPE_CHECKING:
    from .problem import Problem


@dataclass(frozen=True)
class Layer:
    """One tensor of the model: where it lies in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class ModelSpec:
    """How a model's flat float32 vector is laid out: all parameters first, then the buffers that matter."""

    layers: tuple[Layer, ...]
    num_parameters: int
    size: int  # parameters and buffers


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: E epochs with batch size B (P3 Algorithm 1, lines 14-23)."""

    # The config's [training] table is made from these fields: types, bounds, defaults and meanings.
    epochs: Annotated[int, Gt(0), Le(10_000), doc("Local epochs E per round.")] = 1
    batch_size: Annotated[PositiveInt | None, doc("Batch size B; None: full batch, as in P1.")] = None
    optimizer: Annotated[
        Literal["sgd", "adam"],
        doc("The clients' optimizer. Its state starts anew in every round."),
    ] = "sgd"
    learning_rate: Annotated[
        PositiveFloat,
        doc("Learning rate η of the clients. Typical values are 0.01 to 0.1."),
    ] = 0.1
    momentum: Annotated[Decay, doc("Momentum of sgd. Typical values are 0 to 0.9.")] = 0.0
    weight_decay: Annotated[
        NonNegativeFloat,
        doc("L2 penalty on the weights. Typical values are 0 to 0.001."),
    ] = 0.0
    proximal: Annotated[
        NonNegativeFloat,
        doc("μ of FedProx: (μ/2)·‖Θ_a − Θ‖² is added to the loss; 0: off. Typical values are 0.001 to 1."),
    ] = 0.0
    control_variates: Annotated[
        bool,
        doc("SCAFFOLD: c − c_a, the mean gradient less the client's own, is added to every gradient."),
    ] = False

    def num_steps(self, sizes: Tensor) -> Tensor:
        """How many batches clients of these sizes [n] train on in a round [n]."""
        batch = self.batch_size or sizes.clamp(min=1)
        return self.epochs * -(-sizes // batch)


@dataclass(frozen=True)
class Task:
    """What the server asks of a cohort, beside the model."""

    round_num: int
    training: LocalTraining
    loss: Loss
    criteria: tuple[Part, ...]  # those the client measures


@dataclass(frozen=True)
class Refusal:
    """An update that did not reach the aggregate, and why."""

    client_id: int
    reason: str
    was_sent: bool = True  # whether a model came with it


@dataclass(frozen=True)
class Updates:
    """Trained models as they arrive: one chunk of a cohort (a single client, or many stacked)."""

    client_ids: tuple[int, ...]
    models: Tensor  # [n, d]
    measurements: Mapping[str, Tensor]  # client-measured criteria by name, each [n]
    training_loss: Tensor  # [n]
    seconds: Tensor  # [n]
    failures: tuple[Refusal, ...] = ()  # clients that sent nothing usable, with the engine's reason
    ages: Tensor | None = None  # [n] rounds since each was asked; None: none

    @staticmethod
    def failed(failures: Sequence[Refusal], model: Tensor) -> Updates:
        """No update, and why; `model` is the global one [d]."""
        nothing = torch.zeros(0, dtype=torch.float64)
        return Updates((), model.new_zeros(0, len(model)), {}, nothing, nothing, tuple(failures))

    def select(self, rows: Tensor) -> Updates:
        """The updates of the given rows (a boolean mask [n])."""
        if bool(rows.all()):
            return self
        ids = tuple(client for client, kept in zip(self.client_ids, rows.tolist(), strict=True) if kept)
        measurements = {name: values[rows] for name, values in self.measurements.items()}
        models = self.models[rows.to(self.models.device)]
        ages = None if self.ages is None else self.ages[rows]
        return Updates(ids, models, measurements, self.training_loss[rows], self.seconds[rows], ages=ages)

    def by_client(self) -> Updates:
        """The same updates, ordered by client."""
        order = sorted(range(len(self.client_ids)), key=lambda row: self.client_ids[row])
        rows = torch.tensor(order, dtype=torch.int64)
        return Updates(
            tuple(self.client_ids[row] for row in order),
            self.models[rows.to(self.models.device)],
            {name: values[rows] for name, values in self.measurements.items()},
            self.training_loss[rows],
            self.seconds[rows],
            ages=None if self.ages is None else self.ages[rows],
        )

    @staticmethod
    def joined(chunks: Sequence[Updates]) -> Updates:
        """Several chunks as one, with the measurements that all of them have."""
        shared = [name for name in chunks[0].measurements if all(name in chunk.measurements for chunk in chunks)]
        return Updates(
            tuple(client for chunk in chunks for client in chunk.client_ids),
            torch.cat([chunk.models for chunk in chunks]),
            {name: torch.cat([chunk.measurements[name] for chunk in chunks]) for name in shared},
            torch.cat([chunk.training_loss for chunk in chunks]),
            torch.cat([chunk.seconds for chunk in chunks]),
            ages=torch.cat([chunk.known_ages for chunk in chunks]),
        )

    @property
    def known_ages(self) -> Tensor:
        """Rounds since each was asked [n]."""
        return torch.zeros(len(self.client_ids), dtype=torch.float64) if self.ages is None else self.ages


@dataclass(frozen=True)
class Evaluation:
    """How c candidate models did on the test sets of K clients (or on one server set: K = 1)."""

    num_samples: Tensor  # [K]
    values: Tensor  # [c, K] the problem's metric: accuracy, MAPE, concordance, or what `evaluation.metric` says
    losses: Tensor  # [c, K] mean loss, never the adapted one, so that methods compare
    counts: Tensor  # [c, ...] over all clients: confusion (true, predicted class), error sums, or pairs
    missing: tuple[Refusal, ...] = ()  # clients that were asked and have no say, with the engine's reason
    right: Tensor | None = None  # [c, N] classified rightly, sample by sample, client after client; where it is known
    sample_losses: Tensor | None = None  # [c, N] likewise

    def overall(self) -> Tensor:
        """The metric over all clients, weighted by test-set size (P2 Algorithm 1, line 16). Shape [c]."""
        return self._weighted(self.values)

    def overall_loss(self) -> Tensor:
        """The loss over all clients, weighted by test-set size. Shape [c]."""
        return self._weighted(self.losses)

    def pick(self, candidate: int) -> Evaluation:
        """The evaluation of one candidate alone."""
        return self.part(slice(candidate, candidate + 1))

    def part(self, rows: slice) -> Evaluation:
        """The evaluation of some candidates."""
        return replace(
            self,
            values=self.values[rows],
            losses=self.losses[rows],
            counts=self.counts[rows],
            right=None if self.right is None else self.right[rows],
            sample_losses=None if self.sample_losses is None else self.sample_losses[rows],
        )

    def _weighted(self, values: Tensor) -> Tensor:
        held = self.num_samples > 0  # a client without test data has no accuracy, and no say in the mean
        weights = self.num_samples[held].to(values.dtype)
        return (values[:, held] * weights).sum(1) / weights.sum()


@dataclass(frozen=True)
class Gathered:
    """What the server holds when all have answered: for parts that look at the whole cohort."""

    client_ids: tuple[int, ...]
    updates: Tensor  # [n, d] how far every model moved
    global_model: Tensor  # [d]
    spec: ModelSpec
    criteria: Mapping[str, Tensor]  # raw values by the name of their column, each [n]
    judge: Callable[[Tensor], Evaluation]  # evaluates models [c, d] on the server's set, or by the clients
    train_server: Callable[..., Tensor]  # a model [d], trained on the server's set: as a client would, or otherwise
    seed: int = 0  # of this round, for what a part draws by chance
    training: LocalTraining = LocalTraining()  # of the clients

    def server_update(self) -> Tensor:
        """How far training on the server's set, as a client would, moves the global model [d]."""
        return self.train_server(self.global_model) - self.global_model

    def gradient(self, model: Tensor) -> Tensor:
        """Of the loss on the server's set [d]: one step with all samples and a rate of 1 takes it away from a model."""
        gradient = model - self.train_server(model, LocalTraining(learning_rate=1.0))
        gradient[self.spec.num_parameters :] = 0  # buffers have none
        return gradient


@dataclass(frozen=True)
class Posterior:
    """What evidence makes of the weights."""

    weights: Tensor  # [n], sum 1
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # of all clients, each [K]; for the next round
    z: Tensor | None = None  # [n] how many standard errors speak against each client; NaN: not known
    notes: tuple[str, ...] = ()
    scale: float = 1.0  # the new model is multiplied by it


@dataclass(frozen=True)
class Candidate:
    """One way to aggregate this round's updates: an order of priority and what came of it."""

    priority: tuple[str, ...] | None
    scores: Tensor  # [n]
    prior: Tensor  # [n] weights by the score alone
    posterior: Posterior | None  # after the evidence; None where the method asks for none
    weights: Tensor  # [n] within the bounds: what the rule was given
    influence: Tensor | None  # [n] each client's share of the result; None: its weight
    model: Tensor  # [d]
    step_state: Mapping[str, Tensor]
    rule_state: Mapping[str, Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerState:
    """All that survives a round. A checkpoint is this object; everything random is derived from the seed."""

    round_num: int
    model: Tensor  # [d]
    loss: Loss  # of the next round (P3)
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # what criteria remember of all clients, each [K]
    priority: tuple[str, ...] | None = None  # the order of the last round (P2)
    quality: float | None = None  # metric of the last round over all clients (P2's acc_t)
    step_state: Mapping[str, Tensor] = field(default_factory=dict)  # of the server optimizer
    evidence: Mapping[str, Tensor] = field(default_factory=dict)  # what the evidence remembers of all clients, each [K]
    rule_state: Mapping[str, Tensor] = field(default_factory=dict)  # what the rule wants to find again


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round: enough to explain every weight."""

    round_num: int
    client_ids: tuple[int, ...]  # accepted; the rows of the tensors below
    criteria: tuple[str, ...]
    raw: Tensor  # [n, m]
    normalised: Tensor  # [n, m]
    scores: Tensor  # [n]
    prior: Tensor  # [n] weights by the score alone
    z: Tensor | None  # [n] what the evidence says against each client, in standard errors
    posterior: Tensor | None  # [n] weights after the evidence
    weights: Tensor  # [n] after the bounds
    influence: Tensor | None  # [n] what the rule made of them; None where it was the mean
    training_loss: Tensor  # [n]
    seconds: Tensor  # [n]
    refusals: tuple[Refusal, ...]
    no_effect: tuple[str, ...]  # criteria that were equal for all clients
    priority: tuple[str, ...] | None
    candidates: tuple[tuple[tuple[str, ...], float], ...]  # orders tried and the metric of each, in the order tried
    testing_rounds: int
    models_moved: int  # models that crossed the wire, either way, for the sake of this round's result
    evaluations: int  # models evaluated for the sake of it: by a client or by the server, each counts one
    loss: Loss  # of the next round
    notes: tuple[str, ...]
    report: Evaluation | None  # on the server's reporting part
    local: Evaluation | None  # on every client's own test set
    ended: float | None = None  # when, on the clock of the clients: seconds since the run began
    attack_success: float | None = None  # of simulated backdoors: the share of samples with the trigger that work


ServerPart = Literal[
    "weigh",  # what the server weighs models by
    "report",  # what it reports on
    "triggered",  # the latter with the trigger of a simulated backdoor: right is what the attacker wants
]


class Engine(Protocol):
    """Where clients live. The round asks it for a few things and knows nothing else about it."""

    num_clients: int
    problem: Problem
    spec: ModelSpec
    device: torch.device  # where models live
    initial_model: Tensor  # [d]
    attributes: Mapping[str, Tensor]  # facts about the clients that the server knows without asking them, each [K]
    idle_work: Callable[[], None] | None  # an engine calls it now and then while clients train
    clock: Clock | None  # what time it is for the clients; None: time is counted in rounds

    def train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        """Train `model` [d] on every client of the cohort; yield the updates in chunks as they arrive."""
        ...

    def evaluate(self, client_ids: Sequence[int], models: Tensor) -> Evaluation:
        """Every candidate [c, d] on the test set of every client, in one pass."""
        ...

    def evaluate_server(self, models: Tensor, part: ServerPart) -> Evaluation | None:
        """Every candidate [c, d] on a part of the server's set; None where the server has none."""
        ...

    def train_server(self, model: Tensor, task: Task) -> Tensor:
        """Train `model` [d] as a client would, on the samples the server weighs by (see `Method.fine_tune`)."""
        ...

    def prefetch(self, client_ids: Sequence[int]) -> None:
        """These clients will be asked next: what takes time can be looked up before. Nothing to do is fine."""
        ...

    def state(self) -> Mapping[str, Tensor]:
        """What simulated clients keep between rounds; a checkpoint holds it beside the `ServerState`."""
        ...

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` returned."""
        ...
