"""Fingerprints of functions, objects and networks that were given in Python, the same in every process."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

PLAIN = (type(None), bool, int, float, complex, str, bytes)


def function_code(function: Callable[..., Any]) -> str:
    """The fingerprint of a function's source; of its name where there is no source."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):  # typed at a prompt
        source = function.__qualname__
    return _digest(source)


def bound_values(given: object) -> str:
    """The fingerprint of the values that a function or an object has beside its code.

    These are numbers, texts, tuples, tensors and arrays in closures, defaults, attributes and arguments of a
    `partial`. Lists and dictionaries do not count: code may collect results in them.

    >>> bound_values(partial(round, ndigits=1)) == bound_values(partial(round, ndigits=2))
    False
    """
    return _digest("\n".join(_values(given, set())))


def network_code(module: nn.Module) -> str:
    """The fingerprint of a network's layers, and of the functions of its own classes."""
    kinds: set[type] = set()
    for layer in module.modules():
        kinds.update(type(layer).__mro__)
    codes = []
    for kind in kinds:
        if kind.__module__.startswith(("torch.", "clientwise.", "builtins")):
            continue
        functions = filter(inspect.isfunction, vars(kind).values())
        codes += [function_code(function) for function in functions]
    codes.sort()
    layers = re.sub(r" at 0x[0-9a-f]+", "", repr(module))  # addresses differ in every process
    return _digest("\n".join([layers, *codes]))


def _values(value: object, seen: set[int]) -> Iterator[str]:
    """Plain values as texts; of a function or object that refers to itself, once."""
    if type(value) in PLAIN:
        yield repr(value)
    elif isinstance(value, tuple):
        for one in value:
            yield from _values(one, seen)
    elif hasattr(value, "tolist"):
        yield _array(value)
    elif id(value) not in seen:
        seen.add(id(value))
        for one in _bound(value):
            yield from _values(one, seen)


def _bound(value: object) -> Iterator[object]:
    """What a function, method, `partial` or object is bound to."""
    if isinstance(value, FunctionType):
        yield function_code(value)
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # a name that has no value yet
                yield cell.cell_contents
        yield value.__defaults__
        yield from _named(value.__kwdefaults__ or {})
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, partial):
        yield from (value.func, value.args)
        yield from _named(value.keywords)
    elif isinstance(value, nn.Module):
        yield from _named(value.state_dict())
        yield from _named(_plain_attributes(value))
    elif not isinstance(value, type):
        yield from _named(_plain_attributes(value))


def _named(values: Any) -> Iterator[object]:
    for name, value in values.items():
        yield from (name, value)


def _plain_attributes(value: object) -> dict[str, object]:
    """Those that are numbers, texts, tuples, tensors or arrays: others may hold what the object did so far."""
    found = {}
    for name, one in getattr(value, "__dict__", {}).items():
        if type(one) in PLAIN or isinstance(one, tuple) or hasattr(one, "tolist"):
            found[name] = one
    return found


def _array(value: Any) -> str:
    """The digest of a tensor's or an array's content."""
    try:
        tensor = torch.as_tensor(value).detach().cpu().contiguous()
        content = hashlib.blake2b(tensor.flatten().view(torch.uint8).numpy().data, digest_size=8)
    except Exception:  # of texts, sparse, or a user's own, which may raise anything
        return type(value).__name__
    shape = (tensor.dtype, tuple(tensor.shape))
    return f"{shape} {content.hexdigest()}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
