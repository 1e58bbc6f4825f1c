"""A method in the config: its parts, and what it trains differently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ...core.aggregation.before import BEFORE
from ...core.aggregation.rules import RULES
from ...core.aggregation.server_step import SERVER_STEPS
from ...core.clock import Pace
from ...core.criteria import CRITERIA, make_criterion
from ...core.evidence import EVIDENCE
from ...core.feedback import ADJUSTMENTS, LOSS_ADAPTERS
from ...core.method import Adapters, Control, Method
from ...core.privacy import Privacy
from ...core.types import LocalTraining
from ...core.weights.scores import SCORES, Score
from ...core.weights.weighting import (
    NORMALISERS,
    Bounds,
    Normaliser,
    is_constant,
    no_scale,
)
from ...registry import Part, Registry
from .parts import PartOf, make, make_if_named
from .settings import FineTune, Training, TrainingOverride
from .tables import ConfigTable, Name, TableOf

BOUNDS = TableOf(Bounds)
PAIR_MATRICES = {
    "pairs": 7,
    "products": 1,
}  # of all pairs of clients, that such a part holds at once
Criteria = Annotated[
    list[Annotated[Part, PartOf(CRITERIA)]],
    Field(min_length=1, max_length=64),
]


class MethodSettings(ConfigTable):
    """One way to weigh clients. The defaults are FedAvg's, or those of a name in docs/methods.md."""

    other_keys: ClassVar = ("like",)  # written out before this table is validated

    name: Name
    """The name in tables and figures."""

    criteria: Criteria = [Part("dataset_size", {})]
    """Measurements of a client."""

    score: Annotated[Part, PartOf(SCORES)] = Part("prioritized", {})
    """Combination of the criteria into one number."""

    normalise: Annotated[Part, PartOf(NORMALISERS)] | None = None
    """Scaling over the cohort. Default: "sum", or "none" for the score "product"."""

    evidence: Annotated[Part, PartOf(EVIDENCE)] | None = None
    """How the updates change the weights: by their effect on held-out samples, or by past updates."""

    bounds: Annotated[Bounds, BOUNDS] | None = None
    """Limits on every weight."""

    before: Annotated[list[Annotated[Part, PartOf(BEFORE)]], Field(max_length=16)] = []
    """Changes of the updates before the rule."""

    rule: Annotated[Part, PartOf(RULES)] = Part("mean", {})
    """Aggregation of the weighted updates."""

    adjust: Annotated[Part, PartOf(ADJUSTMENTS)] | None = None
    """Online adjustment of the order of priority (P2)."""

    adapt_loss: Annotated[Part, PartOf(LOSS_ADAPTERS)] | None = None
    """Change of the loss from round to round (P3)."""

    server_step: Annotated[Part, PartOf(SERVER_STEPS)] = Part("replace", {})
    """How the aggregate changes the model."""

    training: TrainingOverride = TrainingOverride()
    """The keys of [training] that differ."""

    fine_tune: FineTune | None = None
    """Train the aggregate on the samples the server weighs by: keys of [training], and `line_search`."""

    control: Control | None = None
    """No federated learning: a model of all clients' samples, of those the server weighs by, or one
    for each client."""

    pace: Annotated[Pace, TableOf(Pace)] | None = None
    """When a round ends. Needs [devices] or Flower."""

    adapters: Adapters = "products"
    """Average the products B·A of LoRA adapters, or A and B (docs/huggingface.md)."""

    tuned: dict[str, Any] | None = None
    """How values were found; `clientwise tune` writes it."""

    privacy: Annotated[Privacy, TableOf(Privacy)] | None = None
    """Differential privacy of the clients."""

    def unlike_fedavg(self) -> list[str]:
        """The keys that differ from FedAvg's."""
        mine = self.model_copy(update={"tuned": None}).to_dict()
        fedavg = MethodSettings(name=self.name).to_dict()
        return sorted(key for key in {*mine, *fedavg} if mine.get(key) != fedavg.get(key))

    def parts(self) -> Iterator[tuple[str, Registry[Any], Part]]:
        """The parts that may need something, each with its key and its registry."""
        for index, part in enumerate(self.criteria):
            yield f"criteria[{index}]", CRITERIA, part
        for index, part in enumerate(self.before):
            yield f"before[{index}]", BEFORE, part
        yield "rule", RULES, self.rule
        yield "server_step", SERVER_STEPS, self.server_step
        if self.evidence:
            yield "evidence", EVIDENCE, self.evidence
        if self.adapt_loss:
            yield "adapt_loss", LOSS_ADAPTERS, self.adapt_loss

    @property
    def trains_model_on_server(self) -> bool:
        """Whether the server trains a model on its own samples."""
        judging = ("evidence", "server_step")  # these evaluate on the samples, and train no model
        parts = [(registry, part) for key, registry, part in self.parts() if key not in judging]
        needs_update = any("server_samples" in registry.needs(part) for registry, part in parts)
        return needs_update or self.fine_tune is not None or self.control == "server_only"

    def build(self, training: Training) -> Method:
        """The method with all its parts. ValueError where they do not fit."""
        score: Score = make(SCORES, self.score)
        normalise = self.normalise or Part(score.default_normaliser, {})
        keeps_models = "models" in RULES.needs(self.rule)
        criteria = [make_criterion(part.name, part.label, **part.options) for part in self.criteria]
        return Method(
            name=self.name,
            criteria=tuple(criteria),
            normaliser=self._normaliser(normalise),
            score=score,
            evidence=make_if_named(EVIDENCE, self.evidence),
            bounds=self.bounds,
            before=tuple(make(BEFORE, part) for part in self.before),
            rule=make(RULES, self.rule) if keeps_models else None,
            adjust=make_if_named(ADJUSTMENTS, self.adjust),
            adapt_loss=make_if_named(LOSS_ADAPTERS, self.adapt_loss),
            server_step=make(SERVER_STEPS, self.server_step),
            training=training.build(self.training),
            loss=training.changed(self.training)["loss"],
            schedule=training.schedule_of(self.training),
            control=self.control,
            fine_tune=self._server_training(training),
            line_search=self.fine_tune is not None and self.fine_tune.line_search,
            pace=self.pace or Pace(),
            privacy=self.privacy,
            adapters=self.adapters,
            pair_matrices=max(map(_pair_matrices, self.parts()), default=0),
        )

    def _normaliser(self, normalise: Part) -> Normaliser:
        """Under differential privacy, no scale depends on the cohort.

        Validation allows those that do only for scores whose weights are the same with any scale.
        """
        noises_mean = self.privacy is not None and not self.privacy.local
        if noises_mean and not is_constant(normalise.name):
            return no_scale
        made: Normaliser = make(NORMALISERS, normalise)
        return made

    def _server_training(self, training: Training) -> LocalTraining | None:
        if self.fine_tune is None:
            return None
        return training.build(self.training, self.fine_tune)


def _pair_matrices(of: tuple[str, Registry[Any], Part]) -> int:
    _, registry, part = of
    return sum(PAIR_MATRICES.get(need, 0) for need in registry.needs(part))
