"""What runs but is probably not meant gets a line; mistakes in arrays, tables and paths get words that help."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import torch
from torch import Tensor, nn

import clientwise as cw
from clientwise.data.summary import uncovered
from clientwise.errors import ClientwiseError, ConfigError
from clientwise.experiment.checks.describe import describe
from clientwise.experiment.load import load_experiment

CONFIG: dict[str, Any] = {"name": "doubts", "rounds": 1, "methods": ["FedAvg"], "model": "linear"}
WITHOUT_MODEL = {key: value for key, value in CONFIG.items() if key != "model"}


def block(count: int = 30, seed: int = 0) -> tuple[numpy.ndarray, numpy.ndarray]:
    random = numpy.random.default_rng(seed)
    labels = random.integers(0, 3, count)
    labels[:3] = [0, 1, 2]
    return random.normal(size=(count, 4)) + labels[:, None], labels


def clients(change: Any = lambda labels: labels) -> cw.Samples:
    held = {}
    for seed, name in enumerate(["north", "south", "west"]):
        inputs, labels = block(seed=seed)
        held[name] = (inputs, change(labels))
    return cw.Samples.from_clients(held)


def pictures() -> cw.Samples:
    images = numpy.random.default_rng(0).random((12, 16, 16, 3))
    return cw.Samples.from_clients([(images, numpy.arange(12) % 3)] * 2)


SOFTMAX = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))
SIGMOID = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
HOSTILE = CONFIG | {"hostile": [{"clients": 3, "attack": "sign_flip"}]}


@pytest.mark.parametrize(
    ("change", "config", "model", "said"),
    [
        (lambda labels: (labels > 0) * 1.0, CONFIG, None, r"2 different values \(0, 1\) and are"),
        (lambda labels: labels, WITHOUT_MODEL, SOFTMAX, "ends in a softmax .*Return logits"),
        (lambda labels: (labels > 0) * 1, WITHOUT_MODEL, SIGMOID, "ends in a softmax or sigmoid"),
        (
            lambda labels: labels * 9,
            CONFIG,
            None,
            r"3 different values \(0, 9, 18\) and .* as classes",
        ),
        (lambda labels: labels, HOSTILE, None, "all 3 clients are hostile"),
    ],
    ids=["float labels", "softmax", "sigmoid", "counts", "hostile"],
)
def test_what_is_probably_not_meant_is_said(
    change: Any, config: dict[str, Any], model: Any, said: str, tmp_path: Path, caplog: Any
) -> None:
    run = cw.Run(cw.run(config, tmp_path / "run", data=clients(change), model=model))
    assert any(re.search(said, warning) for warning in run.facts.warnings), run.facts.warnings
    assert re.search(said, caplog.text)


def test_texts_are_not_scanned_for_backdoors(tmp_path: Path) -> None:
    evidence = {"name": "significance", "backdoors": True}
    config = {
        "name": "texts",
        "rounds": 1,
        "server_set": {"fraction": 0.3},
        "methods": [{"name": "scanned", "like": "Recommended", "evidence": evidence}],
    }
    words = numpy.random.default_rng(0).integers(0, 9, (40, 5))
    texts = cw.Samples.from_clients([(words, words[:, 0] % 3)] * 3)
    network = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 3))
    run = cw.Run(cw.run(config, tmp_path / "run", data=texts, model=network))
    assert "scanned: no scan for backdoors: the inputs are token ids" in run.facts.warnings
    (notes,) = run.frame("rounds")["notes"]
    assert "no scan for backdoors: it needs classes and inputs of numbers" in notes


def test_sound_runs_have_no_doubts(tmp_path: Path) -> None:
    assert cw.Run(cw.run(CONFIG, tmp_path / "run", data=clients())).facts.warnings == []


def test_arrays_with_mistakes_name_the_client() -> None:
    inputs, labels = block()
    words = numpy.array(["cat", "dog", "eel"])[labels]
    with pytest.raises(
        ValueError,
        match=r"south: its targets are no array of numbers .*; number",
    ):
        cw.Samples.from_clients({"north": (inputs, labels), "south": (inputs, words)})
    with pytest.raises(
        ValueError, match=r"client 0: its inputs are no array of numbers .*by a tokenizer"
    ):
        cw.Samples.from_clients([(numpy.array([["a"]]), [0])])
    for several in (torch.ones(9, 4), torch.ones(9, 4)), [numpy.ones((9, 4))] * 2:
        with pytest.raises(ValueError, match=r"has 2 inputs, 9 targets; .*several inputs, arrays"):
            cw.Samples.from_clients([(several, [0] * 9)])
    holes = inputs.copy()
    holes[17, 2] = numpy.nan
    with pytest.raises(ClientwiseError, match=r"south: 1 of its .* the first is its sample 17;"):
        cw.Samples.from_clients({"north": (inputs, labels), "south": (holes, labels)})
    with pytest.raises(ValueError, match="found 1 to 3; integers are classes from 0"):
        cw.FederatedData.from_clients([(inputs, labels + 1)], [(inputs, labels + 1)], num_classes=3)


def test_pictures_with_channels_last_do_not_fit_a_network(tmp_path: Path) -> None:
    hint = r"use inputs.transpose\(0, 3, 1, 2\)"
    with pytest.raises(ConfigError, match=hint):
        cw.run(CONFIG | {"model": "cnn"}, tmp_path / "run", data=pictures())
    network = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(392, 3))
    with pytest.raises(ConfigError, match=rf"does not take samples of shape \(16, 16, 3\).*{hint}"):
        cw.run(WITHOUT_MODEL, tmp_path / "run", data=pictures(), model=network)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A config in a folder of its own, with its files beside it."""
    rows = "name,age,city,y\nAnn,3,Oslo,yes\nBob,x,Rome,no\nCid,5,Rome,yes\nDan,5,Rome,no\n"
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(rows)
    config = tmp_path / "my.toml"
    config.write_text(
        'name = "my"\nrounds = 1\nmodel = "linear"\npartition = "by_id"\n'
        'data = { name = "table", files = "?.csv", target = "y" }\n'
    )
    return config


@pytest.mark.parametrize("pattern", ["", "a**b.csv"])
def test_what_is_no_pattern_of_files_is_said(table: Path, pattern: str) -> None:
    experiment = load_experiment(table, [f'data.files="{pattern}"'])
    with pytest.raises(ClientwiseError, match=r"my.toml: data: .*: no such file"):
        describe(experiment)


def test_files_beside_the_config_and_all_bad_columns(table: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("CLIENTWISE_DATA", str(table.parent / "elsewhere"))  # of published data
    with pytest.raises(ClientwiseError) as raised:
        describe(load_experiment(table))
    said = str(raised.value)
    assert all(
        f"column {name!r}, row {row}" in said
        for name, row in [("name", 1), ("age", 2), ("city", 1)]
    )
    assert said.count("put the column into") == 1
    other = table.with_name("b.csv")
    other.write_text(other.read_text().replace("age,city", "years,town"))
    with pytest.raises(ClientwiseError) as raised:
        describe(load_experiment(table))
    said = str(raised.value)
    assert all(f"no column {name!r}" in said for name in ("age", "city"))
    assert all(f"no column {name!r}, which others have" in said for name in ("years", "town"))


def sites(folder: Path, rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    """A config for a CSV file with the columns site, kg, b and ill."""
    lines = ["site,kg,b,ill", *(",".join(map(str, row)) for row in rows)]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    data = {"name": "table", "files": str(folder / "rows.csv"), "target": "ill", "client": "site"}
    return CONFIG | {"data": data, "partition": "by_id"}


def site(name: str, count: int, seed: int, factor: float = 1.0) -> list[tuple[Any, ...]]:
    random = numpy.random.default_rng(seed)
    weights, others = random.normal(70, 10, count) * factor, random.normal(size=count)
    words = ["yes" if number > 0 else "no" for number in others + random.normal(size=count)]
    return list(zip([name] * count, weights, others, words, strict=True))


def warnings_of(config: dict[str, Any]) -> str:
    return "\n".join(
        line for line in describe(load_experiment(config)) if line.startswith("warning")
    )


def test_clean_tables_have_no_doubts(tmp_path: Path) -> None:
    rows = site("north", 60, 1) + site("south", 50, 2) + site("west", 40, 3)
    assert warnings_of(sites(tmp_path, rows)) == ""


# What the held-out samples lack -------------------------------------------------------------------------------------


def test_classes_that_the_held_out_samples_lack_are_named(tmp_path: Path) -> None:
    """As `cw.fit` and `check` say it: by name, with the clients and samples that have them."""
    rows = site("north", 60, 1) + site("south", 50, 2)
    rare = [("west", *row[1:3], "perhaps" if row[3] == "yes" else "no") for row in rows[:40]]
    whole = pandas.DataFrame(rows + rare, columns=["site", "kg", "b", "ill"])
    frames = {name: own.drop(columns="site") for name, own in whole.groupby("site")}
    held_out = pandas.concat([frames["north"], frames["south"]])
    given = {"target": "ill", "rounds": 1, "device": "cpu", "test": held_out}
    run = cw.fit("linear", frames, held_out=held_out, **given)
    (said,) = [text for text in run.facts.warnings if "weighs by is of class" in text]
    count = sum(row[3] == "perhaps" for row in rare)
    assert "no sample that the server weighs by is of class 'perhaps'" in said
    assert f"1 of 3 clients has {count} training samples: client 2 (west)" in said
    run = cw.fit("linear", frames, held_out=whole.drop(columns="site"), **given)
    assert not [text for text in run.facts.warnings if "weighs by is of class" in text]


def federation(targets: list[Tensor], held_out: Tensor, problem: str | None = None) -> Any:
    def part(own: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(len(own), 2), own

    data = cw.FederatedData.from_clients(
        [part(own) for own in targets],
        [part(own[:1]) for own in targets],
        weigh=part(held_out),
        problem=problem,
        num_classes=4 if problem is None and not held_out.is_floating_point() else None,
    )
    return uncovered(data, data.weigh)


def test_what_held_out_samples_lack_by_client() -> None:
    found = federation([torch.tensor([0, 1, 3, 3]), torch.tensor([2, 1])], torch.tensor([1, 1, 0]))
    assert (
        "is of class 2, 3, and 2 of 2 clients have 3 training samples: client 0, client 1." in found
    )
    labels = [torch.eye(3)[[0, 1]] + torch.eye(3)[[1, 1]] * 0, torch.eye(3)[[2, 2]]]
    found = federation(labels, torch.eye(3)[[0, 1]], "multilabel")
    assert "is of class 2, and 1 of 2 clients has 2 training samples: client 1." in found
    masks = [torch.zeros(2, 4, 4, dtype=torch.int64), torch.zeros(3, 4, 4, dtype=torch.int64)]
    masks[1][1, 0, 0] = 2
    found = federation(masks, masks[0], "segmentation")
    assert "is of class 2, and 1 of 2 clients has 1 training samples: client 1." in found


def test_rows_that_are_tested_or_weighed_by_and_trained_on(tmp_path: Path) -> None:
    rows = site("north", 60, 1) + site("south", 50, 2)
    config = sites(tmp_path, rows + rows[:30]) | {"methods": ["Recommended"]}
    found = warnings_of(config)
    for kind, so in {"test": "reported results", "held-out": "weights"}.items():
        assert re.search(rf"\d+ of \d+ {kind} samples are also training samples .* the {so}", found)
    assert "samples are also" not in warnings_of(sites(tmp_path, rows))


def test_few_samples_to_weigh_by(tiny: dict[str, Any]) -> None:
    plain = {"name": "plain", "like": "Recommended", "fine_tune": None}
    tiny |= {"methods": ["FedAvg", "Recommended", plain], "server_set": {"fraction": 0.01}}
    lines = warnings_of(tiny).splitlines()
    tuned, untuned = [line for line in lines if "held-out samples, fewer" in line]
    assert re.search(r"Recommended: the server weighs by \d held-out samples", tuned)
    assert "fine_tune trains the model on them: FedAvg may be better" in tuned
    assert "plain: the server weighs" in untuned
    assert "fine_tune" not in untuned


def test_methods_that_are_not_what_their_names_promise(tiny: dict[str, Any]) -> None:
    diverse = {"name": "FedAvg", "criteria": ["label_diversity"]}
    tiny["methods"] = [diverse, {"name": "Median", "rule": "mean"}]
    found = warnings_of(tiny)
    assert "'FedAvg' has label_diversity of its own, and tables call it FedAvg" in found
    assert "'Median' has mean of its own, and tables call it Median" in found
    rate = {"name": "FedProx", "training": {"learning_rate": 0.3}}
    tiny["methods"] = [diverse | {"name": "diverse", "like": "FedAvg"}, "Median", rate]
    assert "tables call it" not in warnings_of(tiny)
