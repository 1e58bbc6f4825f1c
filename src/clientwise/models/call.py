"""Calling any network: one input or several, and its predictions wherever it puts them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from torch import Tensor, nn


def outputs_of(module: nn.Module, inputs: Tensor | Mapping[str, Tensor]) -> Tensor:
    """What a network predicts for a batch.

    Inputs by name are keyword arguments of `forward`, or one dictionary where `forward` has no such arguments.
    Predictions are what it returns, or the `logits` of that, as Hugging Face's networks have them.

    Example:
        >>> import torch
        >>> class Two(nn.Module):
        ...     def forward(self, left, right):
        ...         return {"logits": left + right}
        >>> outputs_of(Two(), {"left": torch.ones(1), "right": torch.ones(1)})
        tensor([2.])
    """
    if isinstance(inputs, Tensor):
        return _logits(module(inputs))
    if _has_arguments(module, inputs):
        return _logits(module(**inputs))
    _refuse_other_names(module, inputs)
    return _logits(module(dict(inputs)))


def _has_arguments(module: nn.Module, names: Mapping[str, object]) -> bool:
    try:
        inspect.signature(module.forward).bind(**names)
    except TypeError:
        return False
    return True


def _refuse_other_names(module: nn.Module, names: Mapping[str, object]) -> None:
    """TypeError where `forward` takes several arguments, and not these."""
    signature = inspect.signature(module.forward)
    try:
        signature.bind(names)
    except TypeError:
        wanted = ", ".join(signature.parameters)
        raise TypeError(
            f"its forward takes {wanted}, and the samples have the inputs {', '.join(names)}"
        ) from None


def _logits(returned: object) -> Tensor:
    if isinstance(returned, Mapping) and "logits" in returned:
        returned = returned["logits"]
    found = getattr(returned, "logits", returned)
    if not isinstance(found, Tensor):
        raise TypeError(
            f"must return a tensor, or `logits` in an object or dictionary, returned {_described(returned)}"
        )
    return found


def _described(returned: object) -> str:
    if isinstance(returned, Mapping):
        return f"a dictionary with {', '.join(map(str, returned)) or 'nothing'}"
    return type(returned).__name__
