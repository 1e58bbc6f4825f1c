"""A network of the user's own, handed over in Python."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable

from torch import nn

OwnNetwork = nn.Module | Callable[..., nn.Module]


class OwnModel:
    """Called like a network by name. A module is copied, numbers and all; a function or class is called anew."""

    def __init__(self, model: OwnNetwork) -> None:
        self._model = model
        named = type(model) if isinstance(model, nn.Module) else model
        self.name: str = getattr(named, "__name__", type(named).__name__)

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
