"""The command as a user meets it: real processes, a real terminal where it matters."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import termios
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from pexpect.fdpexpect import fdspawn

import clientwise as cw
import processes
from clientwise.data.datasets import digits
from clientwise.experiment.build.data import build_data
from clientwise.experiment.load import load_experiment
from clientwise.record.store import Store


def clientwise(
    *arguments: object, cwd: Path | None = None, expect: int = 0, **environment: str
) -> str:
    """Run the command and return what it printed, line breaks and all."""
    result = processes.run(
        processes.COMMAND, *arguments, cwd=cwd, env={**os.environ, "COLUMNS": "150", **environment}
    )
    output = result.stdout + result.stderr
    assert result.returncode == expect, output
    assert "Traceback" not in output
    return output


@pytest.fixture
def config(tiny: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(tomli_w.dumps(tiny))
    return path


def test_help_and_version() -> None:
    version = subprocess.check_output([sys.executable, "-m", "clientwise", "--version"], text=True)
    assert re.fullmatch(r"clientwise \d+\.\d+\.\d+\n", version)
    output = clientwise("--help")
    commands = re.findall(r"^│ ([a-z]+) ", output, re.MULTILINE)
    assert commands == [
        "demo",
        "new",
        "check",
        "run",
        "tune",
        "list",
        "show",
        "report",
        "export",
        "predict",
    ]
    for command in commands:
        assert "Example" in clientwise(command, "--help")


def test_run_prints_progress_table_and_where_things_are(config: Path, tmp_path: Path) -> None:
    output = clientwise("run", config, "--seeds", "1-2", "--rounds", "4", cwd=tmp_path)
    assert "all of it, seed 2: round 4/4" in output
    assert "(16 of 16 rounds" in output
    assert "mean ± SD of 2 seeds" in output
    assert "\x1b[" not in output  # not a terminal: no colours, no bars
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("tiny-")
    assert f"Run folder  runs/{folder.name}" in output
    assert f" report runs/{folder.name}\n" in output
    shown = clientwise("show", cwd=tmp_path)  # the newest run
    assert "all of it" in shown
    assert "% in round 4" in " ".join(shown.split())  # the headline
    audit = clientwise("show", folder, "--round", "2", "--method", "all of it", cwd=tmp_path)
    assert "server_performance" in audit
    assert "priority " in audit
    assert "FedAvg" not in audit
    of_one = clientwise("show", folder, "--round", "2", "--seed", "2", cwd=tmp_path)
    assert "seed 2, round 2" in of_one
    assert "seed 1" not in of_one
    why = clientwise("show", folder, "--client", "0", "--method", "FedAvg", cwd=tmp_path)
    assert why.startswith("FedAvg, seed 1: client 0 has ")
    for words, said in {
        ("--seed", "2"): "--seed goes with --round or --client",
        ("--round", "9"): "has no round 9",
        ("--round", "1", "--method", "FedAvgg"): "did you mean 'FedAvg'",
        ("--client", "0", "--method", "FedAvgg"): "did you mean 'FedAvg'",
        ("--client", "x"): "no client 'x'; known: 0, 1",
        ("--round", "1", folder): "--round and --client go with one run",
    }.items():
        assert said in clientwise("show", folder, *words, expect=2)


def test_a_run_is_found_compared_and_taken_away(tiny: dict[str, Any], tmp_path: Path) -> None:
    tiny |= {"rounds": 1, "methods": ["FedAvg"]}
    cw.run(tiny, tmp_path / "runs" / "one")
    cw.run(tiny | {"methods": ["FedYogi"]}, tmp_path / "runs" / "two")
    assert re.search(
        r"^one .*^two |^two .*^one ", clientwise("show", "runs", cwd=tmp_path), re.M | re.S
    )
    assert "methods.FedYogi" in clientwise("show", "runs/one", "runs/two", cwd=tmp_path)
    assert "runs/two/models/FedYogi-seed1.safetensors" in clientwise(
        "export", "runs/two", cwd=tmp_path
    )
    assert "did you mean 'FedAvg seed 1'" in clientwise(
        "export", "runs/one", "--method", "FedAv", cwd=tmp_path, expect=2
    )
    assert '"learning_rate"' in clientwise("list", "--schema")


def test_errors_say_what_to_do(config: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    assert "did you mean 'learning_rate'" in clientwise(
        "check", config, "--set", "training.learnin_rate=1", expect=2
    )
    output = clientwise(
        "run",
        config,
        "--set",
        "training.learning_rate=-1",
        "--set",
        "rounds=0",
        expect=2,
        cwd=tmp_path,
    )
    assert (
        "tiny.toml: training.learning_rate = -1: must be greater than 0. Typical values are 0.01 to 0.1."
        in output
    )
    assert "tiny.toml: rounds = 0: must be greater than 0." in output
    assert not (tmp_path / "runs").exists()  # nothing ran
    assert "no such file" in clientwise("run", "absent.toml", expect=2)
    assert "add --resume" in clientwise("run", tmp_path, expect=2)
    assert "write 1,2,3 or 1-5" in clientwise("run", config, "--seeds", "one", expect=2)
    assert "no run here yet" in clientwise("show", cwd=tmp_path, expect=2)
    assert "not a run of clientwise" in clientwise("show", tmp_path, expect=2)
    assert "unknown kind or part 'scoers'; did you mean 'scores'" in clientwise(
        "list", "scoers", expect=2
    )
    assert "'local'" in clientwise("check", config, "--set", "engine=flwr", expect=2)
    output = clientwise(
        "run", config, "--set", "data=mnist", expect=2, cwd=tmp_path, CLIENTWISE_DATA=""
    )
    assert "--data-dir" in output
    output = clientwise(
        "run",
        config,
        "--set",
        "data=mnist",
        "--data-dir",
        tmp_path / "nowhere",
        expect=2,
        cwd=tmp_path,
    )
    assert "put the four files of the MNIST database there" in output
    assert "nowhere is not a folder" in output
    output = clientwise("check", config, "--set", "evaluation.official_test=server", expect=2)
    assert "tiny.toml: evaluation.official_test = 'server': must be \"pooled\"" in output
    assert "this dataset has no official test split" in output


def test_check_says_what_would_run(config: Path) -> None:
    output = clientwise("check", config)
    assert "1,797 samples" in output
    assert "6 with" in output
    assert "650 parameters" in output
    assert "2 methods × 1 seed × 3 rounds" in output
    assert "2 methods × 5 seeds" in clientwise("check", config, "--seeds", "1-5")
    assert "write 1,2,3 or 1-5" in clientwise("check", config, "--seeds", "many", expect=2)


def test_tune_prints_trials_and_writes_a_config(config: Path, tmp_path: Path) -> None:
    tuned = tmp_path / "tuned.toml"
    rates = ["--set", "tune.over={training={learning_rate=[0.00001, 0.1]}}"]
    rates += ["--set", "training.schedule=cosine"]
    output = clientwise("tune", config, *rates, "--out", tuned)
    assert "with seeds 1001, 1002, 1003." in " ".join(output.split())
    assert "FedAvg: 2 trials" in output
    assert f"Run it with: clientwise run {tuned}" in output.replace("python -m ", "")
    assert (tmp_path / "tuned.trials" / "run.sqlite").is_file()
    read = load_experiment(tuned).to_dict()
    assert read["rounds"] == read["training"]["schedule"]["rounds"] == 3
    assert "ok:" in clientwise("check", tuned)
    assert "exists already" in clientwise("tune", config, *rates, "--out", tuned, expect=2)


def test_a_preset_is_named(config: Path, tmp_path: Path) -> None:
    with config.open("a") as file:
        file.write("\n[presets.quick]\nrounds = 1\n")
    assert "× 1 round\n" in clientwise("check", config, "--preset", "quick")
    assert "(and its presets: quick)" in clientwise("check", config)
    config.write_text(config.read_text() + "\n[presets.long]\nrouns = 3\n")
    assert "did you mean 'rounds'" in clientwise("check", config, expect=2)
    assert "tiny-quick" in clientwise("run", config, "--preset", "quick", cwd=tmp_path)
    assert "did you mean 'quick'" in clientwise("run", config, "--preset", "quik", expect=2)


def test_data_says_who_would_hold_what(config: Path) -> None:
    output = clientwise("check", config, "--data", "--seeds", "3-4")
    data, _ = build_data(cw.load(config), digits(None), 3)
    assert "digits, dirichlet, 6 clients, seed 3" in output
    held = zip(data.train.sizes.tolist(), data.test.sizes.tolist(), strict=True)
    for client, (size, tested) in enumerate(held):
        labels = data.train.targets[data.train.slice(client)]
        cells = [str(int((labels == label).sum()) or "·") for label in range(10)]
        assert re.search(
            rf"^{client} +{size} +{tested} +{' +'.join(cells)} *$", output, re.MULTILINE
        )
    assert "\x1b[" not in output


def test_texts_of_a_record_are_no_commands_to_the_terminal(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    cw.run({**tiny, "rounds": 1}, folder, progress=False)
    store = Store(folder)
    store.set_clients(1, [9] * 6, [9] * 6, {}, [f"ward{number}\x1b[2J" for number in range(6)])
    store.close()
    output = clientwise("show", folder, "--round", "1")
    assert "ward" in output
    assert "\x1b" not in output


def test_list_shows_every_part_with_its_options() -> None:
    output = clientwise("list")
    for name in ("server_performance", "choquet", "first_improvement", "wrong_labels", "dirichlet"):
        assert name in output
    assert "measured by the server" in output
    only = clientwise("list", "adapt_loss")
    assert "class_weights(epsilon=0.1)" in only
    assert "choquet" not in only


def test_list_explains_a_part_by_its_name() -> None:
    table = clientwise("list", "table")
    assert "dataset table" in table
    assert "  files: string\n      a path or pattern in the data folder" in table
    assert '  kind="classification"/"regression"/"survival"\n' in table
    assert "client: string, optional" in table
    both = clientwise("list", "uniform")
    assert "criterion uniform" in both
    assert "distribution uniform" in both
    assert "It has no options" in clientwise("list", "digits")
    assert "did you mean 'dirichlet'" in clientwise("list", "dirichlett", expect=2)
    unknown = clientwise("list", "xyz", expect=2)
    assert "known: " in unknown
    assert len(unknown) < 500


PLUGIN = """
import clientwise as cw


@cw.criterion("charge", measured_by="client", high=1.0)
def charge(clients, *, floor: float = 0.0):
    \'\'\'Charge of the battery.\'\'\'
    return clients.attributes["battery"]
"""


def test_the_schema_has_the_parts_of_plugins(config: Path, tmp_path: Path) -> None:
    (tmp_path / "batteries.py").write_text(PLUGIN)
    plugin = 'plugins = ["batteries"]\nunknown_key = 1\n'  # the schema needs no valid config
    config.write_text(plugin + config.read_text())
    assert '"const": "charge"' in clientwise("list", "--schema", "--config", config)
    assert '"const": "charge"' not in clientwise("list", "--schema", cwd=tmp_path)
    assert "goes with --schema" in clientwise("list", "--config", config, expect=2)
    config.write_text('plugins = ["nowhere"]\n')
    failed = clientwise("list", "--schema", "--config", config, expect=2)
    assert "plugins[0]: cannot import 'nowhere'" in failed


def test_resume_needs_the_folder_of_the_run(config: Path, tmp_path: Path) -> None:
    said = clientwise("run", config, "--resume", cwd=tmp_path, expect=2)
    assert "name the folder of the run" in said
    assert "no run here to resume" in clientwise(
        "run", config, "--resume", "--out", tmp_path / "typo", expect=2
    )


def test_a_plugin_beside_the_config(config: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    (tmp_path / "my_plugin.py").write_text(
        "import clientwise as cw\n"
        "@cw.criterion('square_size', measured_by='client')\n"
        "def square_size(clients):\n    '''Size squared.'''\n    return clients.num_samples ** 2\n"
    )
    tiny |= {"plugins": ["my_plugin"], "methods": [{"name": "mine", "criteria": ["square_size"]}]}
    config.write_text(tomli_w.dumps(tiny))
    clientwise("run", config, "--out", tmp_path / "out", cwd=Path("/"))
    clientwise(
        "run", tmp_path / "out", "--resume", cwd=Path("/")
    )  # the run folder knows where its plugins are
    run = cw.Run(tmp_path / "out")
    measured = run.frame("criteria").merge(run.frame("clients"), on=["seed", "client"])
    assert len(measured)
    assert (measured["raw"] == measured["num_train"] ** 2).all()


def test_in_a_terminal_there_is_a_live_bar(config: Path, tmp_path: Path) -> None:
    screen, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (40, 150))
    place = os.ttyname(terminal)
    arguments = ("run", config, "--rounds", "20")
    process = processes.start(
        processes.COMMAND, *arguments, cwd=tmp_path, stdout=place, stderr=place
    )
    child = fdspawn(screen, encoding="utf-8", timeout=60)
    child.expect("seed 1: round")
    child.expect(r"\d+/40")
    child.expect("Run folder")
    process.join(60)
    assert process.exitcode == 0
    child.close()
    os.close(terminal)


def test_names_are_never_markup(config: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    names = ["[/]x", "acc [bold] $x_$ y", "_hidden", "<b>&"]
    tiny["methods"] = [{"name": name, "like": "FedAvg"} for name in names]
    config.write_text(tomli_w.dumps(tiny))
    output = clientwise("run", config, "--out", tmp_path / "[red]out")
    for name in names:
        assert output.count(name) >= 2  # in the progress and in the table, as it is
    assert "[red]out" in output


def test_cells_that_fail_are_named_and_can_be_resumed(tiny: dict[str, Any], tmp_path: Path) -> None:
    tiny |= {"rounds": 1, "seeds": [1], "methods": ["FedAvg"]}
    tiny["matrix"] = {"attacks": {"flip": {"attack": "sign_flip"}}, "shares": [0.05, 0.4]}
    (tmp_path / "matrix.toml").write_text(tomli_w.dumps(tiny))
    output = clientwise("run", "matrix.toml", "--out", "out", "--jobs", "1", cwd=tmp_path, expect=2)
    assert "3 of 3: tiny, " in output
    assert re.search(
        "^error: .*tiny, flip 5%: hostile.0..clients = 0.05: is 0 of 6 clients",
        output,
        re.MULTILINE,
    )
    assert "error: out: 1 of 3 cells failed: tiny, flip 5%. The other cells are finished." in output
    assert "run out --resume" in output
    output = clientwise("run", "out", "--resume", cwd=tmp_path, expect=2)
    assert "1 of 3 cells failed" in output
    assert "tiny, clean" not in output  # it is finished


@pytest.mark.parametrize("command", ["report", "export"])
def test_sigterm_says_what_was_not_completed(config: Path, tmp_path: Path, command: str) -> None:
    clientwise("run", config, "--out", tmp_path / "run")
    told = (
        "import os, signal\n"
        "from clientwise.report import page\n"
        "from clientwise import results\n"
        "page.write_page = results.write_model = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = processes.run(
        told + processes.COMMAND, command, tmp_path / "run", "--out", "here", cwd=tmp_path
    )
    assert done.stderr == "Stopped: here was not completed. Give the same command again.\n"
    assert done.returncode == 130


def test_a_link_to_nothing_is_named(config: Path, tmp_path: Path) -> None:
    clientwise("run", config, "--out", tmp_path / "run")
    link = tmp_path / "link"
    link.symlink_to("gone")
    for command in (["report", "run"], ["export", "run"], ["run", config.name]):
        for place in ("link", "link/inside"):
            output = clientwise(*command, "--out", place, cwd=tmp_path, expect=2)
            assert "error: link: " in output
            assert "is a link to gone, which does not exist; make that folder, or" in output
    (tmp_path / "gone").mkdir()
    clientwise("export", "run", "--out", "link", cwd=tmp_path)
    assert list((tmp_path / "gone").iterdir())


def test_damaged_runs_and_unwritable_places_are_one_line(config: Path, tmp_path: Path) -> None:
    clientwise("run", config, "--out", tmp_path / "run")
    assert str(config) in clientwise("report", tmp_path / "run", "--out", config, expect=2)
    for sql, reason in (
        ("UPDATE rounds SET value = 'not json'", "damaged"),
        ("UPDATE facts SET value = 'not json'", "damaged"),
        ("PRAGMA user_version = 99", "another version"),
    ):
        with closing(sqlite3.connect(tmp_path / "run" / "run.sqlite")) as database, database:
            database.execute(sql)
        for command in ("show", "report"):
            assert reason in clientwise(command, tmp_path / "run", expect=2)
    for wrong in ("1-3-5", "3-1", "x"):
        assert "write 1,2,3 or 1-5" in clientwise("run", config, "--seeds", wrong, expect=2)


def test_a_new_config_runs(tmp_path: Path) -> None:
    written = clientwise("new", cwd=tmp_path)
    assert "check experiment.toml --data" in written
    assert "ok: experiment.toml" in clientwise("check", "experiment.toml", "--data", cwd=tmp_path)
    assert "experiment.toml: exists already" in clientwise("new", cwd=tmp_path, expect=2)
    assert "is not a table; name the config with --out my.toml" in clientwise(
        "new", "my.toml", cwd=tmp_path, expect=2
    )
    rows = [f"{n % 3},p{n},{n / 7},{'ab'[n % 2]},{'yes' if n % 5 else 'no'}" for n in range(120)]
    (tmp_path / "rows.csv").write_text("\n".join(["site,id,age,sex,ill", *rows]))
    words = ("new", "rows.csv", "--out", "own.toml")
    assert "name the column to predict" in clientwise(*words, cwd=tmp_path, expect=2)
    assert "--target il: no such column; did you mean 'ill'" in clientwise(
        *words, "--target", "il", cwd=tmp_path, expect=2
    )
    clientwise(*words, "--target", "ill", "--client", "site", cwd=tmp_path)
    data = load_experiment(tmp_path / "own.toml").to_dict()["data"]
    assert (data["categories"], data["ignore"], data["client"]) == (["sex"], ["id"], "site")
    run = ("run", "own.toml", "--rounds", "1", "--seeds", "1")
    assert "Recommended" in clientwise(*run, cwd=tmp_path)
    said = clientwise("new", "rows.csv", "--out", "age.toml", "--target", "age", cwd=tmp_path)
    assert "age has 120 different values and is predicted as numbers" in said
    said = clientwise("new", "rows.csv", "--out", "site.toml", "--target", "site", cwd=tmp_path)
    assert 'as classes; for numbers, set kind = "regression" in data' in said
    assert "regression" in clientwise("check", "age.toml", cwd=tmp_path)


def test_check_of_a_config_without_a_partition_says_so_also_with_data(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        'name = "c"\nrounds = 2\ndata = "digits"\n[training]\nlearning_rate = 0.1\n',
        encoding="utf-8",
    )
    assert "partition: is missing" in clientwise("check", config, "--data", expect=2)
