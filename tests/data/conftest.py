"""What tests of loaders share."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_files import SMALL


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder for small files, which the loaders take for whole."""
    for module, constants in SMALL.items():
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)
    return tmp_path
