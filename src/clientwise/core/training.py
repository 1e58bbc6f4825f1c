"""How clients train: their optimizers, schedules of the learning rate, and random changes of batches.

- An optimizer is a function of the parameters and the learning rate. It returns a `torch.optim.Optimizer`.
- A schedule gives the learning rate of a round, as a factor on `training.learning_rate`.
- A transform is a function of the inputs of a batch [B, ...], as the network gets them (data augmentation).
  It may draw from PyTorch's default generator, from `numpy.random` and from `random`: all three are seeded
  for every client and round. Evaluation does not use transforms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from ..registry import (
    Decay,
    Declaration,
    NonNegativeFloat,
    OpenShare,
    Part,
    PositiveFloat,
    PositiveInt,
    Registry,
    Share,
)

MakeOptimizer = Callable[..., torch.optim.Optimizer]
Rate = float | Tensor  # a tensor on a GPU, where CUDA graphs read a rate that changes by round
OPTIMIZERS: Registry[MakeOptimizer] = Registry(
    "optimizer", "optimizers", "Optimizers of the clients"
)


@dataclass(frozen=True)
class OptimizerDeclaration(Declaration):
    """What the engine must know about an optimizer."""

    # A value of the model changes by its own gradients alone, and a state of zeros is a new one. Many
    # models then train as one vector, with an optimizer that is kept.
    elementwise: bool = False
    # θ −= η·∇ where no option says otherwise
    is_plain: bool = False
    learning_rate: float | None = None  # where a config gives none; None: it must give one


PLAIN = OptimizerDeclaration(elementwise=True, is_plain=True, learning_rate=0.1)
ADAPTIVE = OptimizerDeclaration(elementwise=True, learning_rate=0.001)


def part_of(optimizer: str | Part) -> Part:
    """An optimizer with its options, as `LocalTraining` has it."""
    return Part(optimizer, {}) if isinstance(optimizer, str) else optimizer


def declared_of(optimizer: str | Part) -> OptimizerDeclaration:
    """What an optimizer declares; one that declares nothing is a class of a user."""
    declared = OPTIMIZERS.declared(part_of(optimizer).name)
    return declared if isinstance(declared, OptimizerDeclaration) else OptimizerDeclaration()


def is_elementwise(optimizer: str | Part) -> bool:
    """Whether many models can share one optimizer; see `OptimizerDeclaration`."""
    return declared_of(optimizer).elementwise


def is_plain(optimizer: str | Part) -> bool:
    """Whether its step is θ −= η·∇."""
    return isinstance(optimizer, str) and declared_of(optimizer).is_plain


@OPTIMIZERS.register("sgd", PLAIN)
def sgd(
    parameters: Sequence[nn.Parameter],
    rate: Rate,
    *,
    momentum: Decay = 0.0,
    weight_decay: NonNegativeFloat = 0.0,
) -> torch.optim.Optimizer:
    """Stochastic gradient descent.

    Args:
        parameters: of the model.
        rate: the learning rate.
        momentum: decay of the sum of gradients. Typical values are 0.9 to 0.99.
        weight_decay: L2 penalty on the weights. Typical values are 0.0001 to 0.001.
    """
    make: MakeOptimizer = TensorRateSGD if isinstance(rate, Tensor) else torch.optim.SGD
    return make(parameters, rate, momentum=momentum, weight_decay=weight_decay)


@OPTIMIZERS.register("adam", ADAPTIVE)
def adam(
    parameters: Sequence[nn.Parameter],
    rate: Rate,
    *,
    beta1: Decay = 0.9,
    beta2: Decay = 0.999,
    epsilon: PositiveFloat = 1e-8,
    weight_decay: NonNegativeFloat = 0.0,
) -> torch.optim.Optimizer:
    """Adam (Kingma and Ba, 2015); `weight_decay` is an L2 penalty.

    Args:
        parameters: of the model.
        rate: the learning rate.
        beta1: decay of the mean of gradients.
        beta2: decay of the mean of squared gradients.
        epsilon: added to the root of that mean.
        weight_decay: an L2 penalty on the weights. Typical values are 0.0001 to 0.001.
    """
    return _adaptive(torch.optim.Adam, parameters, rate, (beta1, beta2), epsilon, weight_decay)


@OPTIMIZERS.register("adamw", ADAPTIVE)
def adamw(
    parameters: Sequence[nn.Parameter],
    rate: Rate,
    *,
    beta1: Decay = 0.9,
    beta2: Decay = 0.999,
    epsilon: PositiveFloat = 1e-8,
    weight_decay: NonNegativeFloat = 0.0,
) -> torch.optim.Optimizer:
    """AdamW: `weight_decay` shrinks the weights beside the step of Adam (Loshchilov and Hutter, 2019).

    Args:
        parameters: of the model.
        rate: the learning rate.
        beta1: decay of the mean of gradients.
        beta2: decay of the mean of squared gradients.
        epsilon: added to the root of that mean.
        weight_decay: how much the weights shrink. Typical values are 0.01 to 0.1.
    """
    return _adaptive(torch.optim.AdamW, parameters, rate, (beta1, beta2), epsilon, weight_decay)


@OPTIMIZERS.register("adadelta", OptimizerDeclaration(elementwise=True, learning_rate=1.0))
def adadelta(
    parameters: Sequence[nn.Parameter],
    rate: Rate,
    *,
    rho: Decay = 0.95,
    epsilon: PositiveFloat = 1e-6,
) -> torch.optim.Optimizer:
    """Adadelta (Zeiler, 2012): the step follows from the sizes of former steps and gradients.

    Args:
        parameters: of the model.
        rate: the learning rate.
        rho: decay of both means of squares.
        epsilon: added to both means.
    """
    return torch.optim.Adadelta(parameters, rate, rho, epsilon, capturable=parameters[0].is_cuda)


def _adaptive(
    kind: MakeOptimizer,
    parameters: Sequence[nn.Parameter],
    rate: Rate,
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float,
) -> torch.optim.Optimizer:
    return kind(
        parameters,
        rate,
        betas,
        epsilon,
        weight_decay=weight_decay,
        capturable=parameters[0].is_cuda,
    )


class TensorRateSGD(torch.optim.Optimizer):
    """SGD whose rate is a tensor that a CUDA graph reads; PyTorch's copies it to the CPU at every step."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        rate: Tensor,
        *,
        momentum: float,
        weight_decay: float,
    ) -> None:
        options = {"lr": rate, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(parameters, options)

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """θ −= η·v with v = m·v + ∇ + λ·θ."""
        for group in self.param_groups:
            momentum = group["momentum"]
            for parameter in group["params"]:
                change = parameter.grad
                if group["weight_decay"]:
                    change = change.add(parameter, alpha=group["weight_decay"])
                if momentum:
                    state = self.state[parameter]
                    if not state:
                        state["momentum_buffer"] = torch.zeros_like(parameter)
                    change = state["momentum_buffer"].mul_(momentum).add_(change)
                parameter.addcmul_(change, group["lr"], value=-1)


Schedule = Callable[..., float]
Count = Annotated[int, Ge(0), Le(10**9)]
SCHEDULES: Registry[Schedule] = Registry(
    "schedule", "schedules", "Learning rates by round, as factors"
)


@dataclass(frozen=True)
class ScheduleDeclaration(Declaration):
    """What the config must know about a schedule."""

    is_constant: bool = False  # the factor is 1 in every round
    # The option that is the number of rounds of the run where it is not given
    spans: str | None = None


@SCHEDULES.register("constant", ScheduleDeclaration(is_constant=True))
def constant(round_num: int) -> float:
    """The same learning rate in every round."""
    return 1.0


@SCHEDULES.register("cosine", ScheduleDeclaration(spans="rounds"))
def cosine(
    round_num: int, *, rounds: PositiveInt | None = None, end: Share = 0.0, warmup: Count = 0
) -> float:
    """Half a cosine from 1 down to `end` (Loshchilov and Hutter, 2017).

    Args:
        round_num: from 1.
        rounds: after which the factor is `end`. Default: the rounds of the run.
        end: the last factor.
        warmup: rounds of a linear increase first, as of `warmup`.
    """
    assert rounds is not None, "a config fills it in"
    if round_num <= warmup:
        return warm_up(round_num, rounds=warmup + 1)
    done = min(1.0, (round_num - 1 - warmup) / max(1, rounds - warmup))
    return end + (1 - end) * (1 + math.cos(math.pi * done)) / 2


@SCHEDULES.register("step")
def step(round_num: int, *, every: PositiveInt, factor: OpenShare = 0.1) -> float:
    """Times `factor` after every so many rounds.

    Args:
        round_num: from 1.
        every: rounds between two changes.
        factor: of one change.
    """
    return float(factor ** ((round_num - 1) // every))


@SCHEDULES.register("warmup")
def warm_up(round_num: int, *, rounds: PositiveInt) -> float:
    """A linear increase to 1 in the first rounds.

    Args:
        round_num: from 1.
        rounds: the first round with the full rate.
    """
    return min(1.0, round_num / rounds)


Transform = Callable[..., Any]
TRANSFORMS: Registry[Transform] = Registry(
    "transform", "transforms", "Random changes of training batches (data augmentation)"
)


@dataclass(frozen=True)
class TransformDeclaration(Declaration):
    """What the config must know about a transform."""

    moves_pixels: bool = False  # inputs must be images, and targets must not


@TRANSFORMS.register("flip", TransformDeclaration(moves_pixels=True))
def flip(inputs: Tensor) -> Tensor:
    """Mirror each image horizontally with probability 1/2.

    Args:
        inputs: images [B, ..., height, width].
    """
    _refuse_no_images("flip", inputs)
    mirrored = torch.rand(len(inputs), device=inputs.device) < 0.5
    return torch.where(_per_sample(mirrored, inputs), inputs.flip(-1), inputs)


@TRANSFORMS.register("shift", TransformDeclaration(moves_pixels=True))
def shift(inputs: Tensor, *, pixels: PositiveInt = 4) -> Tensor:
    """Shift each image by up to `pixels` in both directions; the border becomes 0 (a random crop).

    Args:
        inputs: images [B, ..., height, width].
        pixels: the largest shift.
    """
    _refuse_no_images("shift", inputs)
    height, width = inputs.shape[-2:]
    padded = torch.nn.functional.pad(inputs, (pixels,) * 4)
    windows = padded.unfold(-2, height, 1).unfold(
        -2, width, 1
    )  # [B, ..., down, right, height, width]
    down, right = torch.randint(2 * pixels + 1, (2, len(inputs)), device=inputs.device)
    return windows[torch.arange(len(inputs), device=inputs.device), ..., down, right, :, :]


@TRANSFORMS.register("noise")
def noise(inputs: Tensor, *, deviation: PositiveFloat = 0.1) -> Tensor:
    """Add Gaussian noise.

    Args:
        inputs: [B, ...].
        deviation: standard deviation, in units of the inputs.
    """
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        raise ValueError("noise needs samples of floats, one array of them")
    return inputs + deviation * torch.randn_like(inputs)


def applied(transform: Transform, inputs: Any) -> Any:
    """What a transform makes of a batch; ValueError where the network cannot take it as a batch."""
    changed = transform(inputs)
    if changed is None:
        raise ValueError("the transform returned None: it must return the changed batch")
    if isinstance(inputs, Tensor) and not isinstance(changed, Tensor):
        found = type(changed).__name__
        raise ValueError(f"the transform must return a tensor, as it gets one; it returned {found}")
    if isinstance(inputs, Tensor) and changed.dtype != inputs.dtype:
        # As the network takes them: an array of NumPy in between makes float64
        return changed.to(inputs.dtype)
    return changed


def _refuse_no_images(name: str, inputs: object) -> None:
    if not isinstance(inputs, Tensor):
        raise ValueError(f"{name} needs one array of images, and the network takes several inputs")
    if inputs.ndim < 3:
        shape = tuple(inputs.shape[1:])
        raise ValueError(f"{name} needs images (..., height, width), got samples of shape {shape}")


def _per_sample(values: Tensor, inputs: Tensor) -> Tensor:
    """Values [B] in a shape that applies to inputs [B, ...]."""
    return values.view(-1, *[1] * (inputs.ndim - 1))
