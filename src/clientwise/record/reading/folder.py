"""A run folder: everything that can be read of it."""

from __future__ import annotations

from .counterfactuals import CounterfactualReader
from .models import ModelReader
from .summary import SummaryReader


class RunFolder(SummaryReader, ModelReader, CounterfactualReader):
    """A run folder, read-only. The run may still be going.

    A file for each subject: `reader.py` (facts and lanes), `rounds.py`, `weights.py`, `clients.py`,
    `models.py`, `summary.py`, `counterfactuals.py`.
    """
