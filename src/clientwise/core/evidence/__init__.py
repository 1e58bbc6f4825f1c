"""Evidence: weights changed by the effect of updates on held-out data, or by past and present updates."""

from __future__ import annotations

from . import (
    agnostic,
    alignins,
    credibility,
    fldetector,
    foolsgold,
    greedy,
    history,
    law,
    shapley,
    significance,
)
from .protocol import EVIDENCE, Evidence

__all__ = [
    "EVIDENCE",
    "Evidence",
    "agnostic",
    "alignins",
    "credibility",
    "fldetector",
    "foolsgold",
    "greedy",
    "history",
    "law",
    "shapley",
    "significance",
]
