"""A matrix: its cells, running and resuming it, and what the report makes of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
from scipy.stats import ttest_rel
from typer.testing import CliRunner

import clientwise as cw
import processes
from clientwise.cli import app
from clientwise.errors import ClientwiseError, ConfigError, RunError
from clientwise.experiment.config_file import read_config
from clientwise.experiment.matrix.grid import (
    Matrix,
    MatrixCell,
    load_matrix,
    make,
    open_matrix,
)
from clientwise.experiment.matrix.runs import CellsFailedError, run_matrix
from clientwise.experiment.trackers import Progress
from clientwise.record.run import is_finished
from clientwise.report.items import Chart, Table
from clientwise.report.page import as_csv
from clientwise.report.standings import (
    Federation,
    MatrixReport,
    Results,
    matrix_report,
    mean_differences,
    mean_ranks,
    read_results,
    standings,
    write_matrix,
)
from recorded import everything

ATTACKS = {
    "flip": {"attack": {"name": "sign_flip", "strength": 5.0}},
    "labels": {"attack": "wrong_labels"},
}


@pytest.fixture
def config(tiny: dict[str, Any]) -> dict[str, Any]:
    methods = [{"name": "FedAvg"}, "Median", "KnowsHonest"]
    matrix = {"attacks": ATTACKS, "shares": [0.2, 0.4], "oracle": "KnowsHonest"}
    return tiny | {"rounds": 2, "seeds": [1, 2], "methods": methods, "matrix": matrix}


def test_federations_of_different_metrics_have_tables_of_their_own(
    config: dict[str, Any], tmp_path: Path
) -> None:
    diabetes = {"data": "diabetes", "model": "linear", "partition": {"name": "iid", "clients": 3}}
    config["matrix"] = {"data": {"one": {}, "sugar": diabetes}}
    config |= {"rounds": 1, "methods": ["FedAvg", "Uniform"]}
    folder = run_matrix(load_matrix(config), tmp_path / "mixed")
    found = matrix_report(folder)
    accuracy, rmse = (_table(found, f"standings-{metric}") for metric in ("accuracy", "rmse"))
    assert "on 1 federation" in accuracy.title
    assert [table.columns[1] for table in (accuracy, rmse)] == ["mean accuracy", "mean rmse"]
    assert "over the cells of one, each" in accuracy.note
    assert "over the cells of sugar, each" in rmse.note


def test_every_cell_is_an_experiment(config: dict[str, Any]) -> None:
    config["matrix"]["data"] = {"one": {}, "two": {"partition": {"clients": 10}, "rounds": 3}}
    matrix = load_matrix(config)
    assert [cell.column for cell in matrix.cells[:5]] == [
        "clean",
        "flip 20%",
        "flip 40%",
        "labels 20%",
        "labels 40%",
    ]
    assert matrix.federations == ["one", "two"]
    assert {cell.experiment.rounds for cell in matrix.cells if cell.data == "two"} == {3}
    clean, flip = matrix.cells[:2]
    assert clean.experiment.hostile == []
    assert (flip.experiment.hostile[0].clients, flip.experiment.hostile[0].attack[0].name) == (
        0.2,
        "sign_flip",
    )
    assert len({cell.folder for cell in matrix.cells}) == len(matrix.cells) == 10
    alone = {key: one for key, one in config.items() if key != "matrix"}
    assert not isinstance(make(*read_config(alone)), Matrix)
    with pytest.raises(ConfigError, match="matrix: is more than one experiment"):
        cw.load(config)


def test_a_warning_of_many_cells_is_given_once(
    config: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config["matrix"] |= {"attacks": {"flip": ATTACKS["flip"]}}
    config["methods"][0]["criteria"] = ["label_diversity"]
    folder = run_matrix(load_matrix(config | {"rounds": 1, "seeds": [1]}), tmp_path / "matrix")
    assert not [record for record in caplog.records if "warning" in record.getMessage()]
    (line,) = [line for line in matrix_report(folder).lead if "Warning" in line]
    assert line.startswith("Warning in 3 of 3 cells: ")
    assert "label_diversity of its own" in line


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shares": [1.0]}, r"matrix\.shares\[0\]"),
        ("x", "config: matrix: must be a table, got 'x'"),
        ({"share": [0.2]}, r"matrix\.share: .*did you mean 'shares'"),
        ({"oracle": "nobody"}, r"matrix\.oracle: there is no method 'nobody'"),
        ({"attacks": {"flip": {"attack": "sing_flip"}}}, r"flip 20%.*did you mean 'sign_flip'"),
        ({"attacks": {"a b": ATTACKS["flip"], "a-b": ATTACKS["flip"]}}, "would share a folder"),
        (
            {"attacks": {"a": ATTACKS["flip"] | {"clients": 0.5}}},
            r"matrix\.attacks\.a\.clients: is given by",
        ),
        ({"data": {"one": {}, "two": {"seeds": [7]}}}, "same methods and seeds"),
    ],
)
def test_what_cannot_be_run_is_refused(config: dict[str, Any], change: Any, message: str) -> None:
    config["matrix"] = change if isinstance(change, str) else config["matrix"] | change
    with pytest.raises(ConfigError, match=message):
        load_matrix(config)


def test_hostile_clients_do_not_go_with_a_matrix(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"hostile: does not go with \[matrix\]"):
        load_matrix(config | {"hostile": [{"clients": 1, "attack": "noise"}]})


def test_a_rule_is_told_the_share_of_its_column(config: dict[str, Any]) -> None:
    neighbours = {"name": "nearest_neighbours", "hostile": "column"}
    config["methods"] = [
        "KnowsHonest",
        {"like": "DnC", "rule": {"hostile": "column"}},
        {"name": "NNM", "like": "Median", "before": [neighbours]},
        {"name": "fixed", "like": "DnC", "rule": {"hostile": 0.3}},
    ]
    config["matrix"]["shares"] = [0.2, 0.6]
    told = {}
    for cell in load_matrix(config).cells:
        _, dnc, mixing, fixed = cell.experiment.methods
        assert fixed.rule.options["hostile"] == 0.3
        told[cell.column] = (dnc.rule.options["hostile"], mixing.before[0].options["hostile"])
    assert told["clean"] == (0, 0)
    assert told["flip 20%"] == (0.2, 0.2)
    assert told["labels 60%"] == (0.49, 0.49)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config: dict[str, Any] = {
        "name": "tiny",
        "rounds": 2,
        "seeds": [1, 2],
        "device": "cpu",
        "data": "digits",
    }
    config |= {
        "partition": {"name": "iid", "clients": 6},
        "model": "linear",
        "training": {"batch_size": 20},
    }
    config["methods"] = [{"name": "FedAvg"}, "Median", "KnowsHonest"]
    backdoor = {"attack": {"name": "pixel_backdoor", "target": 3}}
    attacks = {"flip": ATTACKS["flip"], "door": backdoor}
    config["matrix"] = {"attacks": attacks, "shares": [0.4], "oracle": "KnowsHonest"}
    return run_matrix(load_matrix(config), tmp_path_factory.mktemp("matrix") / "run")


def test_a_cell_is_an_ordinary_run(finished: Path, tmp_path: Path) -> None:
    matrix = open_matrix(finished)
    assert all(is_finished(finished / cell.folder) for cell in matrix.cells)
    alone = cw.Run(cw.run(matrix.cells[1].experiment, tmp_path / "alone"))
    assert everything(cw.Run(finished / matrix.cells[1].folder)) == everything(alone)


def test_commands_on_one_run_say_that_a_matrix_has_several(finished: Path) -> None:
    cells = sorted(path.parent for path in finished.glob("*/run.sqlite"))
    said = f"^{finished}: holds {len(cells)} runs: name one of them, such as {cells[0]}$"
    found = CliRunner().invoke(app, ["export", str(finished)])
    assert isinstance(found.exception, RunError)
    assert re.search(said, str(found.exception))


def test_resuming_runs_unfinished_cells_only(finished: Path, tmp_path: Path) -> None:
    folder = copied(finished, tmp_path)
    matrix = open_matrix(folder)
    with pytest.raises(RunError, match="there is a matrix already"):
        run_matrix(matrix, folder)
    assert resumed(matrix, folder) == []
    shutil.rmtree(folder / matrix.cells[1].folder)
    assert resumed(matrix, folder) == ["3 of 3: tiny, flip 40%"]


def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copied"))


def resumed(matrix: Matrix, folder: Path, **options: Any) -> list[str]:
    """Resume, and return the cells that were run."""
    seen: list[str] = []

    def on_cell(cell: MatrixCell, number: int, count: int) -> None:
        seen.append(f"{number} of {count}: {cell.name}")

    run_matrix(matrix, folder, resume=True, on_cell=on_cell, **options)
    return seen


def with_matrix(table: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    return {**table, "matrix": {**table["matrix"], **changes}}


def contents(folder: Path) -> dict[str, bytes]:
    """All files, except those that SQLite makes beside a database that is read."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.suffix not in (".sqlite-wal", ".sqlite-shm")
    }


def test_three_methods_by_three_columns_grow_to_four_by_four(
    finished: Path, tmp_path: Path
) -> None:
    folder = copied(finished, tmp_path)
    table = open_matrix(folder).table
    more = with_matrix(table, attacks={**table["matrix"]["attacks"], "labels": ATTACKS["labels"]})
    more["methods"] = [*table["methods"], "Uniform"]
    rounds: list[str] = []

    def on_round(step: Progress) -> None:
        if (step.seed, step.record.round_num) == (1, 1):
            rounds.append(step.method)

    run_matrix(load_matrix(more), folder, resume=True, on_round=on_round)
    cells = Counter(rounds)
    assert cells == {"FedAvg": 1, "Median": 1, "KnowsHonest": 1, "Uniform": 4}, "seven in all"
    results = read_results(folder)
    assert results.missing == 0
    assert results.federations[0].values.shape == (4, 4, 2)


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ({"shares": [0.2]}, "the cell 'tiny, flip 40%'"),
        ({"methods": ["FedAvg"]}, "the method 'Median'"),
        ({"seeds": [1]}, "the seed 2"),
        ({"name": "other"}, "the cell 'tiny, clean'"),
    ],
)
def test_nothing_of_a_matrix_is_lost(
    finished: Path, tmp_path: Path, change: dict[str, Any], lost: str
) -> None:
    folder = copied(finished, tmp_path)
    table = {**open_matrix(folder).table, "matrix": {**open_matrix(folder).table["matrix"]}}
    table["matrix"].pop("oracle")
    other = with_matrix(table, **change) if "shares" in change else table | change
    before = contents(folder)
    with pytest.raises(RunError, match=f"its matrix also has .*{re.escape(lost)}"):
        resumed(load_matrix(other), folder)
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 1}, r"rounds = 1 \(was 2\)\. Resume"),
        ({"training": {"batch_size": 5}}, r"training.batch_size = 5 \(was 20\)\. Resume"),
        (
            {"methods": [{"like": "Median", "adapters": "factors"}]},
            r"methods.Median.adapters = 'factors' \(was 'products'\)\. Resume",
        ),
        (
            {"attacks": {"flip": {"attack": {"name": "sign_flip", "strength": 2.0}}}},
            r"hostile\.0\.attack.*strength = 2.0 \(was 5.0\)\. Resume",
        ),
    ],
)
def test_what_differs_is_named_and_no_file_changes(
    finished: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = copied(finished, tmp_path)
    before = contents(folder)
    table = dict(open_matrix(folder).table)
    if "attacks" in change:
        attacks = {**table["matrix"]["attacks"], **change["attacks"]}
        other = with_matrix(table, attacks=attacks)
    elif "methods" in change:
        first, _, *others = table["methods"]
        other = table | {"methods": [first, *change["methods"], *others]}
    else:
        other = table | change
    with pytest.raises(ClientwiseError, match=f"was run with another config: {message}"):
        run_matrix(load_matrix(other), folder, resume=True)
    assert contents(folder) == before


def test_damaged_and_foreign_cells_are_noticed(finished: Path, tmp_path: Path) -> None:
    folder = copied(finished, tmp_path)
    matrix = open_matrix(folder)
    clean, flip, door = (folder / cell.folder for cell in matrix.cells)
    (door / "run.sqlite").write_bytes(b"rubbish" * 1000)
    with pytest.raises(ClientwiseError, match="tiny--door--40: its database cannot be read"):
        run_matrix(matrix, folder, resume=True)
    for damaged in (clean, door):
        shutil.rmtree(damaged)
    shutil.copytree(flip, clean)
    said = (
        r"tiny--clean: was run with another config: .*name = 'tiny, clean' \(was 'tiny, flip 40%'\)"
    )
    with pytest.raises(RunError, match=said):
        run_matrix(matrix, folder, resume=True)
    shutil.rmtree(clean)
    assert resumed(matrix, folder) == ["2 of 3: tiny, clean", "3 of 3: tiny, door 40%"]


def test_finished_cells_of_other_data_or_versions_are_noticed(
    finished: Path, tmp_path: Path
) -> None:
    folder = copied(finished, tmp_path)
    matrix = open_matrix(folder)
    edit_origin(folder / matrix.cells[0].folder, turn_data_round)
    with pytest.raises(RunError, match=r"tiny--clean: .*other data \(seed 2\)"):
        run_matrix(matrix, folder, resume=True)
    edit_origin(folder / matrix.cells[0].folder, turn_data_round)
    edit_origin(folder / matrix.cells[2].folder, lambda origin: origin.update(torch="1"))
    with pytest.raises(RunError, match=r"tiny--door--40: .*torch .*, not 1"):
        run_matrix(matrix, folder, resume=True)
    assert resumed(matrix, folder, accept_changes=True) == []


def turn_data_round(origin: dict[str, Any]) -> None:
    origin["data (seed 2)"] = origin["data (seed 2)"][::-1]


def edit_origin(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    with sqlite3.connect(folder / "run.sqlite") as database:
        (text,) = database.execute("SELECT value FROM facts WHERE key = 'origin'").fetchone()
        origin = json.loads(text)
        change(origin)
        database.execute("UPDATE facts SET value = ? WHERE key = 'origin'", (json.dumps(origin),))


FAULTY = """
import os
import clientwise as cw
from clientwise.experiment.trackers import Progress

class Own(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")

@cw.parts.ATTACKS.register("dies")
class Dies(cw.parts.Attack):
    '''The process is killed, as on a machine that is out of memory.'''
    def relabel(self, targets, problem, random):
        os._exit(9)

@cw.parts.ATTACKS.register("raises")
class Raises(cw.parts.Attack):
    '''A plugin may raise anything, also what cannot be pickled.'''
    def relabel(self, targets, problem, random):
        raise Own("this", "that")
"""


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_cell_that_fails_does_not_end_the_others(
    config: dict[str, Any], tmp_path: Path, jobs: int
) -> None:
    (tmp_path / "faulty_plugin.py").write_text(FAULTY)
    attacks = {"raises": {"attack": "raises"}, "flip": ATTACKS["flip"]}
    if jobs > 1:
        attacks["dies"] = {"attack": "dies"}
    config |= {"plugins": ["faulty_plugin"], "plugin_dir": str(tmp_path), "seeds": [1], "rounds": 1}
    config["matrix"] = {"attacks": attacks, "shares": [0.05, 0.4]}
    failures: dict[str, str] = {}
    with pytest.raises(
        CellsFailedError, match=rf"{tmp_path}/run: .* of {1 + 2 * len(attacks)} cells failed: tiny"
    ) as error:
        run_matrix(
            load_matrix(config),
            tmp_path / "run",
            jobs=jobs,
            on_failure=lambda cell, reason: failures.update({cell.name: reason}),
        )
    assert failures == error.value.failures
    for attack in attacks:
        assert "hostile[0].clients = 0.05: is 0 of 6 clients" in failures.pop(f"tiny, {attack} 5%")
    assert failures.pop("tiny, raises 40%").startswith("Own: this and that")
    if jobs > 1:
        assert "its process was killed" in failures.pop("tiny, dies 40%")
    assert failures == {}
    assert is_finished(tmp_path / "run" / "tiny--clean")
    assert is_finished(tmp_path / "run" / "tiny--flip--40")


def test_what_a_killed_run_leaves_does_not_block_its_folder(
    config: dict[str, Any], tmp_path: Path
) -> None:
    config["matrix"] = {"attacks": {}}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "matrix.toml.0123456789ab.part").write_text("name = ")
    run_matrix(load_matrix(config), tmp_path / "run")
    assert is_finished(tmp_path / "run" / "tiny--clean")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("do not touch")
    with pytest.raises(RunError, match="not empty, and not a run"):
        run_matrix(load_matrix(config), tmp_path / "mine")


@pytest.fixture
def drawn() -> Results:
    """Four methods on six federations with two or three columns; the oracle is the last method."""
    random = numpy.random.default_rng(3)
    federations = []
    for number in range(6):
        columns = ("clean", "flip 40%", "ALIE 40%")[: 2 + number % 2]
        values = random.uniform(0.5, 0.6, (4, len(columns), 5))
        values += numpy.array([0.2, 0.1, 0.0, 0.3])[:, None, None]
        nothing = numpy.full_like(values, numpy.nan)
        alarms = nothing.copy()
        alarms[0, 0] = number / 10
        name = f"federation {number}"
        federations.append(Federation(name, "accuracy", True, columns, values, nothing, alarms))
    names = ("ours", "second", "third", "oracle")
    return Results("drawn", "oracle", names, frozenset({"oracle"}), 5, tuple(federations))


def test_differences_are_over_seeds_and_over_federations(drawn: Results) -> None:
    known = [replace(one, values=one.values[:3]) for one in drawn.federations]
    three = replace(drawn, methods=drawn.methods[:3], federations=tuple(known))
    found = mean_differences(three, "ours")
    cells = numpy.concatenate([one.values for one in drawn.federations], 1)
    by_federation = numpy.array([one.values.mean((1, 2)) for one in drawn.federations]).T
    worst = numpy.array([one.values.mean(2).min(1) for one in drawn.federations]).T
    units = {"over_seeds": cells.mean(1), "over_federations": by_federation, "worst": worst}
    for unit, values in units.items():
        tests = [ttest_rel(values[0], values[other]) for other in (1, 2)]
        smaller, larger = sorted(float(test.pvalue) for test in tests)
        for one, test, other in zip(found, tests, (1, 2), strict=True):
            difference = getattr(one, unit)
            assert difference.mean == pytest.approx((values[0] - values[other]).mean())
            expected = 2 * smaller if test.pvalue == smaller else max(2 * smaller, larger)
            assert difference.p_value == pytest.approx(expected)
            level = 1 - 0.05 * test.pvalue / expected
            interval = tuple(test.confidence_interval(level))
            assert difference.interval == pytest.approx(interval)
            assert difference.tests == 2


def test_ranks_have_federations_as_blocks(drawn: Results) -> None:
    ranks = mean_ranks(drawn)
    means = numpy.array([one.values[:3].mean((1, 2)) for one in drawn.federations])
    places = (-means).argsort(1).argsort(1) + 1
    assert ranks.tolist() == pytest.approx(places.mean(0).tolist())


def test_false_alarms_count_every_federation_alike(drawn: Results) -> None:
    alarms = standings(drawn).set_index("method")["false_alarms"]
    assert alarms["ours"] == pytest.approx(0.25)
    assert numpy.isnan(alarms["second"])


def test_the_server_alone_is_available_and_pooled_samples_are_not(tmp_path: Path) -> None:
    config: dict[str, Any] = {"name": "controls", "rounds": 1, "data": "digits", "model": "linear"}
    config |= {"partition": {"name": "iid", "clients": 3}, "device": "cpu"}
    config |= {"server_set": {"fraction": 0.3, "report_fraction": 0.5}}
    config |= {"methods": ["FedAvg", "ServerOnly", "Pooled", "KnowsHonestTuned"]}
    folder = run_matrix(load_matrix(config | {"matrix": {"attacks": {}}}), tmp_path / "run")
    results = read_results(folder)
    assert results.unavailable == {"Pooled", "KnowsHonestTuned"}
    ranked = standings(results).dropna(subset=["rank"])
    assert {*ranked["method"]} == {"FedAvg", "ServerOnly"}


def test_the_page_has_a_heat_map_and_its_numbers(finished: Path) -> None:
    document = matrix_report(finished)
    assert any("worst cell" in line for line in document.lead)
    assert not any("KnowsHonest" in line for line in document.lead)
    items = [item for own in document.sections.values() for item in own]
    (chart,) = (item for item in items if isinstance(item, Chart))
    assert "backdoor success" in _table(document, "standings-accuracy").columns
    assert {*chart.frame["column"]} == {"clean", "flip 40%", "door 40%"}
    assert len(chart.frame) == 9
    first = as_csv(_table(document, "values")).splitlines()[1].split(",")
    results = read_results(finished)
    method = results.methods.index(first[0])
    numpy.testing.assert_allclose(
        [float(v) for v in first[2:]], results.federations[0].values[method].mean(1)
    )


def test_a_report_counts_unfinished_cells(finished: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "matrix.toml").write_bytes((finished / "matrix.toml").read_bytes())
    os.symlink(
        finished / open_matrix(finished).cells[0].folder,
        begun / open_matrix(finished).cells[0].folder,
    )
    assert matrix_report(begun).lead[0].startswith("Not finished: 2 of 3 cells")
    page = write_matrix(begun, tmp_path / "report", ["svg"])
    assert "Not finished: 2 of 3 cells" in page.read_text("utf-8")


def test_looking_at_a_matrix_executes_nothing_it_names(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    shutil.copytree(finished, folder)
    (folder / "theirs.py").write_text("raise SystemExit('executed')")
    config = (folder / "matrix.toml").read_text()
    (folder / "matrix.toml").write_text(f'plugins = ["theirs"]\nplugin_dir = "{folder}"\n{config}')
    with pytest.raises(ConfigError, match="executed"):
        open_matrix(folder)
    assert matrix_report(folder).lead == matrix_report(finished).lead
    assert read_results(folder).unavailable == {"KnowsHonest"}


def test_a_damaged_cell_does_not_hide_the_others(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(finished, folder)
    cells = open_matrix(folder).cells
    (folder / cells[0].folder / "run.sqlite").write_bytes(b"rubbish")
    with sqlite3.connect(folder / cells[1].folder / "run.sqlite") as database:
        database.execute("UPDATE lanes SET method = 'another', seed = seed + 7 WHERE lane = 1")
    assert matrix_report(folder).lead[0].startswith("Not finished: 2 of 3 cells")
    for cell in cells:
        shutil.rmtree(folder / cell.folder)
    with pytest.raises(RunError, match="none of its cells has begun"):
        matrix_report(folder)


@pytest.mark.slow
def test_jobs_end_with_their_parent(finished: Path, tmp_path: Path) -> None:
    config = dict(open_matrix(finished).table) | {"rounds": 5000, "seeds": [1]}
    folder = tmp_path / "killed"
    text = f"""
import json
from pathlib import Path
from clientwise.experiment.matrix.grid import load_matrix
from clientwise.experiment.matrix.runs import run_matrix
if __name__ == "__main__":
    run_matrix(load_matrix(json.loads({json.dumps(json.dumps(config))})), Path({str(folder)!r}), jobs=2)
"""
    script = tmp_path / "start.py"
    script.write_text(text)
    parent = subprocess.Popen([sys.executable, str(script)])
    _wait(lambda: len(list(folder.glob("*/run.sqlite"))) == 2)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _wait(lambda: not _runs_in(folder))


def _runs_in(folder: Path) -> list[str]:
    """Processes that have a file of this folder open."""
    found = []
    for process in Path("/proc").glob("[0-9]*/fd"):
        try:
            found += [
                str(process) for link in process.iterdir() if str(folder) in os.readlink(link)
            ]
        except OSError:
            continue  # not ours, or gone
    return found


def _wait(condition: Any) -> None:
    processes.wait_until(condition, 60, "the jobs")


def _table(found: MatrixReport, ending: str) -> Table:
    items = [item for own in found.sections.values() for item in own]
    return next(item for item in items if isinstance(item, Table) and item.id.endswith(ending))
