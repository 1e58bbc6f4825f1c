"""`agree`: what it reads, what it refuses, what it prints, and that it imports nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from clientwise_consortium.approval import (
    Approval,
    ApprovalError,
    Experiment,
    in_words,
    propose,
    telling_apart,
)
from clientwise_consortium.command import main
from clientwise_consortium.keys import UntrustedError
from conftest import Keys
from federation import NOISE, config

ABOUT: dict[str, Any] = {
    "site": "north",
    "lock": b"lock",
    "reason": "ethics vote 12/26",
    "without_noise": None,
    "evaluations": 0,
}
METHOD = {"name": "a", "criteria": ["dataset_size"]}


def read(table: dict[str, Any]) -> Experiment:
    return Experiment.read(tomli_w.dumps(table).encode())


def test_the_most_that_is_released_is_counted() -> None:
    found = read(config(rounds=30, seeds=[1, 2]))
    assert (found.trainings_a_round, found.trainings) == (2, 120)
    # One epoch with z = 4 spends μ² = 1/16
    assert found.mu == pytest.approx((120 / 16) ** 0.5)
    masked = read(config(rounds=30, masked=True))
    assert (masked.trainings_a_round, masked.trainings) == (1, 30)


def test_the_method_that_spends_most_counts() -> None:
    table = config(noise=False)
    quiet = {**METHOD, "training": {**NOISE, "epochs": 4}}
    local = {**METHOD, "privacy": {"local": True, "clip": 1.0, "noise_multiplier": 0.5}}
    bare = METHOD
    assert read({**table, "methods": [quiet]}).mu_squared == pytest.approx(4 / 16)
    assert read({**table, "methods": [quiet, local]}).mu_squared == pytest.approx(4)
    assert read({**table, "methods": [quiet, bare]}).mu is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plugins": ["evil"]}, "plugins"),
        ({"plugin_dir": "/tmp"}, "plugin_dir"),
        ({"hostile": [{"clients": 1, "attack": "scaling"}]}, "hostile"),
        ({"initial_model": "/etc/passwd"}, "initial_model"),
        ({"methods": [{**METHOD, "like": "Recommended"}]}, "like"),
        ({"methods": [{"name": "Recommended"}]}, "write each out"),
        ({"methods": ["Recommended"]}, "cannot be read|write each out"),
        ({"methods": []}, "methods is missing"),
        ({"methods": [{**METHOD, "secure_aggregation": {}}, METHOD]}, "one method"),
        ({"methods": [{**METHOD, "secure_aggregation": {}, "rule": "median"}]}, "rule"),
        ({"training": {"sample_noise": 0}}, "cannot be read"),
        ({"training": 3}, "cannot be read"),
        ({"rounds": "many"}, "cannot be read"),
    ],
)
def test_what_cannot_be_judged_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ApprovalError, match=said):
        read(config(**changes))


def test_without_noise_a_reason_is_needed() -> None:
    bare = read(config(noise=False))
    with pytest.raises(ApprovalError, match="no noise"):
        propose(bare, **ABOUT)
    found = propose(bare, **{**ABOUT, "without_noise": "synthetic rows"})
    words = "\n".join(in_words(found, bare, None))
    assert "NO NOISE" in words
    assert "synthetic rows" in words
    assert "Earlier runs: UNKNOWN" in words


def test_strangers_and_missing_reasons_are_refused() -> None:
    experiment = read(config())
    for changes, said in (({"site": "west"}, "not a member"), ({"reason": ""}, "--reason")):
        with pytest.raises(ApprovalError, match=said):
            propose(experiment, **{**ABOUT, **changes})


def test_the_words_say_all_runs_together() -> None:
    experiment = read(config(rounds=2))  # 4 trainings of μ² = 1/16: μ = 0.5
    approval = propose(experiment, **{**ABOUT, "evaluations": 20})
    earlier = {
        "train": {"requests": 12, "without_noise": 0, "mu": 1.2},
        "evaluate": {"requests": 3, "without_noise": 0, "mu": 0.5},
    }
    words = "\n".join(in_words(approval, experiment, earlier))
    assert "trains at most 4 models" in words
    assert "μ = 0.5" in words
    assert "μ = 1.71" in words  # √(0.5² + 1² + 1.2² + 0.5²)
    assert "dataset_size" in words
    assert "tests at most 20 models" in words
    bare = {"train": {"requests": 12, "without_noise": 3, "mu": 1.2}}
    assert "Of them, 3 had NO NOISE" in "\n".join(in_words(approval, experiment, bare))
    masked = read(config(masked=True))
    words = "\n".join(in_words(propose(masked, **ABOUT), masked, {}))
    assert "only inside a sum over all 3 members" in words


@pytest.mark.parametrize(("mu", "most"), [(0.0, 0.5), (0.5, 0.625), (1.0, 0.75), (9.0, 1.0)])
def test_telling_apart(mu: float, most: float) -> None:
    assert telling_apart(mu) == pytest.approx(most, abs=1e-6)


def test_an_approval_is_read_as_it_was_written() -> None:
    approval = propose(read(config()), **{**ABOUT, "reason": 'a "quoted"\nreason \u0007 é'})
    assert Approval.read(approval.text().encode()) == approval
    for bad in (b"", b"id = 1", b"\xff", approval.text().encode() + b"more = 1\n"):
        with pytest.raises(UntrustedError):
            Approval.read(bad)
    text = approval.text().replace("mu = ", "# mu = ")
    with pytest.raises(UntrustedError, match="either mu"):
        Approval.read(text.encode())


def test_agree_imports_nothing_and_runs_no_code(keys: Keys, tmp_path: Path) -> None:
    """B3: an experiment that names code is refused; the command imports neither library nor plugin."""
    marker = tmp_path / "PWNED"
    for name in ("evil", "clientwise", "torch", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(marker)!r}, 'w')")
    (tmp_path / "lock").write_text("a==1 --hash=sha256:00")
    arguments = ["agree", "experiment.toml", "--site", "north", "--lock", "lock", "--reason", "r"]
    code = (
        "import sys; from clientwise_consortium.command import main; "
        f"status = main({arguments!r}); "
        "print(*sorted({'clientwise', 'torch', 'flwr', 'numpy', 'evil'} & set(sys.modules))); "
        "sys.exit(status)"
    )

    def agree(**changes: Any) -> subprocess.CompletedProcess[str]:
        (tmp_path / "experiment.toml").write_text(tomli_w.dumps(config(**changes)))
        command = [sys.executable, "-c", code]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    done = agree()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == ""  # nothing of these was imported
    assert Approval.read((tmp_path / "approval.toml").read_bytes()).site == "north"
    (tmp_path / "approval.toml").unlink()
    for changes in ({"plugins": ["evil"]}, {"plugins": ["evil"], "plugin_dir": str(tmp_path)}):
        done = agree(**changes)
        assert done.returncode == 1
        assert "plugin" in done.stderr
        assert not (tmp_path / "approval.toml").exists()
    assert not marker.exists()


def test_what_others_wrote_is_no_command_for_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that clears the screen and prints something else is refused, and its words are not printed."""
    table = config(name="trial\x1b[2J\x1b[HYour site trains 0 models\u202e")
    (tmp_path / "e.toml").write_text(tomli_w.dumps(table))
    (tmp_path / "lock").write_text("a==1")
    arguments = ["agree", str(tmp_path / "e.toml"), "--site", "north", "--reason", "r"]
    arguments += ["--lock", str(tmp_path / "lock"), "--out", str(tmp_path / "a.toml")]
    assert main(arguments) == 1
    printed = "".join(capsys.readouterr())
    assert "\x1b" not in printed
    assert "\u202e" not in printed


def test_the_summary_is_the_ledgers(tmp_path: Path) -> None:
    from clientwise_consortium.approval import read_summary

    path = tmp_path / "summary.json"
    released = {"train": {"requests": 1, "without_noise": 1, "mu": 0.0}}
    path.write_text(json.dumps({"released": released, "heads": []}))
    assert read_summary(path) == released
    assert read_summary(None) is None
