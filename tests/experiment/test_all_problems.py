"""All problems of a config at once, and the paths in it."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner, Result

import clientwise as cw
from clientwise.cli import app
from clientwise.experiment.build.data import data_folder
from clientwise.experiment.load import load_experiment
from clientwise.experiment.matrix.grid import load_matrix
from clientwise.experiment.matrix.runs import run_matrix


def write(path: Path, table: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tomli_w.dumps(table))
    return path


def write_rows(path: Path) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["x", "y"])
        rows.writerows([place, "high" if place > 30 else "low"] for place in range(60))


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def problems(file: Path, *options: str) -> list[str]:
    """What `check` says is wrong, without the name of the file."""
    found = command("check", file, *options)
    assert isinstance(found.exception, cw.ClientwiseError), found.output
    return [line.removeprefix(f"{file}: ") for line in str(found.exception).splitlines()]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A config for a table of the user's own."""
    monkeypatch.delenv("CLIENTWISE_DATA", raising=False)
    return {
        "rounds": 1,
        "data": {"name": "table", "files": "rows.csv", "target": "y"},
        "partition": {"name": "iid", "clients": 3},
        "model": "linear",
        "methods": ["FedAvg"],
        "device": "cpu",
    }


def test_types_methods_and_presets_are_said_at_once(table: dict[str, Any], tmp_path: Path) -> None:
    table |= {
        "rounds": -1,
        "training": {"epochs": 0},
        "methods": ["FedAvg", "Recomended", {"name": "mine", "like": "FedAvgg"}],
        "presets": {"quick": {"training": {"batch_size": "al"}}},
    }
    found = problems(write(tmp_path / "bad.toml", table))
    assert found == [
        "methods[1]: there is no method 'Recomended'; did you mean 'Recommended'?",
        "methods[2].like: there is no method 'FedAvgg'; did you mean 'FedAvg'?",
        "rounds = -1: must be greater than 0.",
        "training.epochs = 0: must be greater than 0.",
        "training.batch_size = 'al': must be an integer or 'full'.",
    ]


@pytest.mark.parametrize("presets", [3, 3.5, "quick", [1], {"quick": 3}])
def test_presets_that_are_no_tables(table: dict[str, Any], tmp_path: Path, presets: Any) -> None:
    (found,) = set(problems(write(tmp_path / "bad.toml", table | {"presets": presets})))
    assert found.startswith("presets: must be tables")


def test_data_clients_device_and_model_are_said_at_once(
    table: dict[str, Any], tmp_path: Path
) -> None:
    table |= {
        "device": "cpu",
        "precision": "tf32",
        "data": "digits",
        "model": "lstm",
        "training": {"loss": "mse"},
        "federation": {"clients_per_round": 30},
        "hostile": [{"clients": 30, "attack": "sign_flip"}],
    }
    found = problems(write(tmp_path / "bad.toml", table))
    for said in (
        "precision = 'tf32': needs a GPU",
        "training.loss: mse needs numbers to predict",
        "federation.clients_per_round = 30: there are only 3 clients",
        "hostile[0].clients = 30: 30 hostile clients of 3: too many",
        "model: ",
    ):
        assert sum(line.startswith(said) for line in found) == 1, (said, found)
    assert len(found) == 5


def test_every_wrong_option_of_the_command_is_said(table: dict[str, Any], tmp_path: Path) -> None:
    file = write(tmp_path / "bad.toml", table)
    assert problems(file, "--set", "rounds", "--set", "rounds.x=3")[:2] == [
        "--set rounds: write key=value, for instance training.learning_rate=0.05",
        "--set rounds.x=3: there is no key 'rounds.x' in this config",
    ]
    unknown = problems(file, "--methods", "Krumm,Medean")
    assert [line.partition("; ")[0] for line in unknown] == [
        "methods: there is no method 'Krumm'",
        "methods: there is no method 'Medean'",
    ]


@pytest.fixture
def federations(table: dict[str, Any], tmp_path: Path) -> Path:
    """A matrix on three federations, of which two lack their files."""
    write_rows(tmp_path / "rows.csv")
    data = {
        name: {"data": {"name": "table", "files": f"{name}.csv", "target": "y"}}
        for name in ("rows", "gone", "lost")
    }
    table["matrix"] = {
        "shares": [0.4, 0.6],
        "attacks": {"flip": {"attack": "sign_flip"}, "noise": {"attack": "noise"}},
        "data": data,
    }
    return write(tmp_path / "matrix.toml", table)


def test_missing_files_of_all_cells_are_said_before_the_first_cell_runs(
    federations: Path, tmp_path: Path
) -> None:
    begun: list[str] = []
    with pytest.raises(cw.ClientwiseError) as error:
        run_matrix(
            load_matrix(federations),
            tmp_path / "run",
            on_cell=lambda cell, number, count: begun.append(cell.name),
        )
    said = "no such file; paths start from the config's folder, or from `data_dir`"
    assert str(error.value).splitlines() == [
        f"{federations}: matrix, {name}, clean: data: {tmp_path}/{name}.csv: {said}"
        for name in ("gone", "lost")
    ]
    assert begun == []
    assert not (tmp_path / "run").exists()
    assert problems(federations) == str(error.value).replace(f"{federations}: ", "").splitlines()


def test_a_wrong_cell_does_not_hide_those_of_others(federations: Path) -> None:
    text = federations.read_text().replace('attack = "sign_flip"', 'attack = "sing_flip"')
    federations.write_text(text.replace('attack = "noise"', 'attack = "nois"'))
    found = problems(federations)
    assert [line.partition(": ")[2].partition(";")[0] for line in found] == [
        "hostile[0].attack[0]: unknown attack 'sing_flip'",
        "hostile[0].attack[0]: unknown attack 'nois'",
    ]


def test_paths_start_from_the_folder_of_the_config(
    table: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the command runs in another folder: data, plugins, --set and federations."""
    folder = tmp_path / "study"
    (folder / "code").mkdir(parents=True)
    (folder / "data").mkdir()
    write_rows(folder / "rows.csv")
    write_rows(folder / "data" / "rows.csv")
    (folder / "code" / "paths_of_study.py").write_text("")
    table |= {
        "plugins": ["paths_of_study"],
        "plugin_dir": "code",
        "data_dir": ".",
    }
    file = write(folder / "own.toml", table)
    monkeypatch.chdir(tmp_path)
    relative = os.path.relpath(file)
    experiment = load_experiment(relative)
    assert experiment.data_dir == str(folder)
    assert experiment.plugin_dir == str(folder / "code")
    changed = load_experiment(relative, ["data_dir=data", "initial_model=first.safetensors"])
    assert changed.data_dir == str(folder / "data")
    assert changed.initial_model == str(folder / "first.safetensors")
    assert "60 samples" in command("check", relative).output

    run = cw.run(relative, tmp_path / "run", progress=False)
    monkeypatch.chdir("/")
    assert cw.run(run.folder / "config.toml", run.folder, resume=True, rounds=2, progress=False)

    del table["plugins"], table["plugin_dir"], table["data_dir"]
    one, two = {"data_dir": "data"}, {"partition": {"name": "iid", "clients": 2}}
    table["matrix"] = {"attacks": {}, "data": {"one": one, "two": two}}
    cells = load_matrix(write(folder / "matrix.toml", table)).cells
    assert [cell.experiment.data_dir for cell in cells] == [str(folder / "data"), None]
    assert {cell.experiment.plugin_dir for cell in cells} == {str(folder)}


def test_own_files_start_from_the_config_and_published_ones_from_the_environment(
    table: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path / "rows.csv")
    file = write(tmp_path / "own.toml", table)
    monkeypatch.setenv("CLIENTWISE_DATA", str(tmp_path / "shared"))
    assert "60 samples" in command("check", file).output
    experiment = load_experiment({**table, "data": "mnist"})
    assert (experiment.plugin_dir, data_folder(experiment)) == (None, tmp_path / "shared")
