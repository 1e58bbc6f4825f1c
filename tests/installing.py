"""Environments with clientwise as users install it."""

from __future__ import annotations

import shutil
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
    seen = set()
    open_ones = [Requirement(text) for text in requirements]
    while open_ones:
        one = open_ones.pop()
        asked = (one.name, frozenset(one.extras))
        if asked in seen:
            continue
        seen.add(asked)
        found[one.name] = metadata.distribution(one.name)
        for text in found[one.name].requires or []:
            needed = Requirement(text)
            marker = needed.marker
            if marker is None or any(
                marker.evaluate({"extra": name}) for name in ("", *one.extras)
            ):
                open_ones.append(needed)
    return found


def install(wheel: Path, folder: Path, *extras: str, others: Sequence[str] = ()) -> Path:
    """The programs of an environment with the wheel and links to its declared dependencies.

    Args:
        wheel: of clientwise.
        folder: the environment, which is made.
        extras: of clientwise.
        others: requirements beside clientwise.
    """
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
    needed = [*wanted(ours.requires or [], extras), *others]
    for distribution in dependencies(needed).values():
        for name in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            if not (packages / name).exists():  # several may share a namespace
                place = Path(str(distribution.locate_file(name)))
                if name == "nvflare":  # it refuses files outside of the environment
                    shutil.copytree(place, packages / name)
                else:
                    (packages / name).symlink_to(place)
        for file in distribution.files or []:
            if file.parts[0] == ".." and file.parts[-2] == "bin":
                _add_program(Path(str(distribution.locate_file(file))).resolve(), folder / "bin")
    return folder / "bin"


def _add_program(program: Path, folder: Path) -> None:
    """A link to a program; one in Python is copied, and runs in this environment."""
    content = program.read_bytes()
    interpreter, _, rest = content.partition(b"\n")
    target = folder / program.name
    if interpreter.startswith(b"#!") and b"python" in interpreter:
        target.write_bytes(b"#!" + bytes(folder / "python") + b"\n" + rest)
        target.chmod(0o755)
    elif not target.exists():
        target.symlink_to(program)
