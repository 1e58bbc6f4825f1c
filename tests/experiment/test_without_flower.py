"""Flower is an extra: everything else works without it, and whoever asks for it is told what to install."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import processes

SOURCE = Path(__file__).parents[2] / "src" / "clientwise"
FLOWER_PARTS = {SOURCE / "flower.py", *(SOURCE / "engine" / "flower").iterdir()}
FLOWER_PARTS |= set((SOURCE / "experiment" / "flower").iterdir())


def test_only_the_flower_parts_import_flower() -> None:
    for path in set(SOURCE.rglob("*.py")) - FLOWER_PARTS:
        if "template" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            foreign = {"flwr"} if path.name == "spread.py" else {"flwr", "ray"}  # lanes may be spread over Ray alone
            assert not {name.split(".")[0] for name in names} & foreign, path


def test_without_flower_a_run_says_what_to_install(tiny: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(tiny), encoding="utf-8")
    program = f"import sys; sys.modules['flwr'] = None; {processes.COMMAND}"
    for engine, code in (("flower", 2), ("local", 0)):
        done = processes.run(program, "run", "tiny.toml", "--engine", engine, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        if code:
            said = " ".join(done.stderr.split())
            assert not (tmp_path / "runs").exists()
            assert "tiny.toml: engine: needs Flower (flwr is missing): pip install 'clientwise[flower]'" in said


def test_an_unknown_engine_is_refused(tiny: dict[str, Any]) -> None:
    from clientwise.errors import ConfigError
    from clientwise.experiment.config import load_experiment

    with pytest.raises(ConfigError, match="engine: input should be 'local' or 'flower'"):
        load_experiment(tiny | {"engine": "flwr"})
    with pytest.raises(ConfigError, match=r"flower.train_second: unknown option; did you mean 'train_seconds'"):
        load_experiment(tiny | {"flower": {"train_second": 1.0}})
