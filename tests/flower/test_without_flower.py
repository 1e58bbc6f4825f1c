"""Flower is an extra: everything else works without it, and whoever asks for it is told what to install."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

SOURCE = Path(__file__).parents[2] / "src" / "clientwise"


def test_only_the_flower_parts_import_flower() -> None:
    hosts = SOURCE / "hosts"
    for path in set(SOURCE.rglob("*.py")) - {*(hosts / "flower").rglob("*")}:
        text = path.read_text(encoding="utf-8")
        if "flwr" not in text and "ray" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += (
                [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            )
            foreign = (
                {"flwr"} if path.name in ("cluster.py", "shards.py") else {"flwr", "ray"}
            )  # lanes and clients may be spread over Ray alone
            assert not {name.split(".")[0] for name in names} & foreign, path


def test_nothing_is_reported_home() -> None:
    """Whoever imports any part of the package runs its __init__ first, and there the switches come first."""
    first, *rest = ast.parse(
        (SOURCE / "hosts" / "flower" / "__init__.py").read_text(encoding="utf-8")
    ).body[1:]
    assert isinstance(first, ast.Import)
    assert [alias.name for alias in first.names] == ["os"]
    assert isinstance(rest[0], ast.For)
    for switch in (
        "FLWR_TELEMETRY_ENABLED",
        "FLWR_DISABLE_UPDATE_CHECK",
        "RAY_USAGE_STATS_ENABLED",
    ):
        assert switch in ast.unparse(rest[0])


WITHOUT = """
import importlib, pkgutil, sys
sys.modules["flwr"] = sys.modules["ray"] = None  # as if they were not installed
import clientwise as cw
for module in pkgutil.walk_packages(cw.__path__, "clientwise."):
    theirs = (".flower", ".nvflare", ".__main__")
    if not any(name in module.name for name in theirs):
        importlib.import_module(module.name)
experiment = cw.load("tiny.toml", ["rounds=1"])
assert cw.Run(cw.run(experiment, "run")).finished
try:
    cw.run(cw.load("tiny.toml", ["engine=flower"]))
except cw.ClientwiseError as error:
    print(error)
"""


def test_without_flower_all_else_works_and_a_run_says_what_to_install(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(tiny), encoding="utf-8")
    command = [sys.executable, "-c", WITHOUT]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=200, check=False
    )
    assert (
        done.stdout == 'tiny.toml: engine: Flower needs flwr: pip install "clientwise[flower]"\n'
    ), done.stderr
    assert not (tmp_path / "runs").exists()


def test_an_unknown_engine_is_refused(tiny: dict[str, Any]) -> None:
    from clientwise.errors import ConfigError
    from clientwise.experiment.load import load_experiment

    with pytest.raises(ConfigError, match=r"engine = .*: must be 'local' or 'flower'"):
        load_experiment(tiny | {"engine": "flwr"})
    with pytest.raises(
        ConfigError, match=r"flower.reply_second: unknown option; did you mean 'reply_seconds'"
    ):
        load_experiment(tiny | {"flower": {"reply_second": 1.0}})
