"""A network of the user's own, handed over in Python."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable

from torch import Tensor, nn

from .flat import flattened

OwnNetwork = nn.Module | Callable[..., nn.Module]


class OwnModel:
    """Called like a network by name. A module is copied, numbers and all; a function or class is called anew."""

    def __init__(self, model: OwnNetwork, start: Tensor | None = None) -> None:
        """Take a network.

        Args:
            model: the network, or what makes it.
            start: the parameters that every seed begins with, as one vector; None: those of the module, or those
                that are drawn by the seed.
        """
        self._model = model
        self.start = start
        named = type(model) if isinstance(model, nn.Module) else model
        self.name: str = getattr(named, "__name__", type(named).__name__)

    @property
    def is_module(self) -> bool:
        """Whether it is a module: every seed then begins with its parameters."""
        return isinstance(self._model, nn.Module)

    def parameters(self) -> Tensor | None:
        """The parameters of the module, as one vector; None of a function, which draws them by the seed."""
        return flattened(self._model).cpu() if isinstance(self._model, nn.Module) else None

    def starting_from(self, start: Tensor) -> OwnModel:
        """The same, where every seed begins with these parameters."""
        return OwnModel(self._model, start)

    def __call__(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """The network for such samples; ValueError where it cannot be made."""
        if isinstance(self._model, nn.Module):
            return copy.deepcopy(self._model)
        made: object = self._model(*self._arguments(input_shape, num_outputs))
        if not isinstance(made, nn.Module):
            raise ValueError(f"{self.name} must give a torch.nn.Module, gave {type(made).__name__}")
        return made

    def _arguments(self, *shapes: object) -> tuple[object, ...]:
        """What it asks for: nothing, or the two shapes."""
        if not callable(self._model):
            raise ValueError(f"must be a module or make one, got {self.name}")
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        given = inspect.signature(self._model).parameters.values()
        required = [
            one.name for one in given if one.default is one.empty and one.kind not in several
        ]
        if len(required) not in (0, 2):
            wanted = "must be called with nothing, or with the shape of a sample and the number of outputs"
            raise ValueError(f"{self.name} {wanted}; it asks for {', '.join(required)}")
        return shapes if required else ()
