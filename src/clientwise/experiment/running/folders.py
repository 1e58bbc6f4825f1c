"""Run folders: make one, find one, and claim one."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from ...errors import RunError
from ...record.files import BEST, CONFIG, plain_name
from ...writing import left_behind, make_folder


def new_folder(name: str, parent: Path = Path("runs")) -> Path:
    """Make a new folder runs/NAME-DATE-TIME; a number follows where that folder exists."""
    stem = f"{plain_name(name)}-{datetime.now():%Y%m%d-%H%M%S}"
    make_folder(parent)
    folder = parent / stem
    number = 2
    while True:
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            folder = parent / f"{stem}-{number}"
            number += 1


def newest_run(parent: Path = Path("runs")) -> Path:
    """The newest run folder in runs/."""
    written = [*parent.glob(f"*/{CONFIG}"), *parent.glob("*/matrix.toml")]
    if not written:
        raise RunError(f"{parent}/: no run here yet; `clientwise demo` makes one")
    return max(written, key=modified).parent


def claim(folder: Path, resume: bool) -> None:
    """Make the folder, so that it can be locked. A folder with other files is refused."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if not (folder / CONFIG).is_file():  # the first file of a run, so it is looked for last
        unfinished = {left.name for name in (CONFIG, BEST) for left in left_behind(folder / name)}
        if names - unfinished - {".lock", BEST}:
            raise RunError(f"{folder}: not empty, and not a run of clientwise")
        if resume and not names:
            raise RunError(f"{folder}: there is no run here to resume")
    make_folder(folder)


def modified(path: Path) -> float:
    """When a file was last written."""
    return path.stat().st_mtime
