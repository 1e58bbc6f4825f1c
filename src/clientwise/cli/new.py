"""Start a federation of your own: `clientwise new`."""

from __future__ import annotations

import shlex
import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from .console import (
    command_name,
    fail,
    print_lines,
    print_next_steps,
)


def new(
    folder: Annotated[Path, typer.Argument(help="Folder to create.", show_default=False)],
) -> None:
    """Write a Flower app that runs unchanged in simulation and in a deployment.

    Example: clientwise new clinic
    """
    from ..hosts.deployment.known_flower import require_flower
    from ..launch import write_sample

    require_flower("a Flower app")
    if folder.exists() and not _is_empty_folder(folder):
        fail(f"{folder}: exists already; name a new folder")
    with as_file(files("clientwise") / "hosts" / "deployment" / "template") as template:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(template, folder, dirs_exist_ok=True, ignore=ignored)
    config = folder / "federation" / "experiment.toml"
    write_sample(config, folder / "data")
    print_lines([f"Written to {folder}"])
    run = f"{command_name()} run {shlex.quote(str(config))} --engine flower"
    print_next_steps(
        [
            (run, "run it in Flower's simulation"),
            (shlex.quote(str(folder / "README.md")), "use your own data in a real federation"),
        ]
    )


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
