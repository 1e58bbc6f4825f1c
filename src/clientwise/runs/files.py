"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old one or the new one and nothing between."""
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def plain_name(text: str) -> str:
    """A name as a file can have it.

    >>> plain_name("size/2, then loss")
    'size-2--then-loss'
    """
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in text)


def checkpoint_path(folder: Path, lane: int) -> Path:
    """Where a run folder keeps the checkpoint of a lane."""
    return folder / "checkpoints" / f"lane-{lane}.safetensors"
