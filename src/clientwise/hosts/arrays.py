"""Models as arrays by name, as hosts send them, and as one vector, as the core reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
import torch
from torch import Tensor

from ..core.types import Layer, ModelSpec

Arrays = Mapping[str, Any]  # NumPy arrays or tensors, by name
OTHER_SHAPE = "model of another shape"
OTHER_TYPE = "model of another type"
NO_NAMES = "does not hold arrays by name"


class Layout:
    """The names, shapes and types of a global model.

    Floating-point arrays are the vector [d]. Others, such as counters of batches, are no part of it.

    Args:
        model: the global model.
        spec: the layout of the network whose state the arrays are. Without it, the order is that of
            the arrays, and all are parameters.
    """

    def __init__(self, model: Arrays, spec: ModelSpec | None = None) -> None:
        if not isinstance(model, Mapping):
            raise ValueError(f"the global model {NO_NAMES}: pass a dict, such as a state_dict")
        self._tensors = _copied(_tensors(model))  # of the last global model
        self._is_tensor = {name: isinstance(array, Tensor) for name, array in model.items()}
        found = _spec_of(self._tensors)
        self.spec = spec or found
        if _shapes(self.spec) != _shapes(found):
            raise ValueError("the arrays are not the state of `model`: names or shapes differ")
        if not found.layers:
            raise ValueError("the global model has no floating-point array")

    def renew(self, model: Arrays) -> None:
        """Take another global model; ValueError where its names, shapes or types differ."""
        try:
            self._tensors = _copied(self.fit(model))
        except ValueError as error:
            raise ValueError(f"the global model is not that of the first round: {error}") from None

    def fit(self, arrays: Arrays) -> dict[str, Tensor]:
        """A model with the names, the order and the types of the global one.

        ValueError where names or shapes differ, or a type cannot be converted.
        """
        if not isinstance(arrays, Mapping):
            raise ValueError(NO_NAMES)
        self._compare({name: tuple(numpy.shape(array)) for name, array in arrays.items()})
        found = _tensors(arrays)
        fitted = {}
        for name, ours in self._tensors.items():
            if not torch.can_cast(found[name].dtype, ours.dtype):
                raise ValueError(OTHER_TYPE)
            fitted[name] = found[name].to(ours.dtype)  # what overflows is infinite from here on
        return fitted

    def _compare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """ValueError where names or shapes differ.

        It has no word of the other model, since reports count refusals by reason.
        """
        for name, ours in self._tensors.items():
            if name not in shapes:
                raise ValueError(f"{OTHER_SHAPE}: {name} is missing")
            if shapes[name] != tuple(ours.shape):
                raise ValueError(f"{OTHER_SHAPE}: {name} is not of shape {tuple(ours.shape)}")
        if len(shapes) > len(self._tensors):
            raise ValueError(f"{OTHER_SHAPE}: it has arrays that the global model has not")

    def vector(self, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
        """The vector [d] of a fitted model, or of the global one."""
        found = self._tensors if tensors is None else tensors
        return torch.cat([found[layer.name].flatten().float() for layer in self.spec.layers])

    def sent(self) -> dict[str, Any]:
        """The global model that clients were sent, as the host's arrays."""
        return self.native(self._tensors)

    def named(self, vector: Tensor) -> dict[str, Any]:
        """A vector [d] as the host's arrays. What is no part of it is that of the global model."""
        tensors = dict(self._tensors)
        for layer in self.spec.layers:
            part = vector[layer.start : layer.stop].reshape(layer.shape)
            tensors[layer.name] = part.to(tensors[layer.name].dtype)
        return self.native(tensors)

    def native(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Tensors as the host's own arrays: NumPy arrays where the global model has these."""
        arrays: dict[str, Any] = {}
        for name, tensor in tensors.items():
            arrays[name] = tensor.clone() if self._is_tensor[name] else tensor.numpy().copy()
        return arrays


def _tensors(arrays: Arrays) -> dict[str, Tensor]:
    """Tensors on the CPU; ValueError for what holds no numbers."""
    found = {}
    for name, array in arrays.items():
        if isinstance(array, Tensor):
            found[name] = array.detach().cpu()
            continue
        try:
            found[name] = torch.from_numpy(numpy.array(array))  # a copy: hosts reuse their memory
        except (TypeError, ValueError):
            raise ValueError(OTHER_TYPE) from None
    return found


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies: a host may train the module in place whose state it passed."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _spec_of(tensors: Mapping[str, Tensor]) -> ModelSpec:
    """All floating-point tensors as parameters, in their order."""
    layers = []
    start = 0
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            layers.append(Layer(name, tuple(tensor.shape), start, start + tensor.numel()))
            start += tensor.numel()
    return ModelSpec(tuple(layers), start, start)


def _shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    return {layer.name: layer.shape for layer in spec.layers}
