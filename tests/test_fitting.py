"""`cw.fit` and `cw.run` as a new user calls them: many kinds of data, many mistakes, each in one line."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pandas
import polars
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import clientwise as cw
from clientwise.errors import ClientwiseError, ConfigError, RunError
from clientwise.record.run import RunFolder
from recorded import last, rows
from reported import printed

QUICK: dict[str, Any] = {"rounds": 2, "device": "cpu", "learning_rate": 0.3, "batch_size": 20}
NAMES = ("north", "south", "west")


def part(count: int, first: int = 0) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 5, generator=torch.Generator().manual_seed(first + count))
    return inputs, inputs[:, :3].argmax(1)


def sites() -> dict[str, tuple[Tensor, Tensor]]:
    return {name: part(60 + 10 * place) for place, name in enumerate(NAMES)}


def net() -> nn.Module:
    return nn.Linear(5, 3)


class Rows(Dataset[Any]):
    """Samples that a function returns."""

    def __init__(self, sample: Any, count: int = 40) -> None:
        self._sample = sample
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._sample(index)


class Batches(Sampler[list[int]]):
    """Two batches of the first samples."""

    def __iter__(self) -> Iterator[list[int]]:
        yield [0, 1]
        yield [1, 2]

    def __len__(self) -> int:
        return 2


def frame(count: int, kind: str = "words") -> pandas.DataFrame:
    inputs, targets = part(count)
    table = pandas.DataFrame(inputs.numpy(), columns=list("abcde"))
    table["y"] = targets.numpy() if kind == "numbers" else [f"class {one}" for one in targets]
    return table


def pairs(inputs: Tensor, targets: Tensor) -> Any:
    return list(zip(inputs, targets.tolist(), strict=True))


KINDS: dict[str, Any] = {
    "tensors": lambda x, y: (x, y),
    "arrays": lambda x, y: (x.numpy().astype("float64"), y.numpy().astype("int32")),
    "lists": lambda x, y: (x.tolist(), y.tolist()),
    "a list of tensors": lambda x, y: (list(x), list(y)),
    "frame and series": lambda x, y: (pandas.DataFrame(x.numpy()), pandas.Series(y.numpy())),
    "dataset": TensorDataset,
    "subset": lambda x, y: Subset(TensorDataset(x, y), range(len(x))),
    "joined": lambda x, y: ConcatDataset(
        [TensorDataset(x[:9], y[:9]), TensorDataset(x[9:], y[9:])]
    ),
    "loader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True),
    "a list of samples": pairs,
    "own dataset": lambda x, y: Rows(lambda index: (x[index].numpy(), int(y[index])), len(x)),
    "dictionaries": lambda x, y: Rows(
        lambda index: {"input": x[index].tolist(), "labels": y[index]}, len(x)
    ),
}


@pytest.fixture(scope="module")
def run() -> cw.Run:
    return cw.fit(net(), sites(), held_out=part(50), test=part(80), **QUICK)


class Named(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input)


def named() -> nn.Module:
    torch.manual_seed(1)
    return Named(5, 3)


@pytest.fixture(scope="module")
def fitted() -> cw.Run:
    """From tensors."""
    return cw.fit(named(), sites(), held_out=part(50), test=part(80), **QUICK)


@pytest.mark.parametrize("kind", KINDS)
def test_clients_have_data_of_any_kind(kind: str, fitted: cw.Run) -> None:
    """The same numbers in another kind train the same network."""
    clients = {name: KINDS[kind](*own) for name, own in sites().items()}
    network = named()
    found = cw.fit(
        network, clients, held_out=KINDS[kind](*part(50)), test=KINDS[kind](*part(80)), **QUICK
    )
    assert found.frame("clients")["name"].tolist() == list(NAMES)
    assert torch.allclose(found.module.weight, fitted.module.weight, atol=1e-6)
    assert not torch.allclose(found.module.weight, network.weight)  # the user's own is as it was


def test_a_run_has_weights_reasons_a_module_and_predictions(run: cw.Run) -> None:
    assert run.weights.index.tolist() == list(NAMES)
    assert run.weights.columns.tolist() == [1, 2]
    assert run.weights.sum().round(9).eq(1).all()
    text = run.why("south")
    rows = run.frame("weights").set_index(["name", "round"])
    share = rows.loc[("south", 2), "influence"]
    answer, criteria, *_ = text.splitlines()
    assert answer == f"south has {share:.1%} of round 2's model; an equal share is 33.3%."
    assert "dataset_size 70 " in criteria
    assert repr(text) == str(text)
    inputs, targets = part(80)
    predicted = run.predict(inputs)
    assert predicted.tolist() == run.module(inputs).argmax(1).tolist()
    assert (predicted == targets.numpy()).mean() == pytest.approx(
        last(run, "metric")["Recommended"]
    )
    assert run.predict(TensorDataset(inputs, targets)).tolist() == predicted.tolist()
    for value, said in {
        "weast": "no client 'weast'; did you mean 'west'",
        "x": "no client 'x'; known: north, south, west",
    }.items():
        with pytest.raises(RunError, match=said):
            run.why(value)
    assert run.why(1) == text
    assert run.why("south", round=1) != text
    with pytest.raises(RunError, match="no method 'FedAvg'"):
        run.why("south", "FedAvg")


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (torch.zeros(4, 6), r"samples must have shape \(N, 5\), got \(4, 6\)$"),
        (torch.zeros(5), r"got \(5,\); of one sample, pass x\[None\]$"),
        (["a", "b"], "these are no samples"),
        ({"a": torch.zeros(4, 5)}, r"the network takes one array, got \{'a': \(5,\)\}"),
        (None, "these are no samples"),
        (torch.full((4, 5), torch.nan), "some samples have values that are not finite"),
        (part(4), "these are no samples .*; pass the inputs alone"),
    ],
)
def test_what_cannot_be_predicted(run: cw.Run, inputs: Any, said: str) -> None:
    with pytest.raises(ClientwiseError, match=said) as caught:
        run.predict(inputs)
    assert "\n" not in str(caught.value)


def test_the_same_results_are_in_the_folder(tmp_path: Path) -> None:
    """`cw.fit`, `cw.run` and `cw.Run` return the same attributes."""
    network = net()
    fitted = cw.fit(network, sites(), out=tmp_path / "run", **QUICK)
    samples = cw.Samples.from_clients(sites())
    ran = cw.run({}, tmp_path / "same", data=samples, model=network, **QUICK)
    opened = cw.Run(tmp_path / "run", module=network)
    for one in (ran, opened):
        assert isinstance(one, cw.Run)
        assert one.weights.equals(fitted.weights)
        assert one.why("west") == fitted.why("west")
        assert torch.equal(one.module.weight, fitted.module.weight)
        assert one.predict(part(9)[0]).tolist() == fitted.predict(part(9)[0]).tolist()
    with pytest.raises(
        RunError, match=r"network of your own: open it with cw.load\(.*, module=Linear\)"
    ):
        _ = cw.Run(tmp_path / "run").module
    more = cw.fit(network, sites(), out=tmp_path / "run", resume=True, **QUICK | {"rounds": 3})
    assert more.weights.columns.tolist() == [1, 2, 3]


def test_several_methods_and_seeds_are_compared(tmp_path: Path) -> None:
    run = cw.fit(net(), sites(), methods=["FedAvg", "Recommended"], seeds=[1, 2], **QUICK)
    assert (run.methods, RunFolder(run.folder).seeds("FedAvg")) == (
        ["FedAvg", "Recommended"],
        [1, 2],
    )
    assert run.weights.loc["FedAvg"].index.tolist() == list(NAMES)
    rows = run.frame("weights")
    mine = rows[(rows["method"] == "Recommended") & (rows["name"] == "west") & (rows["round"] == 2)]
    assert run.weights.loc[("Recommended", "west"), 2] == pytest.approx(mine["weight"].mean())
    assert run.why("west").count("seed 1: west has ") == 2  # of each method
    assert "has the highest accuracy" in str(run)
    for what in ("module", "predict"):
        with pytest.raises(RunError, match=rf"run.{what} needs one method, and there are 2"):
            _ = run.module if what == "module" else run.predict(part(3)[0])
    assert run.model("FedAvg")(part(3)[0]).shape == (3, 3)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_with_a_target_column(library: str) -> None:
    clients = {name: frame(60 + 10 * place) for place, name in enumerate(NAMES)}
    clients["south"].loc[3, "a"] = numpy.nan
    for table in clients.values():
        table["ward"] = numpy.resize(["x", "y"], len(table))
    if library == "polars":
        clients = {name: polars.from_dict(table.to_dict("list")) for name, table in clients.items()}
    run = cw.fit(lambda shape, outputs: nn.Linear(*shape, outputs), clients, target="y", **QUICK)
    assert run.module.in_features == 5 + 1 + 2  # one marks the gap, two are the wards
    new = frame(8).drop(columns="y").assign(ward="x")
    predicted = run.predict(new)
    assert predicted.columns[0] == "prediction"
    assert set(predicted["prediction"]) <= {"class 0", "class 1", "class 2"}
    held_out = frame(50).assign(ward="x")
    if library == "polars":
        held_out = polars.from_dict(held_out.to_dict("list"))
    split = cw.fit(run.module, clients, target="y", held_out=held_out, test=held_out, **QUICK)
    assert split.predict(new).columns.equals(predicted.columns)


def test_numbers_to_predict() -> None:
    clients = [(x, x[:, :1] * 2) for x, _ in sites().values()]
    run = cw.fit(nn.Linear(5, 1), clients, evaluation={"metric": "mae"}, **QUICK)
    assert run.predict(part(4)[0]).shape == (4,)
    assert run.weights.index.tolist() == [0, 1, 2]
    tables = {name: pandas.DataFrame(x.numpy()) for name, (x, _) in sites().items()}
    run = cw.fit(nn.Linear(4, 1), tables, target="4", evaluation={"metric": "mae"}, **QUICK)
    assert RunFolder(run.folder).model_facts(1).kind == "regression"


def test_token_ids_and_several_inputs() -> None:
    ids = torch.arange(120).reshape(60, 2) % 9
    bag = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 3))
    run = cw.fit(bag, [(ids, ids.sum(1) % 3)] * 2, **QUICK)
    assert run.predict(ids[:4]).shape == (4,)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            found: Tensor = self.layer(torch.cat([left, right], 1))
            return found

    inputs = {"left": torch.randn(60, 2), "right": torch.randn(60, 2)}
    run = cw.fit(Two(), [(inputs, torch.arange(60) % 3)] * 2, **QUICK)
    assert run.predict(inputs).shape == (60,)


def test_samples_that_are_given_are_used_and_others_set_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = cw.fit(net(), sites(), held_out=part(31), progress=True, **QUICK)
    said = capsys.readouterr().err
    assert "Data: 3 clients, 210 samples; classification of 3 classes." in said
    assert (
        "Set apart, drawn by seed 1, the same for all seeds: 21 samples to report on, "
        "20% of each client's other samples as its test set." in said
    )
    assert run.methods == ["Recommended"]
    assert "Optimizer: sgd, learning rate 0.3." in said
    assert f"Run folder: {run.folder}, which is removed at exit; out='runs/mine' keeps it." in said
    assert run.frame("clients")[["num_train", "num_test"]].to_numpy().sum() == 210 - 21
    tests = {name: part(20 + place) for place, name in enumerate(NAMES)}
    run = cw.fit(net(), sites(), test=tests, method="FedAvg", progress=True, **QUICK)
    assert run.frame("clients")["num_test"].tolist() == [20, 21, 22]
    said = capsys.readouterr().err
    assert (
        "Set apart, drawn by seed 1, the same for all seeds: 21 samples to weigh by "
        "(of the clients; held_out= takes samples that you trust)." in said
    )
    assert cw.fit(net(), sites(), server_set={"fraction": 0.0}, **QUICK).methods == ["FedAvg"]
    assert capsys.readouterr().err == ""  # nobody watches


def train_and_test_sizes(run: cw.Run) -> list[tuple[int, int]]:
    return [*run.frame("clients")[["num_train", "num_test"]].itertuples(index=False, name=None)]


def test_clients_train_on_all_samples_where_test_is_given(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What a reader reads are the numbers that were given; results of clients are said to be missing."""
    given: dict[str, Any] = {"held_out": part(50), "test": part(80), **QUICK}
    methods = ["FedAvg", "Recommended"]
    run = cw.fit(
        net(), sites(), out=tmp_path / "run", methods=methods, seeds=[1, 2], progress=True, **given
    )
    said = capsys.readouterr().err
    assert "Clients train on all their other samples and have no test sets of their own." in said
    assert train_and_test_sizes(run) == [(60, 0), (70, 0), (80, 0)] * 2  # by seed
    assert "dataset_size 80 " in run.why("west", "Recommended")
    assert run.frame("local").empty
    assert "No client has results on test data of its own." in printed(run)


@pytest.mark.parametrize(
    "asked",
    [
        {"evaluation": {"test_fraction": 0.2}},
        {"evaluation": {"clients_every": 2}},
        {"server_set": {"source": "clients"}},
        {"server_set": {"fraction": 0.0}, "keep": "best"},
    ],
    ids=str,
)
def test_clients_keep_test_sets_that_something_needs(asked: dict[str, Any]) -> None:
    run = cw.fit(net(), sites(), test=part(80), **QUICK, **asked)
    assert all(test > 0 for _, test in train_and_test_sizes(run))


def test_the_split_follows_the_seed() -> None:
    found = [cw.fit(net, sites(), seeds=[seed], **QUICK).facts.data for seed in (1, 1, 2)]
    assert found[0] == found[1]
    assert found[0][1] != found[2][2]


def test_a_temporary_folder_is_removed_at_exit(tmp_path: Path) -> None:
    program = (
        "import clientwise as cw, torch\n"
        "x = torch.randn(60, 2)\n"
        "run = cw.fit(torch.nn.Linear(2, 1), [(x, (x[:, 0] > 0).long())] * 2, rounds=1)\n"
        "assert run.folder.is_dir()\n"
        "print(run.folder)\n"
    )
    said = subprocess.check_output([sys.executable, "-c", program], text=True, cwd=tmp_path)
    assert not Path(said.strip()).parent.exists()
    assert not list(tmp_path.iterdir())


# Mistakes ------------------------------------------------------------------------------------------------------------

X, Y = part(60)
GOOD = (X, Y)
FRAME, SERIES = pandas.DataFrame(X.numpy()), pandas.Series(Y.numpy())
LABELS = (X[:, :3] > 0).float()
IMAGES = torch.randn(60, 1, 6, 6, generator=torch.Generator().manual_seed(1))
MASKS = (IMAGES[:, 0] > 0).long() + (IMAGES[:, 0] > 1)


class Last(nn.Conv2d):
    """Returns [N, H, W, C]."""

    def __init__(self) -> None:
        super().__init__(1, 3, 1)

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values).permute(0, 2, 3, 1)


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "one-hot": (
        {"clients": [(X, nn.functional.one_hot(Y))] * 2},
        r"targets have shape \(120, 3\) and look one-hot: pass targets.argmax\(1\)",
    ),
    "too few outputs for labels": (
        {"model": nn.Linear(5, 2), "clients": [(X, LABELS)] * 2},
        r"returns 2 numbers for a sample; 3 are needed: targets of shape \(120, 3\) are labels",
    ),
    "an unknown problem": (
        {"problem": "ranking"},
        "problem = 'ranking': must be one of classification, regression, survival, multilabel, seg",
    ),
    "classes that are floats": (
        {"clients": [(X, X[:, 0])] * 2, "problem": "classification"},
        "targets are floats: for classes, pass integers",
    ),
    "masks outside the classes": (
        {"clients": [(IMAGES, MASKS + 2)] * 2, "num_classes": 3},
        "masks must have classes 0 to 2, found 2 to 4",
    ),
    "masks of another size": (
        {"model": nn.Conv2d(1, 3, 3), "clients": [(IMAGES, MASKS)] * 2},
        r"model: returns 48 numbers for a sample; 108 are needed: masks of shape \(120, 6, 6\) with 3 "
        r"classes take outputs \[N, 3, 6, 6\]",
    ),
    "events of arrays": (
        {"event": "died"},
        "event= name columns of frames; of arrays, pass times as targets, negative",
    ),
    "a frame in a dictionary": (
        {"clients": [{"table": frame(40)}, {"table": frame(40)}], "target": "y"},
        "target = 'y' names a column of frames, and client 0 is no frame",
    ),
    "labels in words": (
        {"clients": [(X, ["a", "b"] * 30)] * 2},
        "client 0: its targets are no array of numbers .*numpy.unique",
    ),
    "labels from one": (
        {"clients": [(X, Y + 1)] * 2},
        "model: returns 3 numbers for a sample; 4 are needed: labels begin at 1: subtract 1",
    ),
    "negative labels": ({"clients": [(X, Y - 1)] * 2}, "labels must be 0 to 1, found -1 to 1"),
    "no targets": (
        {"clients": [Rows(lambda index: X[index]), GOOD]},
        r"client 0: a sample is a Tensor of shape \(5,\): return \(input, target\)",
    ),
    "variable lengths": (
        {"clients": [Rows(lambda index: (torch.zeros(index + 1), 0)), GOOD]},
        r"client 0: its samples cannot be read and joined \(RuntimeError: stack expects .*padded or cut to one shape",
    ),
    "an empty dataset": (
        {"clients": {"north": TensorDataset(X[:0], Y[:0]), "south": GOOD}},
        "north: is empty: leave it out",
    ),
    "one sample": (
        {"clients": {"north": (X[:1], Y[:1]), "south": GOOD}},
        "north: too few samples to train and to test on",
    ),
    "other shapes": (
        {"clients": {"north": GOOD, "south": (torch.zeros(9, 4), Y[:9])}},
        r"one shape: south: inputs \(4,\) of numbers, targets \(\), north: inputs \(5,\)",
    ),
    "fewer targets": ({"clients": [(X, Y[:-1]), GOOD]}, "client 0: has 60 inputs, 59 targets"),
    "gaps": (
        {"clients": [(X / 0, Y), GOOD]},
        "client 0: 60 of its 60 samples have inputs or targets that are not finite",
    ),
    "a path": (
        {"clients": {"north": "north.csv"}},
        "north: is 'north.csv': pass .inputs, targets",
    ),
    "one array": ({"clients": (X, Y)}, r"client 0: is a Tensor of shape \(60, 5\): pass \(inputs"),
    "nothing": ({"clients": [None, GOOD]}, "client 0: is None: pass .inputs, targets., a Dataset"),
    "names that are the same": (
        {"clients": {1: GOOD, "1": GOOD}},
        "two of them have the same name",
    ),
    "frames without target": (
        {"clients": {"north": frame(40), "south": frame(50)}},
        "north: is a DataFrame .*: pass .*, or a frame with target=",
    ),
    "another column": (
        {"clients": {"north": frame(40), "south": frame(50)}, "target": "Y"},
        "north, south: no column 'Y'; did you mean 'y'",
    ),
    "a column less": (
        {"clients": [frame(40).drop(columns="b"), *[frame(40)] * 8], "target": "y"},
        "^client 0: no column 'b', which others have; .* add the column, or put it into `ignore`",
    ),
    "one frame": (
        {"clients": frame(40), "client": "site"},
        r"clients: is one frame.*groupby\('site'\)",
    ),
    "tests of other clients": (
        {"test": {"north": GOOD}},
        "test: has north, and the clients are north, south, west: pass a test set for each client",
    ),
    "swapped": (
        {"model": sites(), "clients": net()},
        r"the network comes first: cw.fit\(network, cl",
    ),
    "no network": ({"model": 3}, "model: must be a module or make one, got int"),
    "a network by a wrong name": ({"model": "mpl"}, "unknown model 'mpl'; did you mean 'mlp'"),
    "a misspelt keyword": (
        {"lerning_rate": 0.1},
        "lerning_rate: unknown keyword; did you mean 'lear",
    ),
    "another library's keyword": ({"local_epochs": 2}, "unknown keyword; did you mean 'epochs'"),
    "a key of a table": (
        {"metric": "auc"},
        r"metric: is a key of evaluation: pass evaluation=\{'metric': ...\}",
    ),
    "both": ({"method": "FedAvg", "methods": ["FedAvg"]}, "give either method or methods"),
    "an unknown method": (
        {"method": "FedAvgg"},
        "there is no method 'FedAvgg'; did you mean 'FedAvg'",
    ),
    "seeds": ({"seeds": 3}, r"seeds = 3: must be a list: \[3\]"),
    "numbers that are integers": (
        {"model": nn.Linear(5, 1)},
        "returns 1 number for a sample; 3 are needed: labels are integers from 0 to 2.*pass floats",
    ),
    "nothing happened": (
        {"model": nn.Linear(5, 1), "clients": [(X, -1.0 - Y)] * 2, "problem": "survival"},
        "no event has happened",
    ),
    "a partition of given clients": (
        {"partition": {"name": "iid", "clients": 5}},
        "partition: of cw.run: the clients of cw.fit have their samples",
    ),
    "class weights without a loss": (
        {"class_weights": "balanced"},
        "class_weights: is an option of the loss: pass loss=",
    ),
    "momentum without an optimizer": (
        {"momentum": 0.9},
        r"momentum: is an option of the optimizer: pass optimizer={'name': 'sgd', 'momentum'",
    ),
    "a frame and a series of other rows": (
        {"clients": [(FRAME, SERIES.sort_index(ascending=False))] * 2},
        r"client 0: its inputs and targets have other indexes: pass targets.loc\[inputs.index\]",
    ),
    "words and numbers": (
        {"clients": {"north": frame(40), "south": frame(40).assign(a="x")}, "target": "y"},
        "column 'a' has words with south and numbers with north",
    ),
    "a class with other arguments": (
        {"model": nn.Linear},
        r"Linear cannot be built: .*with two arguments, it is called with \(5,\), 3",
    ),
    "NaN in the network": (
        {"model": nn.Linear(5, 3).apply(lambda one: nn.init.constant_(one.weight, torch.nan))},
        "model: its parameter weight has NaN or Inf before training",
    ),
    "a client called as the server's samples": (
        {"clients": {"north": GOOD, "held_out": GOOD}, "held_out": GOOD},
        "clients: 'held_out' also names samples of the server: rename the client",
    ),
    "a short keyword": ({"lr": 0.1}, "lr: unknown keyword; did you mean 'learning_rate'"),
    "a rate below 0": ({"learning_rate": -1}, r"^training\.learning_rate = -1: "),
    "a folder that is none": ({"out": True}, "out = True: must be the path of a folder"),
    "resumed without a folder": ({"resume": True}, "resume=True: out= must name the run folder"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused_in_one_line(mistake: str) -> None:
    given, said = MISTAKES[mistake]
    arguments = {"model": net(), "clients": sites(), **QUICK, **given}
    with pytest.raises(ClientwiseError, match=said) as caught:
        cw.fit(**arguments)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 320


def test_what_would_not_be_used_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    data = TensorDataset(*GOOD)
    weighted = WeightedRandomSampler([1.0] * 60, num_samples=60)
    for loader in (
        DataLoader(data, sampler=weighted),
        DataLoader(data, collate_fn=list),
        DataLoader(data, batch_sampler=Batches()),
    ):
        with pytest.raises(ClientwiseError, match="north: is a DataLoader with a sampler or coll"):
            cw.fit(net(), {"north": loader, "south": GOOD}, **QUICK)
    clients = {
        "south": Rows(lambda index: (X[index] + torch.randn(5), Y[index]), 60),
        "plain": DataLoader(data, batch_size=7, shuffle=True, drop_last=True),
        "west": data,
    }
    with caplog.at_level(logging.WARNING):
        cw.fit(net(), clients, **QUICK)
    said = [one.getMessage() for one in caplog.records]
    assert "warning: south: samples differ each time they are read" in said[0]
    assert not [text for text in said if "west" in text or "plain" in text]


def test_samples_that_are_used_twice_are_said(caplog: pytest.LogCaptureFixture) -> None:
    inputs, targets = part(40)
    with caplog.at_level(logging.WARNING):
        cw.fit(net(), sites(), held_out=sites()["north"], test=sites()["north"], **QUICK)
        other = (inputs, torch.full_like(targets, 3))
        cw.fit(nn.Linear(5, 4), sites(), held_out=other, test=part(40), **QUICK)
    said = "\n".join(one.getMessage() for one in caplog.records)
    assert "of 60 held-out samples are also training samples" in said
    assert "60 of 60 test samples are also held-out samples" in said
    assert "no sample that the server weighs by is of class 0, 1, 2" in said


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_network_of_another_type_predicts(dtype: torch.dtype) -> None:
    run = cw.fit(net().to(dtype), sites(), **QUICK)
    assert run.predict(part(4)[0]).shape == (4,)
    assert run.module(part(4)[0]).dtype == torch.float32


def test_a_network_that_has_a_layer_twice() -> None:
    layer = nn.Linear(5, 5)
    run = cw.fit(nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(5, 3)), sites(), **QUICK)
    trained = run.module
    assert isinstance(trained, nn.Sequential)
    assert trained[0] is trained[2]
    assert run.predict(part(4)[0]).shape == (4,)
    assert not torch.equal(trained[0].weight, layer.weight)


def test_results_that_are_not_there(run: cw.Run) -> None:
    with pytest.raises(RunError, match="no method 'FedAvgg'; known: Recommended"):
        run.model("FedAvgg")
    listed = cw.fit(net(), list(sites().values()), **QUICK)
    assert listed.why("client 1") == listed.why(1)


def test_columns_of_frames_are_ignored() -> None:
    sheets = {name: frame(70).assign(code=range(70)) for name in NAMES}
    sheets["north"] = sheets["north"].drop(columns="code")
    for ignore in ("code", ["code"]):
        run = cw.fit("linear", sheets, target="y", ignore=ignore, **QUICK)
        table = RunFolder(run.folder).model_facts(1).table
        columns = table.columns
        assert [one.name for one in columns] == ["a", "b", "c", "d", "e"]
    with pytest.raises(ClientwiseError, match="no column 'cod' to ignore; did you mean"):
        cw.fit("linear", sheets, target="y", ignore=["cod"], **QUICK)
    with pytest.raises(ClientwiseError, match="ignore= and event= name columns of frames"):
        cw.fit(net(), sites(), ignore=["a"], **QUICK)


def test_another_network_of_the_same_shapes_is_noticed(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(inputs)

    first = tmp_path / "run"
    cw.fit(Net, sites(), out=first, method="FedAvg", **QUICK)
    again = {**QUICK, "methods": ["FedAvg", "FedProx"], "resume": True}
    code = "other code or layers of the network"

    class Net(nn.Module):  # type: ignore[no-redef]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            return -self.layer(inputs)

    with pytest.raises(RunError, match=code):
        cw.fit(Net, sites(), out=first, **again)
    grown = cw.fit(Net, sites(), out=first, accept_changes=True, **again)
    assert any(code in change.what[0] for change in grown.facts.changes)

    layers = tmp_path / "layers"
    cw.fit(nn.Sequential(nn.Linear(5, 3), nn.ReLU()), sites(), out=layers, **QUICK)
    with pytest.raises(RunError, match=code):
        cw.fit(nn.Sequential(nn.Linear(5, 3), nn.Tanh()), sites(), out=layers, **again)
    cw.fit(nn.Sequential(nn.Linear(5, 3), nn.ReLU()), sites(), out=layers, **again)


def test_mistakes_with_a_config() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            found: Tensor = self.layer(left + right)
            return found

    with pytest.raises(ConfigError, match=r"forward takes left, right, and.*inputs one, right"):
        cw.fit(Two(), [({"one": X, "right": X}, Y)] * 2, **QUICK)
    wrong: Any = net()
    with pytest.raises(ClientwiseError, match="the config comes first"):
        cw.run(wrong, sites())
    with pytest.raises(ConfigError, match=r"held_out: is an argument of cw.fit"):
        cw.run({}, data=cw.Samples.from_clients(sites()), model=net(), held_out=GOOD)
    wrong = sites()
    with pytest.raises(ClientwiseError, match=r"got dict.*cw.Samples.from_clients"):
        cw.run({"rounds": 1}, data=wrong, model=net())


# Objects and functions instead of names ------------------------------------------------------------------------------


def labels_seen(clients: cw.parts.ClientFacts) -> Tensor:
    return (clients.label_counts > 0).sum(-1)


def closeness(arrivals: Any) -> Tensor:
    """How near an update is."""
    return 1 / (1 + (arrivals.models - arrivals.global_model).norm(dim=1))


def on_server(arrivals: cw.parts.Arrivals) -> Tensor:
    return arrivals.evaluation().losses.mean(1)


def both(labels_seen: Tensor, dataset_size: Tensor) -> Tensor:
    return labels_seen * dataset_size


def squared(names: Any, values: Tensor) -> Tensor:
    return values.prod(1) ** 2


class Steep(cw.parts.Score):
    """Powers."""

    def __init__(self, power: float) -> None:
        self.power = power

    def __call__(self, names: Any, values: Tensor) -> Tensor:
        return values.prod(1) ** self.power


@dataclass(frozen=True)
class Powers(cw.parts.Score):
    """Powers, of which the config knows."""

    power: float = 1.0

    def __call__(self, names: Any, values: Tensor) -> Tensor:
        return values.prod(1) ** self.power


def fit_with(**method: Any) -> cw.Run:
    return cw.fit(net(), sites(), method={"name": "mine", **method}, **QUICK)


def test_functions_and_scores_stand_for_names(tmp_path: Path) -> None:
    criteria = ["label_diversity", "dataset_size"]
    named = fit_with(criteria=criteria, score={"name": "prioritized", "priority": criteria[::-1]})
    given = fit_with(
        criteria=[labels_seen, "dataset_size"], score=cw.prioritized("dataset_size", "labels_seen")
    )
    assert given.weights.equals(named.weights)
    assert given.facts.functions == {"criterion labels_seen": __name__}
    page = given.report(tmp_path / "report").read_text(encoding="utf-8")
    assert "criterion labels_seen was given in Python as a function" in page
    assert page.count("south") > 1
    assert named.facts.functions == {}
    product = fit_with(criteria=criteria, score=cw.product(), normalise="sum")
    of_labels = fit_with(criteria=[labels_seen, "dataset_size"], score=both)
    assert numpy.allclose(of_labels.weights, product.weights)
    assert of_labels.facts.functions.keys() == {"criterion labels_seen", "score both"}
    assert of_labels.config["methods"][0]["score"] == {"name": "both"}
    of_matrix = fit_with(criteria=["dataset_size"], score=squared)
    sizes = of_matrix.frame("clients")["num_train"].to_numpy() ** 2
    assert numpy.allclose(of_matrix.weights[2], sizes / sizes.sum())
    of_class = fit_with(criteria=["dataset_size"], score=Powers(2.0))
    assert numpy.allclose(of_class.weights, of_matrix.weights)
    assert of_class.config["methods"][0]["score"] == {"name": "Powers", "power": 2.0}
    near = fit_with(criteria=[{"name": closeness, "as": "near"}], score=cw.mean)
    assert {*near.frame("criteria")["criterion"]} == {"near"}
    assert cw.run({}, tmp_path / "a", data=cw.Samples.from_clients(sites()), model=net, **QUICK)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (
            {"criteria": [lambda clients: 1]},
            "a lambda has no name for the record: write the criterion",
        ),
        ({"criteria": [len]}, r"len\(obj\): call its first argument `clients`"),
        ({"criteria": [squared]}, r"squared\(names\): call its first argument `clients`"),
        ({"score": both}, r"both\(labels_seen, dataset_size\): the criteria are dataset_size"),
        ({"score": cw.prioritized}, "there is a score 'prioritized' already; give your own"),
        ({"rule": squared}, "squared is a function that is not registered: register it as a rule"),
        ({"score": 3}, "must name the score"),
        ({"score": cw.prioritized("size")}, "score: priority"),
        ({"score": Steep(2.0)}, "Steep: its options are not known: make it a dataclass"),
    ],
)
def test_functions_that_are_no_parts(method: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        fit_with(**method)
    assert "\n" not in str(caught.value)


def test_a_function_declares_what_it_reads() -> None:
    with pytest.raises(ConfigError, match=r"methods\[0\]: needs samples to weigh by"):
        cw.fit(
            net(),
            sites(),
            method={"name": "mine", "criteria": [on_server]},
            server_set={"fraction": 0.0},
            **QUICK,
        )


@pytest.mark.parametrize("value", [-0.25, math.nan, math.inf])
def test_a_score_of_a_client_that_is_no_weight(value: float) -> None:
    def odd(dataset_size: Tensor) -> Tensor:
        is_smallest = dataset_size == dataset_size.min()
        return torch.where(is_smallest & (dataset_size < 1), value, dataset_size)

    clients = sites()
    smallest = min(clients, key=lambda name: len(clients[name][0]))
    said = (
        f"score odd returned {value:g} for client {smallest}: a score must be finite and 0 or more"
    )
    method = {"name": "mine", "criteria": ["dataset_size"], "score": odd}
    with pytest.raises(cw.ClientwiseError) as caught:
        cw.fit(net(), clients, method=method, **QUICK)
    assert str(caught.value) == said


def test_other_code_of_a_function_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quality(clients: Any) -> Tensor:
        return clients.num_samples

    config = {"method": {"name": "mine", "criteria": [quality]}, **QUICK}
    folder = tmp_path / "run"
    cw.fit("linear", sites(), out=folder, resume=True, **config)  # begins: there is no run yet

    def quality(clients: Any) -> Tensor:  # type: ignore[no-redef]
        return 2 * clients.num_samples

    config = {"method": {"name": "mine", "criteria": [quality]}, **QUICK, "rounds": 3}
    with pytest.raises(RunError, match="other code of the criterion quality"):
        cw.fit("linear", sites(), out=folder, resume=True, **config)
    with pytest.raises(ConfigError, match="other processes cannot use your criterion quality"):
        cw.fit("linear", sites(), workers="ray", **config)
    monkeypatch.delitem(cw.parts.CRITERIA._parts, "quality")  # as in another process
    assert cw.load(folder).module
    with pytest.raises(RunError, match="criterion quality: given in Python"):
        cw.load(folder / "config.toml")


def test_keywords_change_a_config(tmp_path: Path) -> None:
    file = tmp_path / "first.toml"
    file.write_text(
        'rounds = 9\ndata = "digits"\nmodel = "linear"\nmethods = ["FedAvg", "FedAdam"]\n'
        'partition = { name = "iid", clients = 4 }\n[training]\nepochs = 2\nlearning_rate = 0.5\n',
        encoding="utf-8",
    )
    run = cw.run(
        file,
        tmp_path / "run",
        rounds=1,
        seeds=range(3, 5),
        method="FedAdam",
        learning_rate=0.25,
        partition={"clients": 3},
    )
    assert run.config["name"] == "first"
    assert (run.methods, RunFolder(run.folder).seeds("FedAdam"), run.facts.rounds) == (
        ["FedAdam"],
        [3, 4],
        1,
    )
    assert run.config["training"]["epochs"] == 2
    assert run.config["training"]["learning_rate"] == 0.25
    assert len(rows(run, "clients", seed=3)) == 3
    assert run.predict(torch.zeros(2, 1, 8, 8)).shape == (2,)
    with pytest.raises(ClientwiseError, match="rounds: changes a file or dictionary, not a loaded"):
        cw.run(cw.load(file), tmp_path / "again", rounds=1)


def test_attacks_are_keywords() -> None:
    run = cw.fit(net(), sites(), hostile={"clients": ["west"], "attack": "sign_flip"}, **QUICK)
    assert run.frame("clients")["hostile"].fillna("").tolist() == ["", "", "sign_flip"]
    assert "The client is hostile (sign_flip)." in run.why("west")
