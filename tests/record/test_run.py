"""What is read is what was recorded, as frames; what is damaged or no run is said to be."""

from __future__ import annotations

import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from math import nan
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

import clientwise as cw
from clientwise.core.types import RoundRecord
from clientwise.errors import NotBegunError, RunError
from clientwise.experiment.trackers import Progress
from clientwise.record.database import VERSION, recorded_fact
from clientwise.record.files import locked
from clientwise.record.run import COLUMNS, RunFolder, is_finished
from clientwise.record.store import Store
from clientwise.record.tables import VALUES

ADJUSTED = "all of it"
KEYS = ["method", "seed", "round"]


@pytest.fixture(scope="module")
def recorded(
    config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[cw.Run, dict[tuple[str, int, int], RoundRecord]]:
    """A run, and the records of its rounds as they came."""
    seen: dict[tuple[str, int, int], RoundRecord] = {}

    def see(_: cw.Run, step: Progress) -> None:
        seen[step.method, step.seed, step.record.round_num] = step.record

    more = {"methods": [*config["methods"], "Recommended"]}
    folder = cw.run(config | more, tmp_path_factory.mktemp("runs") / "all", on_round=see).folder
    return cw.Run(folder), seen


def test_frames_have_what_happened(recorded: tuple[cw.Run, Any]) -> None:
    run, seen = recorded
    weights = run.frame("weights").set_index(KEYS)
    criteria = run.frame("criteria").set_index(KEYS)
    rounds = run.frame("rounds").set_index(KEYS)
    for key, record in seen.items():
        rows = weights.loc[[key]]
        accepted = rows[rows["refusal"].isna()]
        refused = rows[rows["refusal"].notna()]
        assert accepted["client"].tolist() == list(record.client_ids)
        assert refused["client"].tolist() == [one.client_id for one in record.refusals] == [1]
        assert refused["weight"].isna().all()
        known = {"score": record.scores, "prior": record.prior, "weight": record.weights}
        known |= {"z": record.evidence.z, "harm": record.evidence.harm}
        known |= {
            "influence": record.weights if record.influence is None else record.influence,
            "training_loss": record.training_loss,
        }
        known |= {"copies": record.evidence.look_back.copies}
        known |= {"posterior": record.posterior and record.posterior.weights}
        for name, values in known.items():
            column = torch.tensor(accepted[name].to_numpy(float))
            expected = torch.full_like(column, nan) if values is None else values.double()
            assert torch.equal(column.nan_to_num(-9), expected.nan_to_num(-9)), name
        table = criteria.loc[[key]].pivot(index="client", columns="criterion", values="raw")
        assert table[list(record.criteria)].to_numpy().tolist() == record.raw.tolist()
        values = rounds.loc[key]
        assert values["metric"] == float(record.report.overall()[0])
        assert (values["participants"], values["refused"], values["without_weight"]) == (6, 1, 0)
        assert values["hostile_influence"] == float(record.weights[0])
        if key[0] == ADJUSTED:
            weights_of_classes = values["loss_state"]["class_weights"]
            assert weights_of_classes == list(record.loss.class_weights)
    assert set(rounds["local_p90"] >= rounds["local_mean"]) == {True}
    assert sorted(rounds.loc[(ADJUSTED, 1, 3), "priority"]) == sorted(
        criteria.loc[[(ADJUSTED, 1, 3)], "criterion"].unique()
    )


def test_every_frame_begins_with_its_keys(recorded: tuple[cw.Run, Any]) -> None:
    run, seen = recorded
    for name in COLUMNS:
        frame = run.frame(name)
        keys = ["seed"] if name == "clients" else KEYS
        columns = [*keys, *COLUMNS[name]]
        assert list(frame)[: len(keys)] == keys
        assert set(columns) <= {*frame, "history_z", "harm_error"}
        assert len(frame), name
    assert len(run.frame("rounds")) == len(seen) == 18
    assert set(run.frame("clients")["hostile"].dropna()) == {"wrong_labels", "broken"}
    assert run.frame("steps").groupby(KEYS)["used"].sum().eq(1).all()
    changed = run.frame("rounds")
    changed["metric"] = 0.0
    assert run.frame("rounds")["metric"].gt(0).any()
    with pytest.raises(RunError, match="no frame 'weigths'; did you mean 'weights'"):
        run.frame("weigths")


def test_a_frame_without_rows_has_its_columns(tiny: dict[str, Any], tmp_path: Path) -> None:
    run = cw.Run(cw.run(tiny | {"methods": ["FedAvg"], "rounds": 1}, tmp_path / "run"))
    columns = [*KEYS, "client", "name", "hostile", "reason", "kind"]
    assert list(run.frame("refusals")) == columns
    assert run.frame("refusals").empty
    assert list(run.frame("steps")) == [*KEYS, "step", "loss", "used"]


def test_the_page_on_frames_names_every_value() -> None:
    page = (Path(__file__).parents[2] / "docs" / "frames.md").read_text("utf-8")
    named = {*re.findall(r"`(\w+)`", page)}
    recorded = {*VALUES, *COLUMNS, *(column for columns in COLUMNS.values() for column in columns)}
    assert recorded - named == set()


def test_a_run_says_what_it_is(recorded: tuple[cw.Run, Any]) -> None:
    run, _ = recorded
    assert run.methods == ["FedAvg", ADJUSTED, "Recommended"]
    assert run.lanes.to_dict("list") == {
        "lane": list(range(1, 7)),
        "method": run.methods * 2,
        "seed": [1] * 3 + [2] * 3,
        "finished": [True] * 6,
        "rounds": [3] * 6,
    }
    assert run.finished
    assert (run.facts.metric, run.facts.rounds, run.facts.lanes) == ("accuracy", 3, 6)
    assert sorted(run.facts.data) == [1, 2]
    assert [one.method for one in run.facts.steps] == run.methods
    assert run.config["rounds"] == 3
    about = RunFolder(run.folder).about("Recommended")
    assert (about.evidence, about.threshold, about.has_rule) == ("significance", 4.0, False)
    assert about.trains_on_server
    assert not about.is_control
    criteria = ("server_performance", "label_diversity", "dataset_size")
    assert RunFolder(run.folder).about(ADJUSTED).criteria == criteria
    with pytest.raises(RunError, match="no method 'FedAgv'; did you mean 'FedAvg'"):
        RunFolder(run.folder).about("FedAgv")


def test_a_run_that_goes_on_is_read_as_it_was_opened(finished: Path, altered: Any) -> None:
    folder = altered()
    run = cw.Run(folder)
    before = {name: len(cw.Run(folder).frame(name)) for name in COLUMNS}
    with closing(sqlite3.connect(folder / "run.sqlite")) as database, database:
        for table in ("rounds", "frames"):
            columns = "value" if table == "rounds" else "name, data"
            copied = f"SELECT lane, 4, {columns} FROM {table} WHERE round = 3"
            database.execute(f"INSERT INTO {table} (lane, round, {columns}) {copied}")
        database.execute("UPDATE lanes SET finished = 4")
    assert {name: len(run.frame(name)) for name in COLUMNS} == before
    assert len(cw.Run(folder).frame("rounds")) == 16


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE facts SET value = '{' WHERE key = 'metric'",
        "UPDATE facts SET value = '7' WHERE key = 'name'",
        "UPDATE facts SET value = '0' WHERE key = 'rounds'",
        "UPDATE facts SET value = '[{}]' WHERE key = 'methods'",
        "UPDATE facts SET value = '[]' WHERE key = 'data'",
        "UPDATE lanes SET seed = 'one' WHERE lane = 1",
        "DELETE FROM rounds WHERE round = 2",
        "UPDATE rounds SET value = 'no JSON' WHERE round = 1",
        "UPDATE rounds SET value = '7'",
        "UPDATE frames SET data = x'00' WHERE name = 'weights'",
        "UPDATE frames SET data = 'text' WHERE name = 'criteria'",
        "UPDATE frames SET data = substr(data, 1, 50) WHERE name = 'clients'",
        "DROP TABLE frames",
    ],
)
def test_damage_is_one_line_with_the_folder(altered: Callable[..., Path], damage: str) -> None:
    folder = altered(damage)
    with pytest.raises(
        RunError, match=rf"^{folder}: its database (is damaged|cannot be read) \(.+\)"
    ):
        read_all(folder)


def read_all(folder: Path) -> None:
    run = cw.Run(folder)
    for name in COLUMNS:
        assert isinstance(run.frame(name), pandas.DataFrame)
    for method in run.methods:
        RunFolder(run.folder).trained(method, 1)


@pytest.mark.parametrize("seed", range(10))
def test_flipped_bytes_are_no_traceback(altered: Callable[..., Path], seed: int) -> None:
    folder = altered()
    draw = random.Random(seed)
    content = bytearray((folder / "run.sqlite").read_bytes())
    for _ in range(draw.choice((1, 10, 100))):
        content[draw.randrange(100, len(content))] = draw.randrange(256)
    (folder / "run.sqlite").write_bytes(content)
    with suppress(RunError):
        read_all(folder)


def test_a_finished_run_that_lacks_rounds_is_damaged(altered: Callable[..., Path]) -> None:
    with pytest.raises(RunError, match=r"damaged \(2 of 3 rounds of FedAvg, seed 1\)"):
        cw.Run(altered("DELETE FROM rounds WHERE round = 3"))


def test_what_is_no_run_is_said_to_be_none(finished: Path, altered: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such folder"):
        cw.Run(tmp_path / "absent")
    with pytest.raises(RunError, match="not a run of clientwise"):
        cw.Run(tmp_path)
    with locked(tmp_path), pytest.raises(NotBegunError, match="just beginning"):
        cw.Run(tmp_path)
    begun = altered("DELETE FROM facts")
    with pytest.raises(NotBegunError, match="nothing is recorded yet"):
        cw.Run(begun)
    assert is_finished(finished)
    (begun / "run.sqlite").write_bytes(b"garbage" * 1000)
    assert not is_finished(begun)
    for use in (cw.Run, Store):
        with pytest.raises(RunError, match="its database cannot be read"):
            use(begun)
    assert RunFolder(finished, "finished~2").id == "finished~2"


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_a_folder_of_another_format_is_refused_in_one_line(
    version: int, altered: Callable[..., Path]
) -> None:
    folder = altered("CREATE TABLE of_that_version (x)", f"PRAGMA user_version = {version}")
    before = (folder / "run.sqlite").read_bytes()
    refused = rf"written by another version of clientwise \(format {version}; .*\)\. Use that version, or run the"
    for use in (cw.Run, Store):
        with pytest.raises(RunError, match=refused):
            use(folder)
    with pytest.raises(RunError, match=refused):
        cw.run(folder / "config.toml", folder, resume=True)
    assert not is_finished(folder)
    assert (folder / "run.sqlite").read_bytes() == before


def test_reading_changes_nothing_and_runs_nothing(altered: Callable[..., Path]) -> None:
    """A folder of others: its plugins are not imported, and no function of its schema is called."""
    folder = altered("CREATE VIEW trap AS SELECT load_extension('harm')")
    config = folder / "config.toml"
    config.write_text(f"plugins = ['harm']\nplugin_dir = '{folder}'\n" + config.read_text("utf-8"))
    (folder / "harm.py").write_text("raise SystemExit('executed')")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    read_all(folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    program = (
        "import sys; from clientwise.record.run import RunFolder; run = RunFolder(sys.argv[1])\n"
        "run.frame('weights'); run.config; assert not {'harm', 'torch'} & sys.modules.keys()"
    )
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "content", [b"\xff[", b"not toml [", b"a." * 9_999 + b"a = 1", b"#" * (2**20 + 1)], ids=range(4)
)
def test_a_config_that_cannot_be_read_is_empty(altered: Any, content: bytes) -> None:
    folder = altered()
    (folder / "config.toml").write_bytes(content)
    assert cw.Run(folder).config == {}


def test_values_that_json_lacks_are_null(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.set_facts({"a": [nan, {"b": float("inf")}], "c": 1.5})
    store.close()
    assert recorded_fact(tmp_path, "a") == [None, {"b": None}]
    assert recorded_fact(tmp_path, "c") == 1.5
