"""Methods inside another framework: what such a host cannot give is refused, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..core.clock import Pace
from ..core.criteria import ANY, CRITERIA, Arrivals, Criterion, make_criterion
from ..core.method import Method
from ..core.weights.scores import SCORES, Prioritized, Score
from ..core.weights.weighting import NORMALISERS, check_normaliser
from ..errors import ConfigError
from ..experiment.checks.combinations import config_issues, needs_server_set
from ..experiment.config.methods import MethodSettings
from ..experiment.config.schema import Experiment
from ..experiment.config.settings import Training
from ..experiment.load import load_method
from ..registry import Part

NEED_SAMPLES = {"server_set", "server_samples"}
INSTEAD = "run it with `clientwise run`"


def settings_of(method: str | Mapping[str, Any]) -> MethodSettings:
    """The method that a name or a table, as in TOML, stands for."""
    return load_method(method, "method")


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
            f"{name} needs samples of the server: give `model` and `weigh`, or choose a method "
            "without (FedAvg)"
        )
    issues = config_issues(Experiment(name=name, rounds=1, methods=[settings]))
    if issues:
        raise ConfigError("method", issues)
    return built


def with_criteria(
    method: Method,
    criteria: Sequence[str],
    score: Score | None,
    normalise: str | None,
    measured_here: Collection[str],
    has_samples: bool,
) -> Method:
    """The method with other criteria: registered ones, or values that come with the updates.

    Args:
        method: the method.
        criteria: their names, the most important first.
        score: how they become one number; prioritized in this order if None.
        normalise: how each is scaled over the clients; the score's own default if None.
        measured_here: those that the server measures by functions of its own.
        has_samples: whether the server has samples to weigh by.
    """
    if not criteria:
        raise ValueError("no criteria given")
    score = score or Prioritized(tuple(criteria))
    score.check(tuple(criteria))
    normaliser = normalise or score.default_normaliser
    made = NORMALISERS.get(normaliser)
    check_normaliser(score, normaliser)
    return replace(
        method,
        criteria=tuple(_criterion(one, one in measured_here, has_samples) for one in criteria),
        score=score,
        normaliser=made,
    )


def recorded_table(
    settings: MethodSettings,
    criteria: Sequence[str] | None,
    score: Score | None,
    normalise: str | None,
) -> dict[str, Any]:
    """The method as the config of a run folder states it; see `with_criteria`."""
    table = settings.to_dict()
    if criteria is None:
        return table
    score = score or Prioritized(tuple(criteria))
    name = next((one for one in SCORES if SCORES.get(one) is type(score)), type(score).__name__)
    options = {key: value for key, value in vars(score).items() if value is not None}
    table |= {
        "criteria": [{"name": one} for one in criteria],
        "score": {"name": name, **options},
        "normalise": {"name": normalise or score.default_normaliser},
    }
    return table


def _criterion(name: str, is_measured_here: bool, has_samples: bool) -> Criterion:
    if name in CRITERIA:
        known = make_criterion(name)
        if is_measured_here:
            return replace(known, measured_by="client", memory=None)
        missing = {"simulation", "clock"} if has_samples else {*NEED_SAMPLES, "simulation", "clock"}
        if known.needs & missing:
            raise ValueError(
                f"{name} is measured by the server: give a function for it as measured_here"
            )
        return known
    return Criterion(
        part=Part(name, {}),
        measure=_comes_along,
        measured_by="client",
        upper=ANY,
        needs=frozenset(),
        memory=None,
        alike=False,
    )


def _comes_along(clients: Arrivals) -> Tensor:
    raise NotImplementedError("the value comes with the update")


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
