"""Evidence: weights changed by the effect of updates on held-out data, or by past and present updates."""

from __future__ import annotations

from . import fldetector, history, rivals, significance
from .base import EVIDENCE, Evidence

__all__ = ["EVIDENCE", "Evidence", "fldetector", "history", "rivals", "significance"]
