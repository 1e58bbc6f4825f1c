"""Evidence: weights changed by the effect of updates on held-out data, or by past and present updates."""

from __future__ import annotations

from . import rivals, significance
from .base import EVIDENCE, Evidence

__all__ = ["EVIDENCE", "Evidence", "rivals", "significance"]
