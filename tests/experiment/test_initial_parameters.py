"""A run whose network is a module: all seeds and methods begin with its parameters, also after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from typer.testing import CliRunner

import clientwise as cw
from clientwise.cli import app
from clientwise.errors import RunError
from clientwise.record.run import RunFolder

SETTINGS: dict[str, Any] = {"rounds": 1, "device": "cpu", "learning_rate": 1e-6, "seeds": [1, 2]}
REMARK = "goes on with the initial parameters that it began with, not those of the given network"
FILE = "checkpoints/initial.safetensors"


def part(count: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 5, generator=torch.Generator().manual_seed(count))
    return inputs, inputs[:, :3].argmax(1)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def fit(network: Any, folder: Path, *methods: str, **changes: Any) -> cw.Run:
    clients = {"north": part(60), "south": part(70)}
    given = {"held_out": part(80), "test": part(90), "methods": methods or ["FedAvg"]}
    return cw.fit(network, clients, out=folder, **{**SETTINGS, **given, **changes})


def first_layer(run: cw.Run, method: str, seed: int = 1) -> Tensor:
    return RunFolder(run.folder).trained(method, seed)[1]["0.weight"]


@pytest.mark.parametrize("again", [net(), net], ids=["module", "function"])
def test_methods_that_are_added_begin_with_the_same_parameters(
    again: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun = net()
    fit(begun, tmp_path / "run")
    assert REMARK not in caplog.text
    run = fit(again, tmp_path / "run", "FedAvg", "Uniform", seeds=[1, 2, 3], resume=True)
    assert caplog.text.count(REMARK) == 1
    for seed in (1, 2, 3):
        for method in ("FedAvg", "Uniform"):
            assert torch.allclose(first_layer(run, method, seed), begun[0].weight, atol=1e-3)
    whole = fit(begun, tmp_path / "whole", "FedAvg", "Uniform", seeds=[1, 2, 3])
    assert first_layer(run, "Uniform").equal(first_layer(whole, "Uniform"))


def test_a_run_that_was_killed_goes_on_with_a_module_that_is_made_anew(tmp_path: Path) -> None:
    begun = net()

    def kill(_: cw.Run, progress: Any) -> None:
        if progress.record.round_num == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(begun, tmp_path / "run", rounds=3, on_round=kill)
    run = fit(net(), tmp_path / "run", rounds=3, resume=True)
    whole = fit(begun, tmp_path / "whole", rounds=3)
    for seed in (1, 2):
        assert first_layer(run, "FedAvg", seed).equal(first_layer(whole, "FedAvg", seed))


def test_the_same_module_resumes_without_a_remark(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network = net().double()
    fit(network, tmp_path / "run")
    fit(network, tmp_path / "run", rounds=2, resume=True)
    assert REMARK not in caplog.text


def test_other_parameters_are_refused_where_those_of_the_run_are_lost(tmp_path: Path) -> None:
    network = net()
    fit(network, tmp_path / "run")
    (tmp_path / "run" / FILE).write_bytes(b"nothing")
    with pytest.raises(RunError, match=r"initial.safetensors: damaged \(.*\); restore it"):
        fit(network, tmp_path / "run", rounds=2, resume=True)
    (tmp_path / "run" / FILE).unlink()
    with pytest.raises(RunError, match="something else: other initial parameters of the network"):
        fit(net(), tmp_path / "run", rounds=2, resume=True)
    fit(network, tmp_path / "run", rounds=2, resume=True)
    assert (tmp_path / "run" / FILE).is_file()


def test_other_layers_are_refused_as_such(tmp_path: Path) -> None:
    fit(net(), tmp_path / "run")
    with pytest.raises(RunError, match="other code or layers of the network"):
        fit(nn.Linear(5, 3), tmp_path / "run", rounds=2, resume=True)


NOTE = "All seeds begin with the parameters of the given network: intervals and p-values"


def test_it_says_that_seeds_do_not_differ_in_their_initial_parameters(tmp_path: Path) -> None:
    run = fit(net(), tmp_path / "run")
    shown = CliRunner().invoke(app, ["show", str(run.folder)], env={"COLUMNS": "300"}).output
    page = run.report().read_text(encoding="utf-8")
    for text in (str(cw.Run(run.folder)), shown, page):
        assert text.count(NOTE) == 1
    started = fit(net(), tmp_path / "one", seeds=[1])
    assert NOTE not in str(started)
    for name, given in {"function": net, "name": "linear"}.items():
        assert NOTE not in str(fit(given, tmp_path / name))


def test_a_trained_model_as_a_file_is_named_instead(tmp_path: Path) -> None:
    network = net()
    save_file(network.state_dict(), tmp_path / "first.safetensors")
    run = fit(network, tmp_path / "run", initial_model=str(tmp_path / "first.safetensors"))
    assert NOTE not in str(run)
    assert not (tmp_path / "run" / FILE).exists()


def test_a_function_and_a_named_network_keep_no_file(tmp_path: Path) -> None:
    fit(net, tmp_path / "function")
    fit("linear", tmp_path / "name")
    assert not list(tmp_path.rglob("initial.safetensors"))
