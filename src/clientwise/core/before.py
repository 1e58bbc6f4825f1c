"""What happens to the updates before the rule: clipping, mixing, rescaling.

A step is a function of what the server has gathered and the weights [n], and returns the updates [n, d] that go on.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..registry import Registry

Before = Callable[..., Tensor]
BEFORE: Registry[Before] = Registry("step before the rule", "before", "What happens to the updates before the rule")
