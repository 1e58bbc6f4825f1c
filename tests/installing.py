"""Environments with clientwise as users install it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def wanted(requirements: Sequence[str], extras: Iterable[str] = ()) -> Iterator[str]:
    """The requirements of clientwise with these extras, in which it may name others of its own."""
    for text in requirements:
        one = Requirement(text)
        named = [
            one.marker is None or one.marker.evaluate({"extra": name}) for name in ("", *extras)
        ]
        if any(named) and one.name == "clientwise":
            yield from wanted(requirements, one.extras)
        elif any(named):
            yield str(one).partition(";")[0]


def dependencies(requirements: Iterable[str]) -> dict[str, metadata.Distribution]:
    """All distributions that these need, those that they need ..., by name."""
    found: dict[str, metadata.Distribution] = {}
    open_ones = [Requirement(text) for text in requirements]
    while open_ones:
        one = open_ones.pop()
        if one.name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found[one.name] = metadata.distribution(one.name)
            open_ones += [Requirement(text) for text in found[one.name].requires or []]
    return found


def install(wheel: Path, folder: Path, *extras: str) -> Path:
    """The programs of an environment with the wheel and links to its declared dependencies."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(folder / "bin" / "python"),
        "install",
        "--quiet",
        "--no-deps",
    ]
    subprocess.run([*pip, "--no-index", str(wheel)], check=True)
    (ours,) = metadata.distributions(name="clientwise", path=[str(packages)])
    for distribution in dependencies(wanted(ours.requires or [], extras)).values():
        for name in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            if not (packages / name).exists():  # several may share a namespace
                (packages / name).symlink_to(Path(str(distribution.locate_file(name))))
    return folder / "bin"
