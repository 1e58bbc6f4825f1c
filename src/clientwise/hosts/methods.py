"""Methods inside another framework: what such a host cannot give is refused, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..core.clock import Pace
from ..core.criteria import CRITERIA, ClientFacts, CriterionDeclaration
from ..core.method import Method
from ..core.weights.scores import Prioritized, Score
from ..errors import ConfigError
from ..experiment.checks.combinations import config_issues, needs_server_set
from ..experiment.config.methods import MethodSettings
from ..experiment.config.schema import Experiment
from ..experiment.config.settings import Training
from ..experiment.load import load_method
from ..registry import Adopted

STATED = "stated"  # the criterion that a value of a user's own is, under its own name
INSTEAD = "run it with `clientwise run`"


def settings_of(
    method: str | Mapping[str, Any],
    criteria: Sequence[str] | None = None,
    score: Score | None = None,
    normalise: str | None = None,
    measured_here: Collection[str] = (),
) -> MethodSettings:
    """The method that a name or a table, as in TOML, stands for; with other criteria if they are given.

    Args:
        method: the name or the table.
        criteria: names of registered criteria, or of values that come with the updates.
        score: how they become one number; prioritized in their order if None.
        normalise: how each is scaled over the clients; the score's own default if None.
        measured_here: those that the server measures by functions of its own.
    """
    if criteria is None:
        return load_method(method, "method")
    declared = CriterionDeclaration(measured_by="client")
    CRITERIA.adopt(STATED, Adopted(_comes_along, declared, _comes_along, _comes_along))
    is_known = {name: name in CRITERIA and name not in measured_here for name in criteria}
    score = score or Prioritized()
    changes = {
        "criteria": [name if is_known[name] else {"name": STATED, "as": name} for name in criteria],
        "score": score,
        "normalise": normalise or score.default_normaliser,
    }
    table = {"like": method} if isinstance(method, str) else method
    return load_method({**table, **changes}, "method")


def _comes_along(clients: ClientFacts) -> Tensor:
    raise NotImplementedError("the value comes with the update")


def build(settings: MethodSettings, learning_rate: float, has_samples: bool) -> Method:
    """The method, ready to run. ValueError for what a host cannot give."""
    name = settings.name
    built = settings.build(Training.model_validate({"learning_rate": learning_rate}))
    for what, reason in _why_not(built).items():
        raise ValueError(f"{name}: {what} does not run inside another framework: {reason}")
    for key, registry, part in settings.parts():
        if registry.needs(part) & {"simulation", "clock"}:
            raise ValueError(f"{name}: {key} = {part.name} needs simulated clients: {INSTEAD}")
    if not has_samples and needs_server_set(settings):
        raise ValueError(
            f"{name} needs samples of the server: give `model` and `weigh`, functions of its criteria as "
            "`measured_here`, or choose a method without (FedAvg)"
        )
    issues = config_issues(Experiment(name=name, rounds=1, methods=[settings]))
    if issues:
        raise ConfigError("method", issues)
    return built


def _why_not(method: Method) -> dict[str, str]:
    """What the method has that needs more than one exchange of models in a round, and why."""
    training = method.training
    found: dict[str, tuple[bool, str]] = {
        "adjust": (method.adjust is not None, "clients would have to evaluate candidates"),
        "adapt_loss": (method.adapt_loss is not None, "clients would have to change their loss"),
        "control": (method.control is not None, "it is not federated"),
        "privacy": (method.privacy is not None, "its accountant must know how clients are sampled"),
        "pace": (method.pace != Pace(), "the framework decides when a round ends"),
        "training.proximal": (training.proximal > 0, "add the term to your clients' loss"),
        "training.control_variates": (training.control_variates, "they travel beside the models"),
        "training.sample_clip": (training.sample_clip is not None, "your clients train"),
    }
    return {what: f"{reason}; {INSTEAD}" for what, (has, reason) in found.items() if has}
