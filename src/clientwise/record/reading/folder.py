"""A run folder: everything that can be read of it."""

from __future__ import annotations

from .models import ModelReader
from .other_weights import CounterfactualReader
from .summary import SummaryReader


class RunFolder(SummaryReader, ModelReader, CounterfactualReader):
    """A run folder, read-only. The run may still be going.

    A file for each subject: `reader.py` (facts and lanes), `rounds.py`, `weights.py`, `clients.py`,
    `models.py`, `summary.py`, `other_weights.py`.
    """
