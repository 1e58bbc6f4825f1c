"""Whether two functions or objects that were given in Python do the same."""

from __future__ import annotations

from functools import partial
from types import FunctionType
from typing import Any


def do_the_same(one: Any, other: Any) -> bool:
    """Whether two functions or objects have the same code and values; False where that cannot be known.

    >>> do_the_same(partial(round, ndigits=1), partial(round, ndigits=1))
    True
    """
    try:
        return _same(one, other)
    except Exception:  # values of a user may refuse to be compared, or refer to each other
        return False


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if hasattr(one, "tolist"):  # tensors and arrays
        return one.dtype == other.dtype and bool(one.tolist() == other.tolist())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(_same, one.values(), other.values()))
    if isinstance(one, FunctionType):
        return one.__code__ is other.__code__ and _same(_bound(one), _bound(other))
    if isinstance(one, partial):
        return _same((one.func, one.args, one.keywords), (other.func, other.args, other.keywords))
    if isinstance(one, type) or not hasattr(one, "__dict__"):
        return bool(one == other)
    return _same(vars(one), vars(other))


def _bound(function: FunctionType) -> tuple[Any, ...]:
    """The values that a function has beside its code."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return cells, function.__defaults__, function.__kwdefaults__
