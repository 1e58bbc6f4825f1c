"""What code asks of a round is a field: other words for the same thing change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

import clientwise as cw
from clientwise.core import clock, guard, reasons
from clientwise.core.reasons import SENTENCES, Cause, Reason
from clientwise.errors import RunError
from reported import headline_of

CONFIG: dict[str, Any] = {
    "name": "words",
    "rounds": 5,
    "device": "cpu",
    "data": "digits",
    "model": "linear",
    "partition": {"name": "iid", "clients": 4},
    "server_set": {"fraction": 0.2},
    "attributes": {"member": [0.0] * 4},
    "hostile": [{"clients": [0], "attack": "broken"}],
    "devices": {"down": 2e4, "speed": 0.01, "dropout": 0.3},
    "methods": [
        "FedAvg",
        {"name": "in time", "pace": {"deadline": 20_000}},
        {"name": "bounded", "bounds": {"cap": 0.5}},
        {"name": "diverged", "training": {"learning_rate": 1e30}},
        {"name": "nobody", "criteria": [{"name": "attribute", "of": "member", "as": "member"}]},
    ],
}
LIKELY = "Most likely training diverges"


def test_every_cause_has_a_sentence() -> None:
    assert SENTENCES.keys() == {*get_args(Cause)}


def facts(run: cw.Run) -> list[Any]:
    """What code asks of a run, and what it concludes; no sentence."""
    found: list[Any] = []
    for method in run.methods:
        arrived = run.arrived(method)
        usual = arrived.usual and (arrived.usual.kind, arrived.usual.refused, arrived.usual.honest)
        counts = sorted(count for _, count in run.refusal_counts(method))
        found.append((method, run.kept(method), arrived[:3], usual, counts))
    lines = headline_of(run)
    found += [sum(part in line for line in lines) for part in (LIKELY, "did not change", "bounds")]
    return found


def test_other_words_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = cw.Run(cw.run(CONFIG, tmp_path / "before", progress=False))
    wanted = facts(before)
    causes = {kept.cause for method in before.methods for kept in before.kept(method)}
    assert causes == {"no update", "bounds", "zero criteria"}
    assert wanted[-3:] == [1, 1, 1], headline_of(before)
    changed = {cause: f"{number}: {{}}" for number, cause in enumerate(SENTENCES)}
    monkeypatch.setattr(reasons, "SENTENCES", changed)
    for module, name in (
        (clock, "LATE"),
        (clock, "DROPPED_OUT"),
        (guard, "NOT_FINITE"),
        (guard, "TOO_FAR"),
    ):
        reworded = Reason(f"in other words {name}", getattr(module, name).kind)
        monkeypatch.setattr(module, name, reworded)
    monkeypatch.setattr("clientwise.engine.timed.LATE", clock.LATE)
    monkeypatch.setattr("clientwise.engine.timed.DROPPED_OUT", clock.DROPPED_OUT)
    after = cw.Run(cw.run(CONFIG, tmp_path / "after", progress=False))
    assert facts(after) == wanted
    assert {reason for reason, _ in after.refusal_counts("in time")} == {
        "in other words LATE",
        "in other words DROPPED_OUT",
    }
    assert facts(before) == wanted, "a folder that was written before"


def test_a_client_whose_words_are_ours_is_refused_like_any_other() -> None:
    from clientwise.core.types import Refusal

    assert Refusal(1, clock.LATE).kind == "absent"
    assert Refusal(1, str(clock.LATE)).kind is None


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"methods": [{"name": "FedAvg", "bounds": {"cap": 0.5}}]}, "a new bounds.note"),
        ({"methods": [{"name": "FedAvg", "server_step": "adam"}]}, "another name"),
        ({"training": {"epochs": 2}}, "its own config"),
    ],
)
def test_hints_on_another_config_follow_from_its_keys(
    changes: dict[str, Any], hint: str, tmp_path: Path
) -> None:
    config = CONFIG | {"methods": ["FedAvg"], "rounds": 1}
    cw.run(config, tmp_path / "run", progress=False)
    with pytest.raises(RunError) as plain:
        cw.run(config | changes, tmp_path / "run", resume=True)
    assert hint in str(plain.value)
