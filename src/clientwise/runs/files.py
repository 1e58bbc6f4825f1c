"""Files that are whole or not there, and files that anybody may have put into a run folder."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old one or the new one and nothing between."""
    temporary = make_way(path.with_name(path.name + ".part"))
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def make_way(path: Path) -> Path:
    """The path, with no link or pipe there any more: what is written is to lie here, and nowhere else."""
    if path.is_symlink() or path.is_fifo():
        path.unlink()
    return path


def plain_name(text: str) -> str:
    """A name as a file can have it.

    >>> plain_name("size/2, then loss")
    'size-2--then-loss'
    """
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in text)


def checkpoint_path(folder: Path, lane: int) -> Path:
    """Where a run folder keeps the checkpoint of a lane."""
    return folder / "checkpoints" / f"lane-{lane}.safetensors"


def kept_path(folder: Path, lane: int, round_num: int) -> Path:
    """Where it keeps the model after a round, where that is kept for good."""
    return folder / "checkpoints" / f"lane-{lane}-round-{round_num}.safetensors"


def kept_rounds(folder: Path, lane: int) -> list[int]:
    """The rounds of a lane whose models are kept for good."""
    pattern = re.compile(rf"lane-{lane}-round-([0-9]{{1,9}})\.safetensors")
    names = (pattern.fullmatch(path.name) for path in (folder / "checkpoints").glob(f"lane-{lane}-round-*"))
    return sorted(int(name[1]) for name in names if name)


def read_whole(path: Path, most: int) -> bytes:
    """The content of a file; an OSError where it is none, a pipe that never ends say, or has more than `most` bytes."""
    with open(path, "rb", opener=_without_waiting) as file:
        content = file.read(most + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    if content is None or len(content) > most:
        raise OSError(f"{path}: not a file of {most:,} bytes at most")
    return content


def _without_waiting(path: str, flags: int) -> int:
    """A pipe opens only once somebody writes to it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
