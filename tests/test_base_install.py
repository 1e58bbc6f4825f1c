"""`pip install clientwise` brings ten packages. What needs others says in one line what to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import clientwise as cw
from clientwise.experiment.matrix.grid import load_matrix
from clientwise.experiment.matrix.runs import run_matrix

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ATTEMPTS = [
    "report figure",
    "report command",
    "parquet table",
    "images picture",
    "datasets digits",
    "datasets diabetes",
    "datasets check",
    "demo mnist5k",
    "demo command",
    "flower import",
    "flower engine",
    "nvflare import",
    "tensorboard tracker",
]


def installed_with(requirements: Iterable[str]) -> set[str]:
    """The names of all distributions that these need, those that they need ..."""
    found: set[str] = set()
    open_ones = [Requirement(text) for text in requirements]
    while open_ones:
        one = open_ones.pop()
        name = one.name.lower().replace("_", "-")
        if name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found.add(name)
            needed = metadata.distribution(one.name).requires or []
            open_ones += [Requirement(text) for text in needed]
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """What base_install.py met, with no other package than the base install has."""
    base = installed_with(PROJECT["dependencies"])
    packages = [
        package
        for package, owners in metadata.packages_distributions().items()
        if not {owner.lower().replace("_", "-") for owner in owners} & {*base, "clientwise"}
    ]
    assert {"pyarrow", "matplotlib", "sklearn", "PIL", "flwr"} <= set(packages)
    assert not {"numpy", "pandas", "torch", "pydantic"} & set(packages)
    program = [sys.executable, str(Path(__file__).with_name("base_install.py"))]
    folder = tmp_path_factory.mktemp("base")
    done = subprocess.run(
        [*program, json.dumps(packages)],
        cwd=folder,
        env={**os.environ, "CLIENTWISE_DATA": str(folder)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_attempt_was_made(results: dict[str, str | None]) -> None:
    assert set(results) == set(ATTEMPTS)


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_what_needs_an_extra_names_it_in_one_line(
    results: dict[str, str | None], attempt: str
) -> None:
    error = results[attempt]
    assert error is not None
    extra = attempt.split()[0]
    assert extra in PROJECT["optional-dependencies"]
    (line,) = error.splitlines()
    assert line.endswith(f'pip install "clientwise[{extra}]"')


def test_extras_name_extras_that_exist() -> None:
    extras = PROJECT["optional-dependencies"]
    for needed in extras.values():
        for one in map(Requirement, needed):
            if one.name == "clientwise":
                assert one.extras <= extras.keys()


def test_commands_import_only_what_they_need(tmp_path: Path) -> None:
    """What must not be loaded after each statement of a process; later ones may load more."""
    config = 'rounds = 2\ndata = "digits"\nmodel = "linear"\nmethods = ["FedAvg"]\n'
    config += 'partition = { name = "iid", clients = 4 }\n'
    (tmp_path / "first.toml").write_text(config, encoding="utf-8")
    (tmp_path / "broken.toml").write_text(config + "rounds = [", encoding="utf-8")
    large = ["matplotlib", "pandas", "scipy", "sklearn", "sympy", "torch._dynamo", "functorch"]
    ours = ["experiment.running.runner", "record.store", "report.items"]
    not_loaded = {
        "import clientwise": ["annotated_types", "numpy", "pydantic", "rich", "torch", "typer"],
        "command('--help')": ["numpy", "pydantic", "torch"],
        "command('list')": ["numpy", "pydantic", "torch"],
        "refused('check', 'nowhere.toml')": ["numpy", "torch"],
        "refused('check', 'broken.toml')": ["numpy", "torch"],
        "refused('check', 'first.toml', '--methods', 'FedAvgg')": ["numpy", "torch"],
        "refused('run', 'first.toml', '--preset', 'quikc')": ["numpy", "torch"],
        "command('check', 'first.toml')": large + [f"clientwise.{name}" for name in ours],
    }
    program = f"""
        import sys
        def command(*words):
            from clientwise.cli import app
            app(words, standalone_mode=False)
        def refused(*words):
            from clientwise.errors import ConfigError
            try:
                command(*words)
            except ConfigError:
                return
            raise AssertionError
        for statement, not_loaded in {not_loaded!r}.items():
            exec(statement)
            assert "clientwise" in sys.modules
            loaded = sys.modules.keys() & not_loaded
            assert not loaded, (statement, loaded)
    """
    python(program, tmp_path)


# Only to run an experiment or draw figures. PyTorch takes seconds to import.
SLOW = {"altair", "matplotlib", "PIL", "sklearn", "torch", "torchmetrics"}
ATTACKS = {"sign flip": {"attack": {"name": "sign_flip", "strength": 2.0}}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs `one` and `two`, and a matrix."""
    folder = tmp_path_factory.mktemp("runs")
    config = {
        "rounds": 2,
        "data": "digits",
        "model": "linear",
        "partition": {"name": "dirichlet", "clients": 4, "concentration": 1.0},
        "methods": ["FedAvg", "FedProx", "FedLAW", "OnlineAdjustment", "Recommended", "AdaFed"],
    }
    bounded = {"name": "bounded", "bounds": {"cap": 0.4}, "rule": "krum"}
    cw.run({**config, "seeds": [1, 2]}, folder / "one", progress=False)
    cw.run({**config, "methods": ["FedAvg", bounded]}, folder / "two", progress=False)
    matrix = {**config, "methods": ["FedAvg", "Median"], "matrix": {"attacks": ATTACKS}}
    run_matrix(load_matrix(matrix), folder / "matrix")
    return folder


def test_commands_that_read_runs_import_nothing_slow(runs: Path) -> None:
    commands = [
        ["show", "one"],
        ["show", "one", "--round", "2"],
        ["show", "one", "--client", "2"],
        ["show", "matrix"],
        ["show", "."],
        ["show", "one", "two"],
        ["report", "one"],
        ["report", "one", "two"],
        ["report", "matrix"],
    ]
    program = f"""
        import sys
        from clientwise.cli import app
        for words in {commands!r}:
            app(words, standalone_mode=False)
            print()
            print("loaded by", *words, *({SLOW!r} & sys.modules.keys()), sep="|")
    """
    done = python(program, runs)
    said = [line for line in done.splitlines() if line.startswith("loaded by|")]
    assert said == ["|".join(["loaded by", *words]) for words in commands]
    assert (runs / "one" / "report" / "report.html").is_file()


def python(program: str, folder: Path) -> str:
    """What a program prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
