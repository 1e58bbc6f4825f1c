"""Server steps: what the server makes of the weighted mean of the clients' models.

A server step is a function of the global model [d], the weighted mean [d] and its own state of the
round before. It returns the new model [d] and the state for the next round. Δ is the mean update,
mean − model. The adaptive steps are those of Reddi et al., "Adaptive Federated Optimization" (2021),
without bias correction, as published.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from torch import Tensor

from ...registry import Decay, Lists, Part, PositiveFloat, Registry, needs

Tau = Annotated[float, Ge(1e-12), Le(1e12)]  # neither it nor its square is lost in float32
StepState = Mapping[str, Any]  # tensors; of `BestOf` also the states of its steps
ServerStep = Callable[..., tuple[Tensor, StepState]]
SERVER_STEPS: Registry[Callable[..., Any]] = Registry(
    "server step", "server_steps", "Application of the aggregate to the model"
)


@SERVER_STEPS.register("replace")
def replace_model(model: Tensor, mean: Tensor, state: StepState) -> tuple[Tensor, StepState]:
    """The weighted mean is the new model (P1 Eq. 4)."""
    return mean, state


@SERVER_STEPS.register("sgd")
def sgd_step(
    model: Tensor, mean: Tensor, state: StepState, *, learning_rate: PositiveFloat = 1.0
) -> tuple[Tensor, StepState]:
    """Θ ← Θ + η·Δ with the weighted update Δ (P1 Eq. 2); η = 1 is `replace`.

    Args:
        model: global model [d].
        mean: weighted mean of the clients' models [d].
        state: unused; the step keeps no state.
        learning_rate: η.

    Returns:
        The new model [d] and the unchanged state.

    Example:
        >>> sgd_step(torch.tensor([1.0]), torch.tensor([3.0]), {}, learning_rate=0.5)[0]
        tensor([2.])
    """
    return model + learning_rate * (mean - model), state


@SERVER_STEPS.register("momentum")
def momentum_step(
    model: Tensor,
    mean: Tensor,
    state: StepState,
    *,
    learning_rate: PositiveFloat = 1.0,
    momentum: Decay = 0.9,
) -> tuple[Tensor, StepState]:
    """v ← β·v + Δ; Θ ← Θ + η·v (FedAvgM, Hsu et al., 2019).

    Args:
        model: global model [d].
        mean: weighted mean of the clients' models [d].
        state: `velocity` v [d]; zero in the first round.
        learning_rate: η.
        momentum: β.

    Returns:
        The new model [d] and the state with the new velocity.

    Example:
        >>> model, state = momentum_step(torch.tensor([0.0]), torch.tensor([1.0]), {}, momentum=0.5)
        >>> momentum_step(model, torch.tensor([2.0]), state, momentum=0.5)[0]
        tensor([2.5000])
    """
    velocity = momentum * _remembered(state, "velocity", model) + (mean - model)
    return model + learning_rate * velocity, {"velocity": velocity}


@dataclass(frozen=True)
class AdaptiveStep(ABC):
    """Θ ← Θ + η·m/(√v + τ) with m ← β₁m + (1−β₁)Δ; the steps differ in v, which starts at τ²."""

    learning_rate: PositiveFloat = 0.01
    beta1: Decay = 0.9
    tau: Tau = 1e-3

    def __call__(self, model: Tensor, mean: Tensor, state: StepState) -> tuple[Tensor, StepState]:
        """The new model [d], and the moments `first` m and `second` v, each [d]."""
        update = mean - model
        first = _moment(_remembered(state, "first", model), update, self.beta1)
        second = self.second(_remembered(state, "second", model, self.tau**2), update.square())
        moved = model + self.learning_rate * first / (second.sqrt() + self.tau)
        return moved, {"first": first, "second": second}

    @abstractmethod
    def second(self, before: Tensor, squared: Tensor) -> Tensor:
        """v [d] after a round, from v before it and Δ²."""


@SERVER_STEPS.register("adam")
@dataclass(frozen=True)
class AdamStep(AdaptiveStep):
    """m ← β₁m + (1−β₁)Δ; v ← β₂v + (1−β₂)Δ², from v = τ²; Θ ← Θ + η·m/(√v + τ) (FedAdam, Reddi et al., 2021).

    Args:
        learning_rate: η.
        beta1: decay of the first moment m.
        tau: τ, the degree of adaptivity: the smaller, the more adaptive.
        beta2: decay of the second moment v.
    """

    beta2: Decay = 0.99

    def second(self, before: Tensor, squared: Tensor) -> Tensor:
        """β₂v + (1−β₂)Δ²."""
        return _moment(before, squared, self.beta2)


@SERVER_STEPS.register("yogi")
@dataclass(frozen=True)
class YogiStep(AdamStep):
    """As adam, but v ← v − (1−β₂)·Δ²·sign(v − Δ²), from v = τ² (FedYogi, Reddi et al., 2021)."""

    def second(self, before: Tensor, squared: Tensor) -> Tensor:
        """v − (1−β₂)·Δ²·sign(v − Δ²)."""
        return before - (1 - self.beta2) * squared * (before - squared).sign()


@SERVER_STEPS.register("adagrad")
@dataclass(frozen=True)
class AdagradStep(AdaptiveStep):
    """m ← β₁m + (1−β₁)Δ; v ← v + Δ², from v = τ²; Θ ← Θ + η·m/(√v + τ) (FedAdagrad, Reddi et al., 2021).

    Options are those of `adam`, without `beta2`.
    """

    beta1: Decay = 0.0

    def second(self, before: Tensor, squared: Tensor) -> Tensor:
        """v + Δ²."""
        return before + squared


@SERVER_STEPS.register("best_of", needs("server_samples"))
@dataclass(frozen=True)
class BestOf:
    """Takes several steps from the same aggregate and uses the one with the lowest loss on the server's samples.

    L_i is the loss of the model of step i, after fine-tuning where the method fine-tunes. Losses are
    summed over the rounds,

        S_i ← decay·S_i + L_i,

    and the model of the step with the smallest S_i is the new one. All steps keep their states, whichever
    is used. P2 tries orders of priority within a round; this tries server steps.

    Args:
        steps: two or more other server steps.
        decay: of earlier losses; 0: those of this round alone.
    """

    steps: Annotated[tuple[Part, ...], Lists(SERVER_STEPS)]
    decay: Decay = 0.9

    def __post_init__(self) -> None:
        if len(self.steps) < 2:
            raise ValueError("steps must have at least two server steps")
        if any(SERVER_STEPS.get(step.name) is BestOf for step in self.steps):
            raise ValueError("steps must not have another best_of")

    @cached_property
    def _taken(self) -> list[ServerStep]:
        return [made_step(step) for step in self.steps]

    def __call__(self, model: Tensor, mean: Tensor, state: StepState) -> tuple[Tensor, StepState]:
        """The models of all steps [s, d], and their states."""
        models = []
        after = dict(state)
        for index, step in enumerate(self._taken):
            own = str(index)
            moved, after[own] = step(model, mean, state.get(own, {}))
            models.append(moved)
        return torch.stack(models), after

    def choose(self, losses: Tensor, state: StepState) -> tuple[int, StepState]:
        """The step that is used, by the losses of all steps [s], and the state with the new sums.

        A model whose loss is not finite is not used, and counts as the worst of the others.
        """
        losses = losses.double().cpu()
        is_finite = losses.isfinite()
        if not bool(is_finite.any()):
            return 0, state
        worst = losses[is_finite].max()
        before = state["sums"].cpu() if "sums" in state else torch.zeros_like(losses)
        sums = self.decay * before + torch.where(is_finite, losses, worst)
        usable = torch.where(is_finite, sums, torch.inf)
        return int(usable.argmin()), {**state, "sums": sums}


def made_step(part: Part) -> ServerStep:
    """A registered server step with its options."""
    step = SERVER_STEPS.get(part.name)
    made: ServerStep = (
        step(**part.options) if isinstance(step, type) else partial(step, **part.options)
    )
    return made


def _remembered(state: StepState, name: str, model: Tensor, start: float = 0.0) -> Tensor:
    """A tensor [d] of the state; filled with `start` in the first round."""
    kept: Tensor = state[name] if name in state else torch.full_like(model, start)
    return kept


def _moment(before: Tensor, value: Tensor, decay: float) -> Tensor:
    """Exponential moving average: decay · before + (1 − decay) · value."""
    return decay * before + (1 - decay) * value
