"""Runs on real data: what is recorded, that methods are paired, and that a killed run goes on with the same bits."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy
import pytest
import tomli_w
import torch
from safetensors.torch import load_file
from torch import Tensor

import clientwise as cw
import processes
from clientwise.errors import RunError
from clientwise.experiment.running import resume, runner
from clientwise.experiment.trackers import Progress
from clientwise.record.files import locked
from locales import in_turkish
from recorded import everything, rows


def content(run: cw.Run | Path) -> dict[str, Any]:
    """All that a run left, but for the times."""
    run = cw.Run(run)
    models = {
        path.name: {key: value.numpy().tobytes() for key, value in load_file(path).items()}
        for path in sorted((run.folder / "checkpoints").glob("*.safetensors"))
    }
    return {**everything(run), "checkpoints": models}


def test_a_run_folder_holds_what_happened(tiny: dict[str, Any], tmp_path: Path) -> None:
    seen: list[Progress] = []
    folder = cw.run(tiny, tmp_path / "run", on_round=lambda _, step: seen.append(step)).folder
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) == [
        "checkpoints",
        "config.toml",
        "run.sqlite",
        "versions.json",
    ]
    for name in ("FedAvg", "all of it"):  # side by side, or one after the other
        assert [step.record.round_num for step in seen if step.method == name] == [1, 2, 3]
    assert [(step.done, step.total) for step in seen] == [(done, 6) for done in range(1, 7)]
    run = cw.Run(folder)
    assert run.finished
    sizes = {name: len(run.frame(name)) for name in ("rounds", "weights", "criteria", "local")}
    assert sizes == {"rounds": 6, "weights": 18, "criteria": 9 + 27, "local": 36}
    totals = run.frame("weights").groupby(["method", "seed", "round"])["weight"].sum()
    assert totals.tolist() == pytest.approx([1] * 6)
    (searched,) = rows(run, "rounds", "all of it", 1, 3).to_dict("records")
    assert searched["testing_rounds"] == len(searched["candidates"]) >= 1
    assert len(searched["priority"]) == 3
    assert len(searched["loss_state"]["class_weights"]) == 10


def test_methods_of_a_seed_meet_the_same_cohorts_and_start_alike(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    tiny["seeds"] = [1, 2]
    run = cw.Run(cw.run(tiny, tmp_path / "run"))
    cohorts = {}
    for key, weights in run.frame("weights").groupby(["method", "seed"]):
        cohorts[key] = weights[["round", "client"]].to_numpy().tolist()
    assert cohorts["FedAvg", 1] == cohorts["all of it", 1]
    assert cohorts["FedAvg", 2] == cohorts["all of it", 2]
    assert cohorts["FedAvg", 1] != cohorts["FedAvg", 2]
    first = [rows(run, "weights", name, 1, 1)["training_loss"].tolist() for name in run.methods]
    assert first[0] == first[1]  # same model, same data, same batches


@pytest.mark.bits
def test_the_same_config_gives_the_same_bits(tiny: dict[str, Any], tmp_path: Path) -> None:
    assert content(cw.run(tiny, tmp_path / "one").folder) == content(
        cw.run(tiny, tmp_path / "two").folder
    )


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        (
            ["methods.1.adapt_loss='robust_shape'"],
            ["methods[1].adapt_loss: robust_shape needs numbers to predict", "use 'class_weights'"],
        ),
        (
            ["methods.1.criteria=[{name='server_performance', metric='mape'}, 'trust']"],
            ["metric: mape needs numbers to predict"],
        ),
        (
            ["partition.clients=1000000000"],
            ["partition.clients = 1000000000: too many clients for 1797 samples"],
        ),
        (
            ["hostile=[{clients=7, attack='broken'}]"],
            ["hostile[0].clients = 7: 7 hostile clients of 6"],
        ),
        (["hostile=[{clients=[6], attack='broken'}]"], ["[6] are not clients"]),
        (
            ["hostile=[{clients=[1], attack='broken'}, {clients=[1], attack='boast'}]"],
            ["hostile[1].clients = [1]: [1]"],
        ),
        (
            ["federation={clients_per_round=7}"],
            ["federation.clients_per_round = 7: there are only 6 clients"],
        ),
        (["evaluation.target=85.0"], ["evaluation.target = 85.0: accuracy is at most 1"]),
        (["server_set.fraction=0.0002"], ["methods[1]: there are no samples to weigh by"]),
        (["model={name='cnn', channels=[4, 4, 4, 4, 4]}"], ["model: "]),
        (["device='cuda'"], ["finds no GPU"]),
        (
            ["evaluation.target=85.0", "hostile=[{clients=7, attack='broken'}]"],
            ["evaluation.target", "hostile[0]"],
        ),
    ],
)
def test_what_only_the_data_can_tell(
    tiny: dict[str, Any], tmp_path: Path, changes: list[str], reasons: list[str]
) -> None:
    if "cuda" in changes[0] and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    (tmp_path / "my.toml").write_text(tomli_w.dumps(tiny))
    with pytest.raises(cw.ClientwiseError) as caught:
        cw.run(cw.load(tmp_path / "my.toml", changes), tmp_path / "run")
    for reason in reasons:
        assert reason in str(caught.value)
    assert "device" in changes[0] or str(caught.value).startswith(str(tmp_path / "my.toml"))
    assert not (tmp_path / "run").exists()  # nothing was begun


def test_a_criterion_that_compares_clients_is_found_before_the_first_round(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    def shared(arrivals: cw.parts.Arrivals) -> Tensor:
        """A model's share of all distances."""
        return torch.full((len(arrivals.client_ids),), 1 / len(arrivals.client_ids))

    cw.criterion("shared undeclared", measured_by="server", high=1.0)(shared)
    cw.criterion("shared", measured_by="server", high=1.0, needs={"whole_cohort"})(shared)
    with pytest.raises(
        cw.ClientwiseError,
        match="shared undeclared depends on the other clients: measure it on the server",
    ):
        cw.run(
            tiny | {"methods": [{"name": "a", "criteria": ["shared undeclared"]}]},
            tmp_path / "undeclared",
        )
    assert cw.Run(
        cw.run(tiny | {"methods": [{"name": "a", "criteria": ["shared"]}]}, tmp_path / "run")
    ).finished


# Going on ----------------------------------------------------------------------------------------------------------


def killable(tmp_path: Path) -> Path:
    """An experiment whose state is as rich as it gets, long enough to be killed in."""
    config = {
        "name": "killable",
        "rounds": 20,
        "seeds": [1, 2],
        "device": "cpu",
        "checkpoint_seconds": 0.0,
        "data": "digits",
        "partition": {"name": "dirichlet", "clients": 8},
        "model": {"name": "mlp", "hidden": [32]},
        "training": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
        "federation": {"fraction": 0.5},
        "hostile": [{"clients": 2, "attack": "wrong_labels", "ignore_global": True}],
        "methods": [
            {
                "name": "everything",
                "criteria": ["trust", "server_performance", "dataset_size"],
                "adjust": "first_improvement",
                "adapt_loss": "class_weights",
                "server_step": "adam",
            },
        ],
    }
    path = tmp_path / "killable.toml"
    path.write_text(tomli_w.dumps(config))
    return path


def rounds_done(folder: Path) -> int:
    """How many rounds are in the database of a run that another process is writing."""
    try:
        with sqlite3.connect(f"file:{folder}/run.sqlite?mode=ro", uri=True) as database:
            return int(database.execute("SELECT COUNT(*) FROM rounds").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def wait_for(condition, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("whole")
    config = killable(folder)
    cw.run(config, folder / "run")
    return config, content(folder / "run")


@pytest.mark.bits
def test_killed_again_and_again_it_ends_with_the_same_bits(uninterrupted, tmp_path: Path) -> None:
    config, expected = uninterrupted
    folder = tmp_path / "run"
    kills = 0
    for rounds in (0, 1, 11, 19, 20, 27):
        again = ["--resume"] if kills else []
        process = processes.start(processes.COMMAND, "run", config, "--out", folder, *again)
        wait_for(
            lambda rounds=rounds, process=process: (
                (rounds_done(folder) >= rounds and (folder / "config.toml").exists())
                or not process.is_alive()
            )
        )
        time.sleep(0.003 * kills)  # each time at another moment of the round
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
    assert kills == 6
    processes.run(processes.COMMAND, "run", folder, "--resume").check_returncode()
    assert content(folder) == expected


HALF_A_ROUND = """
import locale, os, signal, sys
locale.setlocale(locale.LC_ALL, "")
assert locale.setlocale(locale.LC_ALL) == os.environ["LC_ALL"]
import clientwise as cw
from clientwise.record.store import Store
inner = Store._write_frame
def write(store, lane, round_num, name, columns):
    inner(store, lane, round_num, name, columns)
    if round_num == 7:
        os.kill(os.getpid(), signal.SIGKILL)
Store._write_frame = write
cw.run(sys.argv[1], sys.argv[2])
"""


def test_killed_in_a_round_in_turkish_it_has_whole_rounds_only(
    uninterrupted, tmp_path: Path
) -> None:
    """There, Python does not see that INSERT has to begin a transaction."""
    config, expected = uninterrupted
    turkish = in_turkish(tmp_path)
    folder = tmp_path / "run"
    killed = processes.run(HALF_A_ROUND, config, folder, env=turkish)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    run = cw.Run(folder)
    for name in ("rounds", "weights", "criteria"):
        assert sorted(run.frame(name)["round"].unique()) == [1, 2, 3, 4, 5, 6], name
    in_locale = "import locale; locale.setlocale(locale.LC_ALL, ''); " + processes.COMMAND
    processes.run(in_locale, "run", folder, "--resume", env=turkish).check_returncode()
    assert content(folder) == expected


CRASH = """
import os, sys
import clientwise as cw
original, calls = os.replace, []
def crash(source, target):
    if str(target).endswith(".safetensors"):
        calls.append(1)
        if len(calls) == 9:  # the ninth round is in the database, its checkpoint only as .part
            os._exit(77)
    original(source, target)
os.replace = crash
cw.run(sys.argv[1], sys.argv[2])
"""


@pytest.mark.bits
def test_a_crash_at_the_worst_moment_is_mended(uninterrupted, tmp_path: Path) -> None:
    """After the database's commit, with the new checkpoint written but not yet in its place."""
    config, expected = uninterrupted
    folder = tmp_path / "run"
    assert processes.run(CRASH, config, folder).returncode == 77
    assert rounds_done(folder) == 9
    assert list((folder / "checkpoints").glob("*.part"))
    cw.run(config, folder, resume=True)
    assert content(folder) == expected
    assert list((folder / "checkpoints").glob("*.part")) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_says_how_to_go_on(
    uninterrupted, tmp_path: Path, how: signal.Signals
) -> None:
    config, expected = uninterrupted
    folder = tmp_path / "run"
    arguments = ("run", config, "--out", folder, "--set", "checkpoint_seconds=1000")
    process = processes.start(processes.COMMAND, *arguments, stderr=tmp_path / "stderr")
    wait_for(lambda: rounds_done(folder) >= 5)
    os.kill(process.pid, how)
    process.join(60)
    message = (tmp_path / "stderr").read_text()
    assert process.exitcode == 130, message
    assert f"run {folder} --resume" in " ".join(message.split())
    assert "Traceback" not in message
    before = rounds_done(folder)
    seen: list[int] = []
    cw.run(
        folder / "config.toml", folder, resume=True, on_round=lambda _, step: seen.append(step.done)
    )
    assert (
        before - 1 <= seen[0] - 1 <= before
    )  # it went on where it was, though no checkpoint was due
    assert content(folder) == expected


def test_under_nohup_it_goes_on(uninterrupted, tmp_path: Path) -> None:
    config, expected = uninterrupted
    folder = tmp_path / "run"
    ignored = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    process = processes.start(ignored + processes.COMMAND, "run", config, "--out", folder)
    wait_for(lambda: rounds_done(folder) >= 5)
    os.kill(process.pid, signal.SIGHUP)
    process.join(120)
    assert process.exitcode == 0
    assert content(folder) == expected


STOPS = """
import os, signal
if os.environ.get("STOPPED"):
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_stopped_before_it_is_resumed_it_says_how_to_go_on(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the config is read: a plugin stops the command."""
    (tmp_path / "stops_itself.py").write_text(STOPS)
    plugin = {"plugins": ["stops_itself"], "plugin_dir": str(tmp_path)}
    folder = cw.run(tiny | plugin, tmp_path / "run").folder
    monkeypatch.setenv("STOPPED", "yes")
    process = processes.start(
        processes.COMMAND, "run", folder, "--resume", stderr=tmp_path / "stderr"
    )
    process.join(60)
    message = (tmp_path / "stderr").read_text()
    assert process.exitcode == 130, message
    assert f"run {folder} --resume" in " ".join(message.split())


def test_a_folder_that_is_not_this_run_is_left_alone(tiny: dict[str, Any], tmp_path: Path) -> None:
    folder = cw.run(tiny, tmp_path / "run").folder
    with pytest.raises(
        RunError,
        match=r"there is a run already\. Resume it .*resume=True.* or choose another output folder",
    ):
        cw.run(tiny, folder)
    with pytest.raises(RunError, match=r"another config: training.epochs = 3 \(was 1\)"):
        cw.run(cw.load(tiny, ["rounds=9", "training.epochs=3"]), folder, resume=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("do not touch")
    with pytest.raises(RunError, match="not empty, and not a run"):
        cw.run(tiny, tmp_path / "mine")
    with pytest.raises(RunError, match="cannot be written to"):
        cw.run(tiny, tmp_path / "mine" / "thesis.tex" / "run")
    with locked(folder), pytest.raises(RunError, match="another clientwise process"):
        cw.run(tiny, folder, resume=True)
    cw.run(tiny, folder, resume=True)  # finished: nothing to do, nothing changed


def grown(folder: Path) -> dict[str, Any]:
    """All that a run left by method and seed, however its lanes are numbered."""
    run = cw.Run(folder)
    found = content(folder)
    models = {}
    for lane in run.lanes.itertuples():
        key = (lane.method, lane.seed)
        models[key] = found["checkpoints"][f"lane-{lane.lane}.safetensors"]
    return {**found, "checkpoints": models, "finished": run.finished, "methods": run.methods}


@pytest.mark.bits
def test_a_finished_run_goes_on_to_what_it_had_been_from_the_start(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    tiny |= {"rounds": 3, "seeds": [1, 2], "evaluation": {"clients_every": 2}}
    tiny["methods"] = [tiny["methods"][0], "FedYogi", tiny["methods"][1]]
    expected = grown(cw.run(tiny, tmp_path / "whole").folder)
    first = tiny | {"rounds": 1, "seeds": [1], "methods": tiny["methods"][:2]}
    folder = cw.run(first, tmp_path / "grown").folder
    assert len(rows(cw.Run(folder), "local", round_num=1)) == 12  # the last one, so far
    seen: list[tuple[int, int]] = []
    cw.run(tiny, folder, resume=True, on_round=lambda _, step: seen.append((step.done, step.total)))
    assert (len(seen), seen[-1]) == (16, (18, 18))  # what was there is not computed again
    assert grown(folder) == expected
    fewer = first | {"rounds": 3}
    cw.run(fewer, folder, resume=True)  # nothing is lost by asking for fewer seeds and methods
    assert grown(folder) == expected
    with pytest.raises(RunError, match=r"rounds = 1 \(was 3\).*set rounds = 3 or more"):
        cw.run(first, folder, resume=True)
    assert cw.load(folder / "config.toml").seeds == [1, 2]
    with pytest.raises(
        RunError, match=r"methods.FedAvg.criteria.0.name.*give a changed method another name"
    ):
        cw.run(
            tiny | {"methods": [{"name": "FedAvg", "criteria": ["label_diversity"]}]},
            folder,
            resume=True,
        )


def test_two_that_begin_at_once_do_not_meet_in_one_folder(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find nothing there; one runs, the other is told so, and the config is that of the one that runs."""
    begin, refused = threading.Barrier(2), threading.Event()
    original = runner.validate
    monkeypatch.setattr(runner, "validate", lambda *given: (original(*given), begin.wait(60))[0])

    def start(name: str) -> str:
        try:
            cw.run(
                tiny | {"name": name},
                tmp_path / "run",
                on_round=lambda _, progress: refused.wait(60),
            )
        except RunError as error:
            refused.set()
            return str(error)
        return name

    with ThreadPoolExecutor(2) as threads:
        said = set(threads.map(start, ("one", "two")))
    (winner,) = said & {"one", "two"}
    assert said - {winner} == {
        f"{tmp_path / 'run'}: another clientwise process is writing to this run"
    }
    assert cw.load(tmp_path / "run" / "config.toml").name == winner


def test_a_folder_is_locked_before_it_is_looked_at(tiny: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with locked(folder), pytest.raises(RunError, match="another clientwise process"):
        cw.run(tiny, folder)
    assert [path.name for path in folder.iterdir()] == [".lock"]
    assert cw.Run(cw.run(tiny, folder)).finished  # whoever held it left before it wrote anything


def test_runs_that_begin_in_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(
            threads.map(lambda number: resume.new_folder("my run", tmp_path / "runs"), range(24))
        )
    assert len(set(made)) == 24
    assert all(folder.is_dir() and folder.name.startswith("my-run-") for folder in made)


def test_nobody_becomes_somebody_else_when_a_run_is_resumed(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    tiny |= {"rounds": 1, "flower": {"clients": ["ward-a", "ward-b"], "min_replies": 2}}
    folder = cw.run(tiny, tmp_path / "run").folder
    for key, value in (
        ("clients", ["ward-b", "ward-a"]),  # the trust of one would be the other's
        ("clients", ["ward-a", "ward-c"]),
        ("min_replies", 1),
        ("num_classes", 3),
    ):
        other = tiny | {"flower": tiny["flower"] | {key: value}}
        with pytest.raises(RunError, match=rf"another config: flower.{key}"):
            cw.run(other, folder, resume=True)
    patient = tiny["flower"] | {"reply_seconds": 9.0}
    cw.run(tiny | {"flower": patient}, folder, resume=True)


def test_a_resumed_run_must_be_the_same_run(tiny: dict[str, Any], tmp_path: Path) -> None:
    def data(count: int) -> cw.FederatedData:
        x = numpy.arange(20.0).reshape(10, 2)
        share = (x, [0, 1] * 5)
        return cw.FederatedData.from_clients([share] * count, [share] * count, report=share)

    def alter(sql: str) -> None:
        with closing(sqlite3.connect(folder / "run.sqlite")) as database, database:
            database.execute(sql)

    del tiny["data"], tiny["partition"], tiny["methods"][1]
    folder = cw.run(tiny, tmp_path / "own", data=data(2)).folder
    with pytest.raises(RunError, match=r"other data \(seed 1\)"):
        cw.run(tiny, folder, data=data(3), resume=True)
    alter("DELETE FROM rounds WHERE round = 2")
    alter("UPDATE lanes SET finished = NULL")
    with pytest.raises(RunError, match="2 of the 3 rounds"):
        cw.run(tiny, folder, data=data(2), resume=True)
    alter("PRAGMA user_version = 99")
    with pytest.raises(
        RunError, match=r"by another version of clientwise \(format 99; .* Use that version"
    ):
        cw.run(tiny, folder, data=data(2), resume=True)
