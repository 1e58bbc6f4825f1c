"""Environments of processes with another locale. Most machines have but few, so they are made here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def in_ascii() -> dict[str, str]:
    """The environment of a process whose files and terminal are ASCII, as far as Python is concerned.

    Without these settings, Python takes UTF-8 in place of the locale "C".
    """
    return plain() | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def in_turkish(folder: Path) -> dict[str, str]:
    """The environment of a process for which the small letter of "I" is not "i".

    The locale is made in a folder. The test is skipped where that is not possible.
    """
    if shutil.which("localedef") is None:
        pytest.skip("needs localedef, to make a Turkish locale")
    name = "tr_TR.UTF-8"
    make = ["localedef", "-i", "tr_TR", "-f", "UTF-8", str(folder / name)]
    made = subprocess.run(make, capture_output=True, text=True, encoding="utf-8", errors="replace")
    if not (folder / name).is_dir():
        pytest.skip(f"localedef cannot make a Turkish locale: {made.stderr.strip()}")
    return plain() | {"LOCPATH": str(folder), "LC_ALL": name}


def plain() -> dict[str, str]:
    """This process's environment without what says how text is encoded."""
    said = ("LANG", "LANGUAGE", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONCOERCECLOCALE")
    return {
        name: value
        for name, value in os.environ.items()
        if name not in said and not name.startswith("LC_")
    }
