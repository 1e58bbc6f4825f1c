"""What passes between the parts of a round: frozen dataclasses of tensors.

Letters of shapes: K clients of the run, n clients of a round, m criteria, d values of a model,
c candidate models, N samples, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Le, doc
from torch import Tensor

from ..errors import plain
from ..registry import (
    NonNegativeFloat,
    Part,
    PositiveFloat,
    PositiveInt,
)
from .objective.loss import Loss
from .privacy import LocalNoise, NoisedSum
from .reasons import Kept, Kind, Reason

FLOAT_BYTES = 4  # of a value of a model


@dataclass(frozen=True)
class Layer:
    """One tensor of the model, and its range in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class ModelSpec:
    """Layout of a model's flat float32 vector: all parameters first, then the buffers that are averaged."""

    layers: tuple[Layer, ...]
    num_parameters: int
    size: int  # parameters and buffers


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: E epochs with batch size B (P3 Algorithm 1, lines 14-23)."""

    # What has a meaning here is a key of [training] as it is; `config/settings.py` has the other keys.
    epochs: Annotated[int, Gt(0), Le(10_000), doc("Local epochs E per round.")] = 1
    batch_size: PositiveInt | None = 32  # None: all samples in one batch
    optimizer: str | Part = "sgd"
    learning_rate: PositiveFloat = 0.1
    proximal: Annotated[
        NonNegativeFloat,
        doc("μ of FedProx: (μ/2)·‖Θ_a − Θ‖² is added to the loss. Typical values are 0.001 to 1."),
    ] = 0.0
    control_variates: Annotated[
        bool,
        doc("SCAFFOLD: the mean gradient less the client's own is added to every gradient."),
    ] = False
    sample_clip: Annotated[
        PositiveFloat | None,
        doc("DP-SGD (Abadi et al., 2016): the norm to which every sample's gradient is clipped."),
    ] = None
    sample_noise: Annotated[
        Annotated[float, Gt(0), Le(1e6)] | None,
        doc(
            "Standard deviation of the noise of a step, divided by 2·`sample_clip`. `check` prints ε."
        ),
    ] = None
    clip_gradients: Annotated[
        PositiveFloat | None,
        doc("Largest norm of a step's gradient. Typical values are 0.1 to 10."),
    ] = None
    transform: Part | None = None
    # Of the schedule in this round; None: the rate is the same in all rounds
    rate_factor: float | None = None

    @property
    def rate(self) -> float:
        """The learning rate of the round."""
        return self.learning_rate * (1.0 if self.rate_factor is None else self.rate_factor)

    @property
    def recipe(self) -> LocalTraining:
        """The same for all rounds: what is kept between rounds is found by it."""
        return self if self.rate_factor is None else replace(self, rate_factor=1.0)

    @staticmethod
    def read(plain: Mapping[str, Any]) -> LocalTraining:
        """From its fields as JSON gives them back; TypeError for other keys."""
        options: dict[str, Any] = dict(plain)
        for key, value in plain.items():
            if isinstance(value, Mapping):
                options[key] = Part(**value)
        return LocalTraining(**options)

    def num_steps(self, sizes: Tensor) -> Tensor:
        """Number of local steps [n] of clients with so many samples [n]."""
        batch = self.batch_size or sizes.clamp(min=1)
        return self.epochs * -(-sizes // batch)


@dataclass(frozen=True)
class Task:
    """What the server asks of a cohort, besides the model."""

    round_num: int
    training: LocalTraining
    loss: Loss
    criteria: tuple[Part, ...]  # those the client measures
    noise: LocalNoise | None = None  # what the client does to its update before it sends it

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self) | {"loss": asdict(self.loss.record())}


@dataclass(frozen=True)
class Refusal:
    """An update that did not reach the aggregate, with the reason."""

    client_id: int
    given: Reason | str  # may quote what a client sent
    was_sent: bool = True  # whether a model arrived

    @property
    def reason(self) -> str:
        """The reason in words: nothing in it reaches a terminal as a command."""
        return plain(str(self.given))

    @property
    def kind(self) -> Kind | None:
        """That of the reason, where code asks for it."""
        return self.given.kind if isinstance(self.given, Reason) else None


@dataclass(frozen=True)
class Updates:
    """Trained models as they arrive: one chunk of a cohort, of one client or many."""

    client_ids: tuple[int, ...]
    models: Tensor  # [n, d]
    measurements: Mapping[str, Tensor]  # client-measured criteria by label, each [n]
    training_loss: Tensor  # [n]
    seconds: Tensor  # [n]
    failures: tuple[Refusal, ...] = ()  # clients without a usable update, with the engine's reason
    ages: Tensor | None = None  # [n] rounds since each was asked; None: all 0
    notes: tuple[str, ...] = ()  # what the engine has to say about the round

    @staticmethod
    def failed(failures: Sequence[Refusal], model: Tensor, notes: tuple[str, ...] = ()) -> Updates:
        """No updates, and the reasons; `model` is the global one [d]."""
        nothing = torch.zeros(0, dtype=torch.float64)
        models = model.new_zeros(0, len(model))
        return Updates((), models, {}, nothing, nothing, tuple(failures), notes=notes)

    def select(self, mask: Tensor) -> Updates:
        """The updates of some rows, given by a boolean mask [n]."""
        return self if bool(mask.all()) else self._rows(mask.nonzero().flatten())

    def by_client(self) -> Updates:
        """The same updates, ordered by client number."""
        order = sorted(range(len(self.client_ids)), key=lambda row: self.client_ids[row])
        return self if order == list(range(len(order))) else self._rows(torch.tensor(order))

    def _rows(self, rows: Tensor) -> Updates:
        return Updates(
            tuple(self.client_ids[row] for row in rows.tolist()),
            self.models[rows.to(self.models.device)],
            {name: values[rows] for name, values in self.measurements.items()},
            self.training_loss[rows],
            self.seconds[rows],
            ages=self.known_ages[rows],
        )

    @staticmethod
    def joined(chunks: Sequence[Updates]) -> Updates:
        """Several chunks as one, with the measurements that all of them have. One chunk is not copied."""
        if len(chunks) == 1:
            (only,) = chunks
            return replace(only, failures=(), ages=only.known_ages, notes=())
        shared = list(chunks[0].measurements)
        for chunk in chunks:
            shared = [name for name in shared if name in chunk.measurements]
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
        if self.ages is None:
            return torch.zeros(len(self.client_ids), dtype=torch.float64)
        return self.ages


@dataclass(frozen=True)
class ClientColumns:
    """What a round knows of each accepted client: a column is a field here, set in `Cohort._take`."""

    raw: Tensor  # [n, m] the criteria
    training_loss: Tensor  # [n]
    seconds: Tensor  # [n]

    @staticmethod
    def none(num_criteria: int) -> ClientColumns:
        """The columns of no clients."""
        nothing = torch.zeros(0, dtype=torch.float64)
        return ClientColumns(nothing.reshape(0, num_criteria), nothing, nothing)

    @staticmethod
    def joined(parts: Sequence[ClientColumns]) -> ClientColumns:
        """Several parts, below each other."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return ClientColumns(*map(torch.cat, columns))

    def in_order(self, rows: Sequence[int]) -> ClientColumns:
        """The rows in another order."""
        return ClientColumns(*(column[rows] for column in vars(self).values()))


@dataclass(frozen=True)
class Folded:
    """A part of a cohort that was guarded, measured and added up where its clients trained.

    Models do not travel: only sums over the clients, and what the record says of each of them.
    """

    client_ids: tuple[int, ...]  # accepted
    columns: ClientColumns
    refusals: tuple[Refusal, ...]
    notes: tuple[str, ...]
    totals: Tensor  # [t] see `aggregation.sums.SubsetSums`
    sums: Tensor  # [t, d]


@dataclass(frozen=True)
class Evaluation:
    """Results of c candidate models on the test sets of K clients, or on the server's set (K = 1)."""

    num_samples: Tensor  # [K]
    values: Tensor  # [c, K] the problem's metric
    losses: Tensor  # [c, K] mean of the plain loss, also if training uses an adapted one
    counts: Tensor  # [c, ...] over all clients; see `Problem.counts_shape`
    missing: tuple[
        Refusal, ...
    ] = ()  # clients that were asked and did not evaluate, with the reason
    # [c, N] whether each sample is classified correctly, client by client
    right: Tensor | None = None
    sample_losses: Tensor | None = None  # [c, N] client by client

    def overall(self) -> Tensor:
        """The metric over all clients [c], weighted by test-set size (P2 Algorithm 1, line 16)."""
        return self._weighted(self.values)

    def overall_loss(self) -> Tensor:
        """The loss over all clients [c], weighted by test-set size."""
        return self._weighted(self.losses)

    def pick(self, candidate: int) -> Evaluation:
        """The evaluation of one candidate."""
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
        held = self.num_samples > 0  # clients without test data have no value
        weights = self.num_samples[held].to(values.dtype)
        return (values[:, held] * weights).sum(1) / weights.sum()


@dataclass(frozen=True)
class ServerNetwork:
    """The network as a function of model and inputs, and the held-out samples of the server."""

    outputs: Callable[[Tensor, Tensor], Tensor]  # model [d] and inputs [b, ...] to outputs [b, C]
    inputs: Tensor  # [N, ...]
    targets: Tensor  # [N]
    num_classes: int


@dataclass(frozen=True)
class Gathered:
    """What the server holds at the end of a round, for parts that need the whole cohort."""

    client_ids: tuple[int, ...]
    updates: Tensor  # [n, d] models minus the global model
    global_model: Tensor  # [d]
    spec: ModelSpec
    criteria: Mapping[str, Tensor]  # raw values by the criterion's name, not its label, each [n]
    # Evaluates models [c, d] on the server's set, or by the clients
    judge: Callable[[Tensor], Evaluation]
    # Trains a model [d] on the server's set, by default as a client would
    train_server: Callable[..., Tensor]
    seed: int = 0  # of this round, for random draws
    training: LocalTraining = LocalTraining()  # of the clients
    # See `Engine.server_gradients`; None where clients judge, or the server has no samples
    gradients: Callable[[Tensor, Sequence[Sequence[int]]], Tensor] | None = None
    compares_samples: bool = False  # whether the loss of a sample depends on the others (Cox's)
    network: Callable[[], ServerNetwork | None] | None = None  # see `Engine.server_network`

    def server_update(self) -> Tensor:
        """The update [d] of training the global model on the server's set, as a client would."""
        return self.train_server(self.global_model) - self.global_model

    def gradient(self, model: Tensor) -> Tensor:
        """Gradient [d] of the loss on the server's set: one full-batch step with learning rate 1 subtracts it."""
        full_batch = LocalTraining(batch_size=None, learning_rate=1.0)
        gradient = model - self.train_server(model, full_batch)
        gradient[self.spec.num_parameters :] = 0  # buffers have no gradient
        return gradient


@dataclass(frozen=True)
class LookBack:
    """What the directions of a round's updates tell, beside and without held-out samples."""

    # [n] against its own past, in standard errors; NaN: too short a past, or a tiny model
    z: Tensor | None = None
    copies: Tensor | None = None  # [n] almost equal updates in the round, itself included
    # Past directions, for the next round
    memory: Mapping[str, Tensor] = field(default_factory=dict)

    def counted_once(self, weights: Tensor) -> Tensor:
        """Weights [n] in which copies of an update share the weight of one."""
        if self.copies is None:
            return weights
        shared = weights / self.copies
        return shared / shared.sum()

    def kept_in(self, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A copy of the evidence's memory with the new past directions."""
        same = {name: values.clone() for name, values in memory.items() if name not in self.memory}
        return {**same, **self.memory}


@dataclass(frozen=True)
class Scanned:
    """What a scan for backdoors tells; see `evidence/backdoor.py`."""

    z: Tensor | None = None  # [n] reaction of each client's model to suspect patterns
    patterns: Tensor | None = None  # [p, ...] to be unlearned
    share: float = 0.0  # of the loss with the patterns
    # Suspect classes as they are recorded (docs/frames.md)
    suspects: list[dict[str, Any]] | None = None
    notes: tuple[str, ...] = ()
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # for the next round


@dataclass(frozen=True)
class Posterior:
    """The weights after the evidence."""

    weights: Tensor  # [n], sum to 1
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # for the next round
    z: Tensor | None = None  # [n] evidence against each client in standard errors; NaN: unknown
    # By how much following each client instead of the mean (or of no update, if better) would raise the
    # held-out loss [n], its standard error [n], and what the mean of the clipped updates changes of that loss
    harm: Tensor | None = None
    harm_error: Tensor | None = None
    held_out_change: float | None = None
    notes: tuple[str, ...] = ()
    scale: float = 1.0  # factor on the parameters of the new model
    look_back: LookBack = LookBack()
    scanned: Scanned = Scanned()


@dataclass(frozen=True)
class TriedStep:
    """A server step that a round tried."""

    name: str
    loss: float  # of its model on the server's samples
    used: bool


@dataclass(frozen=True)
class Weighing:
    """How the clients of a round were weighed, step by step."""

    priority: tuple[str, ...] | None
    scores: Tensor  # [n]
    prior: Tensor  # [n] weights by the score alone
    weights: Tensor  # [n] after the bounds, as given to the rule
    posterior: Posterior | None = None  # after the evidence; None for methods without
    influence: Tensor | None = None  # [n] each client's share of the aggregate; None: its weight
    residual: float | None = None  # of adapters: see `sums.average_products`
    steps: tuple[TriedStep, ...] = ()  # of methods that try several server steps
    notes: tuple[str, ...] = ()  # for people


@dataclass(frozen=True, kw_only=True)
class Candidate(Weighing):
    """One way to aggregate this round's updates: an order of priority and its result."""

    model: Tensor  # [d] the first of `stepped`, later the one that is used
    stepped: Tensor  # [s, d] a model for every server step that is tried; most methods try one
    step_state: Mapping[str, Tensor]
    rule_state: Mapping[str, Tensor] = field(default_factory=dict)
    released: NoisedSum | None = None  # of methods that add noise to the mean
    unmet: str | None = None  # why the bounds are infeasible for these clients


# Tensors by name. A part that is made of others keeps theirs in memories within its own.
Memory = Mapping[str, Any]
Keeper = Literal[
    "criteria",  # by criterion, each [K]; see `criteria.RunningMean`
    "evidence",
    "rule",
    "server_step",
    "privacy",  # how often each client was in a release [K]
]


@dataclass(frozen=True)
class ServerState:
    """Everything that a round passes to the next one, and what a checkpoint stores."""

    round_num: int
    model: Tensor  # [d]
    loss: Loss  # of the next round (P3)
    # What the parts of the method keep, by part; see `kept`
    memory: Mapping[str, Memory] = field(default_factory=dict)
    priority: tuple[str, ...] | None = None  # the order of the last round (P2)
    quality: float | None = None  # metric of the last round over all clients (P2's acc_t)

    def kept(self, part: Keeper) -> Memory:
        """What a part of the method keeps between rounds; nothing where it keeps nothing."""
        return self.memory.get(part, {})


@dataclass(frozen=True)
class PrivacyRecord:
    """What a round with differential privacy released, and what all rounds so far spent."""

    clip: float  # the clipping norm
    deviation: float  # of the noise, in every value of an update
    epsilon: float | None = None  # of all rounds so far; whoever accounts for them fills it in


@dataclass(frozen=True, kw_only=True)
class RoundRecord(Weighing, ClientColumns):
    """What happened in a round, with all that is needed to explain every weight."""

    round_num: int
    client_ids: tuple[int, ...]  # accepted; the rows of the tensors [n, ...]
    criteria: tuple[str, ...]
    normalised: Tensor  # [n, m]
    refusals: tuple[Refusal, ...]
    no_effect: tuple[str, ...]  # criteria that were constant across clients
    # Orders and their metrics, as they were tried
    candidates: tuple[tuple[tuple[str, ...], float], ...]
    testing_rounds: int
    models_moved: int  # models sent or received to compute this round's result
    loss: Loss  # of the next round
    report: Evaluation | None  # on the server's reporting part
    local: Evaluation | None  # on every client's own test set
    ended: float | None = None  # seconds since the run began, by the clients' clock
    # Share of triggered samples on which a simulated backdoor works
    attack_success: float | None = None
    released: PrivacyRecord | None = None  # of methods with differential privacy
    kept: Kept | None = None  # why the model is that of the round before; None: it is new

    @property
    def evidence(self) -> Posterior:
        """What the evidence said; the prior weights where a method has none."""
        return self.posterior or Posterior(self.prior)


ServerPart = Literal[
    "weigh",  # samples that weights are based on
    "report",  # held-out samples that reports are based on
    "triggered",  # "report" with the trigger of a simulated backdoor; correct is the attacker's target
]
