"""Evidence: the effect of updates on held-out data moves the weights of the score, and may be remembered."""

from __future__ import annotations

from . import (
    agnostic,
    alignins,
    fldetector,
    foolsgold,
    greedy,
    law,
    own_past,
    shapley,
    significance,
)
from .protocol import EVIDENCE, Evidence

__all__ = [
    "EVIDENCE",
    "Evidence",
    "agnostic",
    "alignins",
    "fldetector",
    "foolsgold",
    "greedy",
    "law",
    "own_past",
    "shapley",
    "significance",
]
