"""The shipped experiments: every size of every one loads, the networks are the papers', and quick sizes run.

The last has the marker `experiments`: it needs the data folder and a quarter of an hour. The marker `slow` runs those
that show something, and two rounds of the others. CI runs the shorter ones of these (`make test-all`).
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from PIL import Image
from typer.testing import CliRunner

import clientwise as cw
from clientwise.cli import app
from clientwise.data.folder import DataError
from clientwise.experiment.config.parts import make
from clientwise.experiment.matrix.grid import Matrix, load_matrix
from clientwise.models.networks import MODELS
from clientwise.report.items import counted
from clientwise.report.statistics import Difference
from recorded import curve

ROOT = Path(__file__).parents[1]
EVERY = sorted((ROOT / "lab").glob("*/*.toml"))
MATRICES = [path for path in EVERY if "\n[matrix" in path.read_text(encoding="utf-8")]
FILES = {path.stem: path for path in EVERY if path not in MATRICES}
PAPERS = {
    "p1-mnist-iid",
    "p1-mnist-shards",
    "p1-celeba",
    "p2-digits-by-writer",
    "p2-operators",
    "p3-1a",
    "p3-1b",
    "p3-1c",
    "p3-1d",
    "p3-2-cifar10",
    "p3-3a-malaria",
    "p3-3b-cells",
}
SIZES = [
    (name, preset)
    for name, path in FILES.items()
    for preset in [None, *tomllib.loads(path.read_text(encoding="utf-8")).get("presets", {})]
]


def test_every_experiment_of_the_papers_is_there_and_says_what_it_is() -> None:
    assert FILES.keys() >= PAPERS
    for name, path in FILES.items():
        text = path.read_text(encoding="utf-8")
        header = text.split("\nname = ")[0]
        assert (name, "quick") in SIZES
        assert all(line.startswith("#") for line in header.strip().splitlines())
        assert re.search(r"Data: \w+ \(\d+ MB\)", header.replace("\n# ", " ")), (
            "what it needs, and how large it is"
        )
        if name in PAPERS:
            assert all(word in header for word in ("The paper:", "Published", "Here:"))


def test_the_references_of_the_malaria_experiment_are_there() -> None:
    controls = {method.control for method in cw.load(FILES["p3-3a-malaria"]).methods}
    assert controls == {None, "pooled", "alone"}


@pytest.mark.parametrize(("name", "preset"), SIZES)
def test_every_size_of_every_experiment_loads(name: str, preset: str | None) -> None:
    experiment = cw.load(FILES[name], preset=preset)
    assert experiment.name == (f"{name}-{preset}" if preset else name)
    experiment.build_methods()
    assert tomllib.loads(experiment.to_toml()) == experiment.to_dict()


@cache
def matrix_in(path: Path) -> Matrix:
    return load_matrix(path)


@pytest.mark.parametrize("path", MATRICES, ids=lambda path: path.stem)
def test_every_matrix_loads(path: Path) -> None:
    matrix = matrix_in(path)
    assert matrix.name == path.stem
    methods = {method.name for method in matrix.cells[0].experiment.methods}
    assert matrix.oracle in {None, *methods}


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "parameters"),
    [
        ("p1-mnist-iid", (1, 28, 28), 10, 1_663_370),
        ("p1-mnist-shards", (1, 28, 28), 10, 1_663_370),
        ("p1-celeba", (3, 64, 64), 1, 8_409_025),
        ("p2-digits-by-writer", (1, 28, 28), 62, 6_603_710),
        *(
            (name, (1, 28, 28), 10, 1_199_882)
            for name in ("p3-1a", "p3-1b", "p3-1c", "q-adafed-controls")
        ),
        ("p3-1d", (200,), 1, 706_625),
        ("p3-2-cifar10", (1280,), 10, 2_002_058),
        ("p3-3a-malaria", (3, 64, 64), 1, 1_335_841),
        ("p3-3b-cells", (3, 256, 256), 256 * 256, 3_727_105),
    ],
)
def test_the_networks_are_the_papers(
    name: str, shape: tuple[int, ...], outputs: int, parameters: int
) -> None:
    module = make(MODELS, cw.load(FILES[name]).model)(shape, outputs)
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters


def leaf_file(users: dict[str, list[int]]) -> str:
    """A file as LEAF publishes FEMNIST: white is 1.0, and each character is black pixels of its class's own."""
    data: dict[str, dict[str, list[Any]]] = {}
    for writer, (user, labels) in enumerate(users.items()):
        images = []
        for label in labels:
            image = [1.0] * 784
            for pixel in range(10):
                image[12 * label + pixel] = (writer % 5) / 255
            images.append(image)
        data[user] = {"x": images, "y": labels}
    counts = [len(labels) for labels in users.values()]
    return json.dumps({"users": [*users], "num_samples": counts, "user_data": data})


def test_p2_runs_on_files_in_leafs_format(tmp_path: Path) -> None:
    """From the files of LEAF's preprocess.sh to results: load, divide by writer, check, two rounds."""
    writers = [f"f{1000 + number}_{number:02}" for number in range(14)]
    classes = {
        writer: [(5 * number + place) % 62 for place in range(20)]
        for number, writer in enumerate(writers)
    }
    classes[writers[-1]] = [1, 2]  # fewer than `minimum`: no client
    for split, part in (("train", slice(0, 16)), ("test", slice(16, 20))):
        folder = tmp_path / "femnist" / split
        folder.mkdir(parents=True)
        for file, some in enumerate((writers[:8], writers[8:])):
            users = {writer: classes[writer][part] for writer in some}
            name = f"all_data_{file}_niid_1_keep_0_{split}_9.json"
            (folder / name).write_text(leaf_file(users))
    changes = ["partition.clients=13", "rounds=2", "seeds=[1]", "methods=['DS','MD>DS>LD']"]
    changes += ["model.channels=[4,8]", "model.dense=32"]
    given = {"data_dir": str(tmp_path)}
    path = FILES["p2-digits-by-writer"]
    options = ["--preset", "femnist", "--data-dir", str(tmp_path)]
    settings = [word for change in changes for word in ("--set", change)]
    checked = CliRunner().invoke(app, ["check", str(path), *options, *settings])
    assert checked.exit_code == 0, checked.output
    assert "femnist: 262 samples, classification of 62 classes; 2 of them unused" in checked.output

    run = cw.run(cw.load(path, changes, given, "femnist"), tmp_path / "run")
    assert run.frame("clients")[["num_train", "num_test"]].to_numpy().tolist() == [[16, 4]] * 13
    assert len(curve(run, "metric", "DS")) == 2
    assert [*run.model("DS").parameters()][-1].shape == (62,)


# What the quick size of an experiment must show, whatever the machine: (better, worse, by so much at the last round).
SHOWS = {
    "p3-1a": ("AdaFed", "FedAvg", 0.05),
    "p3-1b": ("AdaFed, adapted loss", "FedAvg", 0.01),
    "p3-1c": ("AdaFed, adapted loss", "FedAvg", 0.03),
    "p3-1d": ("AdaFed, above 55%", "FedAvg", 0.05),
    "q-adafed-controls": ("AdaFed, adapted loss", "FedAvg", 0.01),
}


def run_quick(name: str, folder: Path, *changes: str) -> cw.Run:
    try:
        run = cw.Run(cw.run(cw.load(FILES[name], changes, preset="quick"), folder))
    except DataError as error:
        pytest.skip(str(error))
    assert run.finished
    return run


def as_slow(name: str, required: bool) -> ParameterSet:
    """An experiment of the marker `slow`; CI runs it if it is required."""
    marks = [pytest.mark.slow]
    if not required:
        marks.append(pytest.mark.long)
    return pytest.param(name, marks=marks)


# CI leaves out what trains large networks, even if for two rounds.
LONG = {"p1-celeba", "p3-2-cifar10", "p3-3a-malaria", "p3-3b-cells"}
TWO_ROUNDS = [as_slow(name, name not in LONG) for name in sorted(FILES.keys() - SHOWS.keys())]
QUICK_SIZES = [as_slow(name, name == "p3-1a") if name in SHOWS else name for name in FILES]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", TWO_ROUNDS)
def test_every_experiment_runs(name: str, tmp_path: Path) -> None:
    run = run_quick(name, tmp_path / "run", "rounds=2", "seeds=[1]")
    assert set(run.frame("rounds").groupby(["method", "seed"])["metric"].count()) == {2}


@pytest.mark.experiments
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", QUICK_SIZES)
def test_the_quick_size_shows_what_the_experiment_shows(name: str, tmp_path: Path) -> None:
    run = run_quick(name, tmp_path / "run")
    rounds = run.frame("rounds")
    curves = rounds.groupby(["method", "seed"])["metric"]
    last = curves.last().groupby("method").mean()
    for _, metric in curves:  # everything learns something, if not in every single round
        first, late = metric.iloc[0], metric.iloc[-5:].mean()
        assert late >= first if run.facts.higher_is_better else late <= first
    if name in SHOWS:
        better, worse, by = SHOWS[name]
        assert last[better] > last[worse] + by
    if name.startswith("p1-mnist"):  # no criterion matters
        assert last.max() - last.min() < 0.05
    if name == "p3-1c":
        weight = rounds.groupby("method")["hostile_influence"].mean()
        assert weight["AdaFed, adapted loss"] < weight["FedAvg"]


def script(name: str) -> ModuleType:
    """A script of lab/papers as a module."""
    path = str(ROOT / "lab" / "papers")
    sys.path.insert(0, path)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(path)


def test_the_findings_are_made_from_the_recorded_tables(tmp_path: Path) -> None:
    """Both pages, and the figures, are what the command makes; another recorded number is another finding."""
    findings = script("make_findings")
    shutil.copytree(ROOT / findings.RECORDED, tmp_path / findings.RECORDED)
    (tmp_path / findings.RESULTS).parent.mkdir(parents=True)
    pages = (findings.PAGE, findings.RESULTS)
    for name in pages:
        shutil.copyfile(ROOT / name, tmp_path / name)
    findings.main(tmp_path)
    for name in pages:
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes(), (
            "run python lab/papers/make_findings.py"
        )
    for paper in ("p1", "p2", "p3"):
        picture = Path("docs", "results", "reproduction", f"after-{paper}.png")
        with Image.open(tmp_path / picture) as made, Image.open(ROOT / picture) as kept:
            assert made.info["Description"] == kept.info["Description"]

    table = tmp_path / findings.RECORDED / "p3-2-cifar10.csv"
    text = table.read_text(encoding="utf-8")
    recorded = "AdaFed,round 20,84.0% ± 0.7"
    assert text.count(recorded) == 1
    text = text.replace(recorded, recorded.replace("84.0", "85.1"))
    recorded = "AdaFed,round 10,83.8% ± 0.8"
    assert text.count(recorded) == 1
    table.write_text(text.replace(recorded, recorded.replace("83.8", "84.9")), encoding="utf-8")
    findings.main(tmp_path)
    found = (tmp_path / findings.PAGE).read_text(encoding="utf-8")
    assert "| AdaFed leads | 84.9% ± 0.8 and 83.6% ± 0.7 | 5 |" in found
    assert "| AdaFed | 85.1% ± 0.7 |" in (tmp_path / findings.RESULTS).read_text(encoding="utf-8")
    with pytest.raises(
        LookupError, match=r"lab/results/papers/claims.toml: {p3-1d \| accuracy \| Nobody"
    ):
        findings.filled("{p3-1d | accuracy | Nobody | round 5}", findings.read(tmp_path))


def test_the_inventory_names_runs_that_exist_and_reasons() -> None:
    findings = script("make_findings")
    claims = ROOT / findings.RECORDED / "claims.toml"
    rows = tomllib.loads(claims.read_text(encoding="utf-8"))["inventory"]
    recorded = findings.read()
    for row in rows:
        name, _, preset = row["run"].partition(":")
        assert (name, preset or None) in SIZES, row["run"]
        run = recorded.get(row["run"].replace(":", "-"))
        complete = cw.load(FILES[name], preset=preset or None)
        wanted = f"{counted(len(complete.seeds), 'seed')}, {counted(complete.rounds, 'round')}"
        assert row.get("why") or (run and run.about["size"] == wanted), row["what"]
    assert {row["run"].partition(":")[0] for row in rows} == PAPERS


def test_the_verdict_on_operators_follows_the_protocol() -> None:
    judge = script("judge_operators")

    def compared(means: dict[tuple[str, str], float], p: float = 0.01) -> dict[Any, Difference]:
        pairs = [(order, other) for order in judge.ORDERS for other in judge.OTHERS]
        return {pair: Difference(means.get(pair, 0.1), 0.05, 5, p_value=p) for pair in pairs}

    first, second = judge.ORDERS
    one_lost = {(first, "OWA most"): -0.1}
    assert (
        judge.verdict([compared({}, p=0.2), compared(one_lost)]) == "holds"
    )  # by the second order
    both_lost = one_lost | {(second, "OWA most"): -0.1}
    assert judge.verdict([compared({}, p=0.2), compared(both_lost)]) == "fails"
    lost_once = one_lost | {(second, "weighted mean"): -0.1}
    assert judge.verdict([compared(lost_once)]) == "not seen"
    assert judge.verdict([compared({}, p=0.2)]) == "not seen"


def test_the_plan_says_what_a_run_would_take(tmp_path: Path) -> None:
    plan = script("plan")
    size = plan.Size(lanes=2, rounds=10, clients=5, samples=60, epochs=3, evaluated=300)
    assert size.seconds(0.01) == pytest.approx(2 * 10 * (5 * 60 * 3 + 300 / 3) * 0.01)
    said, seconds = plan.plan("p1-mnist-shards:quick", tmp_path, None)
    assert re.fullmatch(r"about .*(, quick)? \(8 lanes × 30 rounds × 5 clients\)", said)
    assert (", quick" in said) == (seconds <= plan.QUICK)
    said, seconds = plan.plan("p2-digits-by-writer:femnist", tmp_path, tmp_path)
    assert (said.startswith("cannot start: "), seconds) == (True, 0.0)
    assert "you need your own copy" in said
    assert not [*tmp_path.iterdir()], "nothing is run"
    for name in plan.papers():
        file, _, preset = name.partition(":")
        assert (file, preset or None) in SIZES


def test_packed_runs_fill_the_page_on_reproduction(tiny: dict[str, object], tmp_path: Path) -> None:
    make_reproduction = script("make_reproduction")
    findings = script("make_findings")
    tiny |= {
        "seeds": [1, 2],
        "server_set": {"fraction": 0.0},
        "methods": [{"name": "DS", "like": "FedAvg"}, {"name": "MW>LD>DS", "like": "FedAvg"}],
    }
    folder = tmp_path / "runs" / "p1-mnist-shards"
    cw.run(tiny | {"name": "p1-mnist-shards"}, folder)
    shutil.copytree(
        folder,
        tmp_path / "packed" / folder.name,
        ignore=shutil.ignore_patterns("checkpoints", ".lock"),
    )
    other = tmp_path / "packed" / "p3-1a"  # is not what it is called
    shutil.copytree(tmp_path / "packed" / folder.name, other)
    assert sorted(path.name for path in (tmp_path / "packed" / folder.name).iterdir()) == [
        "config.toml",
        "run.sqlite",
        "versions.json",
    ]
    recorded = tmp_path / findings.RECORDED
    files = [findings.RECORDED / f"{name}.toml" for name in ("published", "claims")]
    for name in (findings.RESULTS, *files):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    make_reproduction.main(tmp_path / "packed", tmp_path)
    ours = (recorded / "p1-mnist-shards.csv").read_text(encoding="utf-8")
    assert 'about,size,value,"2 seeds, 3 rounds"' in ours
    assert re.search(r'^"accuracy: .*",MW>LD>DS,round 3,.* ± ', ours, re.MULTILINE)
    assert "gain, P1's rule" in ours
    assert [path.name for path in recorded.glob("*.csv")] == ["p1-mnist-shards.csv"]
