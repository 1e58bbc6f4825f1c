"""Optimizers of local training, by name.

An optimizer is a function of the parameters, the learning rate and the training options. It returns a
`torch.optim.Optimizer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..registry import Decay, Declaration, Part, PositiveFloat, Registry
from .types import LocalTraining

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
    takes_momentum: bool = True  # the key `momentum` of [training]
    # A class of PyTorch or of a user, whose options `momentum` and `weight_decay` of [training] are
    is_class: bool = False
    learning_rate: float | None = None  # where a config gives none; None: it must give one


PLAIN = OptimizerDeclaration(elementwise=True, is_plain=True, learning_rate=0.1)
ADAPTIVE = OptimizerDeclaration(elementwise=True, takes_momentum=False, learning_rate=0.001)


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
    """Whether its step is θ −= η·∇, if there is no momentum and no decay."""
    return isinstance(optimizer, str) and declared_of(optimizer).is_plain


@OPTIMIZERS.register("sgd", PLAIN)
def sgd(
    parameters: Sequence[nn.Parameter],
    rate: Rate,
    training: LocalTraining,
    *,
    nesterov: bool = False,
) -> torch.optim.Optimizer:
    """Stochastic gradient descent, with `momentum` and `weight_decay` of [training].

    Args:
        parameters: of the model.
        rate: the learning rate.
        training: has the momentum and the weight decay.
        nesterov: Nesterov's momentum.
    """
    make: MakeOptimizer = TensorRateSGD if isinstance(rate, Tensor) else torch.optim.SGD
    made: torch.optim.Optimizer = make(
        parameters,
        rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        nesterov=nesterov,
    )
    return made


@OPTIMIZERS.register("adam", ADAPTIVE)
def adam(
    parameters: Sequence[nn.Parameter],
    rate: Rate,
    training: LocalTraining,
    *,
    beta1: Decay = 0.9,
    beta2: Decay = 0.999,
    epsilon: PositiveFloat = 1e-8,
) -> torch.optim.Optimizer:
    """Adam (Kingma and Ba, 2015); `weight_decay` is an L2 penalty.

    Args:
        parameters: of the model.
        rate: the learning rate.
        training: has the weight decay.
        beta1: decay of the mean of gradients.
        beta2: decay of the mean of squared gradients.
        epsilon: added to the root of that mean.
    """
    return torch.optim.Adam(
        parameters,
        rate,
        (beta1, beta2),
        epsilon,
        weight_decay=training.weight_decay,
        capturable=parameters[0].is_cuda,
    )


@OPTIMIZERS.register("adamw", ADAPTIVE)
def adamw(
    parameters: Sequence[nn.Parameter],
    rate: Rate,
    training: LocalTraining,
    *,
    beta1: Decay = 0.9,
    beta2: Decay = 0.999,
    epsilon: PositiveFloat = 1e-8,
) -> torch.optim.Optimizer:
    """AdamW: `weight_decay` shrinks the weights beside the step of Adam (Loshchilov and Hutter, 2019).

    Args:
        parameters: of the model.
        rate: the learning rate.
        training: has the weight decay. Typical values are 0.01 to 0.1.
        beta1: decay of the mean of gradients.
        beta2: decay of the mean of squared gradients.
        epsilon: added to the root of that mean.
    """
    return torch.optim.AdamW(
        parameters,
        rate,
        (beta1, beta2),
        epsilon,
        weight_decay=training.weight_decay,
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
        nesterov: bool,
    ) -> None:
        if nesterov and not momentum:
            raise ValueError("Nesterov momentum requires a momentum")
        options = {
            "lr": rate,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(parameters, options)

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """θ −= η·v with v = m·v + ∇ + λ·θ; with Nesterov's momentum, θ −= η·(∇ + λ·θ + m·v)."""
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
                    velocity = state["momentum_buffer"].mul_(momentum).add_(change)
                    change = change.add(velocity, alpha=momentum) if group["nesterov"] else velocity
                parameter.addcmul_(change, group["lr"], value=-1)
