"""A run in Python: a network of one's own goes in, and the trained one comes out."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn import metrics as reference
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import clientwise as cw
from clientwise.errors import ClientwiseError, ConfigError, RunError
from recorded import last, rows


class Net(nn.Module):
    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(5, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 3)
        )

    def forward(self, samples: Tensor) -> Tensor:
        outputs: Tensor = self.body(samples)
        return outputs


def share(count: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 5, generator=torch.Generator().manual_seed(count))
    return inputs, inputs[:, :3].argmax(1)


CONFIG: dict[str, Any] = {
    "name": "mine",
    "rounds": 3,
    "seeds": [1, 2],
    "device": "cpu",
    "training": {"learning_rate": 0.3, "batch_size": 20},
    "methods": ["FedAvg", {"name": "alone", "control": "alone"}],
}


@pytest.fixture(scope="module")
def data() -> cw.FederatedData:
    return cw.FederatedData.from_clients(
        [share(n) for n in (60, 40, 90)], [share(n) for n in (20, 21, 22)], report=share(70)
    )


@pytest.fixture(scope="module")
def run(data: cw.FederatedData, tmp_path_factory: pytest.TempPathFactory) -> cw.Run:
    return cw.Run(cw.run(CONFIG, tmp_path_factory.mktemp("runs") / "mine", data=data, model=Net))


def accuracy(network: nn.Module) -> float:
    inputs, targets = share(70)
    return float((network(inputs).argmax(1) == targets).double().mean())


def test_a_network_of_ones_own_comes_back_trained(run: cw.Run) -> None:
    own = cw.load(run.folder, module=Net)
    for seed in (1, 2):
        network = own.model("FedAvg", seed)
        assert accuracy(network) == last(run, "metric", seed)["FedAvg"]
        assert not network.training
    with pytest.raises(
        RunError, match=r"given a network of your own: open it with cw.load\(.*=Net"
    ):
        cw.Run(run.folder).model("FedAvg")
    with pytest.raises(RunError, match="alone has no model: every client keeps one of its own"):
        run.model("alone")
    for other in (nn.Linear(5, 3), Net(9)):
        with pytest.raises(RunError, match="does not fit this network"):
            cw.load(run.folder, module=other).model("FedAvg")


def test_a_terminal_shows_the_result(run: cw.Run, tmp_path: Path) -> None:
    first, headline, *methods = repr(run).splitlines()
    assert first == f"Run({str(run.folder)!r}): finished, 2 methods, 2 seeds, 3 rounds"
    assert "has the highest accuracy" in headline
    values = [100 * last(run, "metric", seed)["FedAvg"] for seed in (1, 2)]
    (fedavg,) = [line for line in methods if re.match(r" *FedAvg +\d", line)]
    assert f"{sum(values) / 2:.1f}%" in fedavg
    copy = cw.Run(shutil.copytree(run.folder, tmp_path / "copy"))
    (copy.folder / "run.sqlite").write_bytes(b"rubbish")
    assert repr(copy) == f"Run({str(copy.folder)!r}): cannot be read"


@pytest.mark.parametrize("metric", ["balanced_accuracy", "macro_f1", "auc"])
def test_the_metric_is_what_was_asked_for(
    metric: str, data: cw.FederatedData, tmp_path: Path
) -> None:
    config = CONFIG | {"rounds": 2, "seeds": [1], "evaluation": {"metric": metric, "target": 0.01}}
    run = cw.Run(cw.run(config, tmp_path / "run", data=data, model=Net))
    inputs, targets = share(70)
    scores = cw.load(run.folder, module=Net).model("FedAvg")(inputs).detach()
    expected = {
        "balanced_accuracy": lambda: reference.balanced_accuracy_score(targets, scores.argmax(1)),
        "macro_f1": lambda: reference.f1_score(targets, scores.argmax(1), average="macro"),
        "auc": lambda: reference.roc_auc_score(targets, scores.softmax(1), multi_class="ovr"),
    }[metric]()
    assert (run.facts.metric, run.facts.target) == (metric, 0.01)
    assert last(run, "metric")["FedAvg"] == pytest.approx(expected, abs=1e-6)
    local = rows(run, "local", "FedAvg", 1, 2)["metric"].iloc[0]
    inputs, targets = share(20)
    if metric == "balanced_accuracy":  # of every client, too
        predictions = cw.load(run.folder, module=Net).model("FedAvg")(inputs).argmax(1)
        assert local == pytest.approx(reference.balanced_accuracy_score(targets, predictions))


def test_a_metric_must_fit(tiny: dict[str, Any], tmp_path: Path) -> None:
    for metric, said in {
        "aucc": "unknown metric 'aucc'; did you mean 'auc'",
        "mape": "mape needs numbers to predict, and this is classification",
    }.items():
        with pytest.raises(ConfigError, match=f"evaluation.metric: .*{said}"):
            cw.run(tiny | {"evaluation": {"metric": metric}}, tmp_path / "run")
    tiny["methods"] = [
        {"name": "wrong", "criteria": [{"name": "server_performance", "metric": "auc"}]}
    ]
    with pytest.raises(ConfigError, match=r"methods\[0\]\S*: .*it is for evaluation.metric"):
        cw.run(tiny, tmp_path / "run")


def test_samples_of_ones_own_are_split_anew_with_every_seed(tmp_path: Path) -> None:
    x, y = share(90)
    whole = TensorDataset(x[50:], y[50:])
    samples = cw.Samples.from_clients({"north": (x[:50], y[:50]), "south": whole})
    run = cw.Run(
        cw.run(
            CONFIG | {"rounds": 1, "methods": ["FedAvg"]}, tmp_path / "run", data=samples, model=Net
        )
    )
    assert rows(run, "clients", seed=1)["name"].tolist() == ["north", "south"]
    assert run.facts.data[1] != run.facts.data[2]
    sizes = rows(run, "clients", seed=1)[["num_train", "num_test"]]
    assert 60 < sizes.to_numpy().sum() < 90  # the server has its part, and of both
    with pytest.raises(ConfigError, match="engine: other processes cannot use your samples"):
        cw.run(CONFIG | {"engine": "flower", "methods": ["FedAvg"]}, data=samples, model=None)
    with pytest.raises(ValueError, match="no clients: give a pair of arrays"):
        cw.Samples.from_clients({})
    with pytest.raises(ValueError, match="client 1: has 3 inputs, 2 targets"):
        cw.Samples.from_clients([(x[:5], y[:5]), (x[:3], y[:2])])


def test_frames_hold_every_row(run: cw.Run) -> None:
    rounds, clients, weights = (run.frame(name) for name in ("rounds", "local", "weights"))
    assert (len(rounds), len(clients), len(weights)) == (12, 36, 36)
    assert weights.groupby(["method", "seed", "round"]).weight.sum().round(9).eq(1).all()
    assert {"method", "seed", "round", "client", "criterion", "raw", "normalised"} < {
        *run.frame("criteria").columns
    }
    with pytest.raises(RunError, match="no frame 'weight'; did you mean 'weights'"):
        run.frame("weight")  # type: ignore[arg-type]


def test_a_notebook_shows_a_run_as_words_table_and_picture(run: cw.Run) -> None:
    shown = run._repr_html_()
    assert "<strong>mine: finished</strong>" in shown
    assert "<td>FedAvg</td>" in shown
    picture = re.search(r'<img src="data:image/svg\+xml;base64,(.*?)">', shown)
    assert picture is not None
    assert b"FedAvg" in b64decode(picture[1])
    figure = run.figure().properties(title="my own title")
    assert figure.to_dict()["title"] == "my own title"
    with pytest.raises(ClientwiseError, match="there is no chart 'metrik'; did you mean 'metric'"):
        run.figure("metrik")


def test_progress_is_shown_where_somebody_watches(
    data: cw.FederatedData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = CONFIG | {"seeds": [1], "rounds": 2, "methods": [{"name": "a<b", "like": "FedAvg"}]}
    cw.run(config, tmp_path / "nobody watches", data=data, model=Net)
    assert capsys.readouterr().err == ""
    cw.run(config, tmp_path / "plain", data=data, model=Net, progress=True)
    assert "a<b, seed 1: round 2/2" in capsys.readouterr().err


def test_a_module_begins_with_its_own_numbers(data: cw.FederatedData, tmp_path: Path) -> None:
    network = Net()
    still = CONFIG | {
        "rounds": 1,
        "methods": ["FedAvg"],
        "training": {"learning_rate": 1e-30, "batch_size": 20},
    }
    run = cw.Run(cw.run(still, tmp_path / "run", data=data, model=network))
    for seed in (1, 2):
        assert torch.equal(
            cw.load(run.folder, module=Net).model("FedAvg", seed).body[0].weight,
            network.body[0].weight,
        )


def test_what_is_exported_needs_no_clientwise(run: cw.Run, tmp_path: Path) -> None:
    path = run.export("FedAvg", 1, tmp_path)
    program = f"""
import sys
from safetensors import safe_open
with safe_open({str(path)!r}, "np") as file:
    print(file.metadata()["method"], file.metadata()["round"], file.metadata()["input_shape"], sorted(file.keys())[0])
assert "clientwise" not in sys.modules
"""
    printed = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert printed.split() == ["FedAvg", "3", "[5]", "body.0.bias"]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Linear(4, 3), r"does not take samples of shape \(5,\)"),
        (nn.Linear(5, 2), "returns 2 numbers for a sample; 3 are needed"),
        (lambda: 3, "must give a torch.nn.Module, gave int"),
        (
            lambda width: nn.Linear(5, width),
            "must be called with nothing, or with the shape .* it asks for width",
        ),
        (3, "must be a module or make one, got int"),
        (lambda shape, outputs: nn.Linear(5 // 0, 2), "cannot be built: ZeroDivisionError"),
    ],
)
def test_what_is_no_network_is_refused_in_words(
    model: Any, said: str, data: cw.FederatedData, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"model: .*{said}"):
        cw.run(CONFIG, tmp_path / "run", data=data, model=model)
    assert not (tmp_path / "run").exists()


def test_other_processes_cannot_see_a_model(data: cw.FederatedData, tmp_path: Path) -> None:
    for key, value in {"engine": "flower", "workers": "ray"}.items():
        with pytest.raises(ConfigError, match=f"{key}: other processes cannot use your model"):
            cw.run(
                CONFIG | {key: value, "methods": ["FedAvg"]}, tmp_path / "run", data=data, model=Net
            )
    with pytest.raises(ConfigError, match="model: is missing: name one, or pass a module"):
        cw.run(CONFIG, tmp_path / "run", data=data)


def test_a_class_of_a_plugin_is_a_model_with_options(
    tmp_path: Path, data: cw.FederatedData
) -> None:
    (tmp_path / "my_net.py").write_text(
        '''
import clientwise as cw
from torch import nn

@cw.parts.MODELS.register("my_net")
class MyNet(nn.Module):
    """Two layers."""

    def __init__(self, input_shape, num_outputs, *, hidden: int = 4):
        super().__init__()
        self.first, self.last = nn.Linear(input_shape[0], hidden), nn.Linear(hidden, num_outputs)

    def forward(self, samples):
        return self.last(self.first(samples).relu())
'''
    )
    config = CONFIG | {
        "plugins": ["my_net"],
        "plugin_dir": str(tmp_path),
        "model": {"name": "my_net", "hidden": 6},
    }
    run = cw.Run(cw.run(config, tmp_path / "run", data=data))
    network = run.model("FedAvg")
    assert network.first.weight.shape == (6, 5)
    assert accuracy(network) == last(run, "metric")["FedAvg"]
    with pytest.raises(ConfigError, match=r"model\.hiden: unknown option; did you mean 'hidden'"):
        cw.load(config | {"model": {"name": "my_net", "hiden": 6}})
