"""The stated cause of a weight is the real one: ten clients with a known cause, in one run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch
from sklearn.datasets import load_digits

import clientwise as cw
from clientwise.attacks.attack import Knowledge
from clientwise.record.run import RunFolder
from clientwise.report.audit import audit, why
from clientwise.report.explanation import Explanation, Round, explain
from clientwise.report.items import Table
from reported import is_harmful

SEED = 3
ROUNDS = 10
TURNS = 4  # the round in which the sleeper turns hostile
CAP = 0.12
CLEAN = ("clean 1", "clean 2", "clean 3")
HONEST = (*CLEAN, "copied", "rare class", "tiny")
ATTACKS: dict[str, Any] = {
    "mislabelled": {"attack": "wrong_labels"},
    "inverted": {"attack": "sign_flip"},
    "scaled": {"attack": {"name": "scaling", "factor": 10.0}},
    "copy": {"attack": "copies_first"},
    "sleeper": {"attack": {"name": "sign_flip", "strength": 2.0}, "from_round": TURNS},
    "broken": {"attack": "broken"},
}
SIZES = {"tiny": 10, "rare class": 50, "clean 3": 180}
RARE = 9  # a class that one client alone has


class CopiesFirst(cw.parts.Attack):
    """Sends the update of the first honest client, which is "copied"."""

    def forge(self, known: Knowledge) -> torch.Tensor:
        return known.global_model + known.honest.updates[0]


def clients() -> tuple[dict[str, Any], Any]:
    """Digits for every client, and 500 held-out ones, which have all classes."""
    x, y = load_digits(return_X_y=True)
    x = x / 16
    order = numpy.random.default_rng(1).permutation(len(y))
    held_out, rest = order[:500], order[500:]
    common = iter(rest[y[rest] != RARE])
    found = {}
    for name in ("copied", *CLEAN, *ATTACKS, "rare class", "tiny"):
        rows = [next(common) for _ in range(SIZES.get(name, 90))]
        if name == "rare class":
            rows += [*rest[y[rest] == RARE][:40]]
        found[name] = (x[rows], y[rows])
    return found, (x[held_out], y[held_out])


@pytest.fixture(scope="module")
def run() -> RunFolder:
    own, held_out = clients()
    hostile = [{"clients": [name], **attack} for name, attack in ATTACKS.items()]
    sees_all = cw.parts.needs("whole_cohort")
    cw.parts.ATTACKS.register("copies_first", sees_all)(CopiesFirst)
    torch.manual_seed(3)
    capped = {"name": "capped", "criteria": ["dataset_size"], "bounds": {"cap": CAP}}
    found = cw.fit(
        torch.nn.Linear(64, 10),
        own,
        held_out=held_out,
        rounds=ROUNDS,
        methods=["Recommended", capped],
        hostile=hostile,
        seeds=[SEED],
        epochs=4,
        batch_size=100,  # every client takes as many steps
        learning_rate=0.3,
    )
    return RunFolder(found.folder)


def of(run: RunFolder, client: str, round_num: int, method: str = "Recommended") -> Explanation:
    return {one.called: one for one in explain(Round(run, method, SEED, round_num))}[client]


def recorded(run: RunFolder, frame: str, round_num: int) -> Any:
    return run.frame(frame).query("method == 'Recommended' and round == @round_num")


def every(run: RunFolder) -> Iterator[Explanation]:
    for method in run.methods:
        for round_num in range(1, ROUNDS + 1):
            yield from explain(Round(run, method, SEED, round_num))


@pytest.mark.parametrize("client", ["mislabelled", "inverted"])
def test_a_client_with_harmful_updates(run: RunFolder, client: str) -> None:
    rounds = [of(run, client, number) for number in range(1, ROUNDS + 1)]
    worst = max((one for one in rounds if is_harmful(one)), key=lambda one: one.evidence.z)
    assert (worst.cause, worst.is_hostile) == ("evidence", True)
    evidence = worst.evidence
    assert evidence is not None
    assert evidence.harm is not None
    assert evidence.error is not None
    assert evidence.change is not None
    assert evidence.harm > 2 * evidence.error  # the same as the record holds
    row = recorded(run, "weights", worst.round_num).query("name == @client").iloc[0]
    assert (evidence.harm, evidence.error, evidence.z) == (row.harm, row.harm_error, row.z)
    (change,) = recorded(run, "rounds", worst.round_num)["held_out_change"]
    assert evidence.change == change
    assert evidence.harm > 0.1 * abs(evidence.change)  # the margin
    assert " higher than with the mean of all" in worst.by_evidence()
    assert "The client is hostile" in worst.known_facts()


def test_evidence_of_earlier_rounds_is_told_as_past(run: RunFolder) -> None:
    last = of(run, "inverted", ROUNDS)
    assert last.cause in ("past evidence", "clipping")
    assert (last.is_significant, is_harmful(last)) == (False, False)
    assert last.evidence is not None
    assert last.evidence.since is not None
    assert last.evidence.last is not None
    assert last.evidence.after < 0.5 * last.prior
    text = last.by_evidence()
    assert (
        f"(since round {last.evidence.since}). It was last significant in round {last.evidence.last}:"
        in text
    )
    assert "the held-out loss would have been" in text
    assert f"In round {ROUNDS}, it is not significant." in text
    assert "would be" not in text


def test_a_client_whose_updates_are_ten_times_too_long(run: RunFolder) -> None:
    found = of(run, "scaled", ROUNDS)
    assert (found.cause, found.is_lowered, found.is_hostile) == ("clipping", False, True)
    assert found.clipped is not None
    assert found.clipped < 0.5
    assert found.share == pytest.approx(found.weight * found.clipped)
    assert f"shortens the update to {found.clipped:.1%} of its length" in found.by_rule()


def test_a_copy_and_the_copied_client_share_a_weight_and_neither_is_said_to_harm(
    run: RunFolder,
) -> None:
    for name in ("copy", "copied"):
        found = of(run, name, ROUNDS)
        assert (found.copies, found.cause, found.is_lowered) == (2, "copies", False)
        assert found.by_copies() == (
            "Another client sent almost the same update: together they count as one."
        )
    others = [
        one
        for one in explain(Round(run, "Recommended", SEED, ROUNDS))
        if one.name not in ("copy", "copied")
    ]
    assert {one.copies for one in others} == {1}


def test_a_sleeper_is_honest_until_it_turns_against_its_past(run: RunFolder) -> None:
    before = of(run, "sleeper", TURNS - 1)
    assert (before.is_lowered, before.is_significant) == (False, False)
    assert not of(run, "sleeper", TURNS).is_significant, "one turn is no evidence"
    after = of(run, "sleeper", TURNS + 4)
    assert after.evidence is not None
    assert (after.cause, after.evidence.witness) == ("evidence", "past")
    assert after.evidence.since in range(TURNS + 1, TURNS + 5)
    assert not is_harmful(after)
    assert "its update points against its own first updates" in after.by_evidence()
    assert "with its update" not in after.by_evidence()


def test_a_client_with_a_rare_class_is_not_said_to_harm(run: RunFolder) -> None:
    found = of(run, "rare class", ROUNDS)
    assert (found.is_lowered, found.is_significant) == (False, False)
    assert found.cause in ("other clients", "clipping")
    assert found.weight is not None
    assert found.weight >= found.prior


def test_a_tiny_client_has_its_small_weight_by_the_criterion(run: RunFolder) -> None:
    found = of(run, "tiny", ROUNDS)
    (size,) = found.criteria
    assert (found.cause, size.name, size.is_constant) == ("criteria", "dataset_size", False)
    assert size.value < size.mean / 5
    assert found.prior < found.equal_share / 5
    assert f"dataset_size {size.value:g} (mean {size.mean:.4g})" in found.by_criteria()
    assert not found.is_lowered


def test_clean_clients_among_clean_ones_are_never_said_to_harm(run: RunFolder) -> None:
    for one in every(run):
        if one.name in HONEST:
            assert not is_harmful(one), one
            assert not one.is_lowered, one
            assert "with its update" not in one.by_evidence()
    last = of(run, "clean 1", ROUNDS)
    assert last.cause in ("other clients", "nothing")


def test_an_update_of_nan_is_refused(run: RunFolder) -> None:
    found = of(run, "broken", ROUNDS)
    assert (found.cause, found.refusal, found.share) == ("refused", "model has NaN or Inf", 0.0)
    assert found.evidence is None
    assert why(run, "broken", "Recommended", SEED).splitlines() == [
        f"Recommended, seed {SEED}: broken has no part in round {ROUNDS}'s model: its update was refused "
        "(model has NaN or Inf).",
        f"  The client is hostile (broken). Refused in {ROUNDS} of {ROUNDS} rounds: model has NaN or Inf.",
    ]


def test_a_weight_is_lowered_by_the_cap(run: RunFolder) -> None:
    found = of(run, "clean 3", ROUNDS, "capped")
    assert (found.cause, found.limit, found.unbounded) == ("bounds", "cap", found.prior)
    assert found.share == pytest.approx(CAP)
    assert found.by_bounds() == f"The cap of 12% lowers the weight from {found.prior:.1%}."


def test_every_sentence_agrees_with_its_fields(run: RunFolder) -> None:
    for one in every(run):
        if one.refusal is not None:
            continue
        assert f"has {one.share:.1%} of round {one.round_num}'s model" in one.answer()
        assert one.answer().endswith(f"an equal share is {1 / 11:.1%}.")
        text = one.by_evidence()
        assert ("with its update, the held-out loss would be" in text) == is_harmful(one)
        assert ("lowers the weight" in text) == one.is_lowered
        assert not ("raises this weight" in text and one.evidence.after < one.prior)
        assert not is_harmful(one) or f"{abs(one.evidence.change):.2g}" in text
        assert ("The client is honest." in one.known_facts()) == (
            one.is_lowered and not one.is_hostile
        )


def test_why_has_the_answer_first_and_at_most_six_lines(run: RunFolder) -> None:
    for client in [*ATTACKS, *HONEST]:
        for method in run.methods:
            one = of(run, client, ROUNDS, method)
            text = why(run, client, method, SEED)
            lines = text.splitlines()
            assert lines[0] == f"{method}, seed {SEED}: {one.answer()}"
            assert len(lines) <= 6
            assert text.startswith(lines[0])
            assert not re.search("prior|z =|influence|threshold|slack", text)
            for said in (one.by_criteria(), one.by_evidence(), *one.moves(), one.known_facts()):
                assert said in text


def test_the_page_marks_hostile_clients_and_gives_the_reason_in_a_few_words(run: RunFolder) -> None:
    items = audit(Round(run, "Recommended", SEED, ROUNDS))
    table = next(item for item in items if isinstance(item, Table))
    names = [client.partition(" ")[2] for client in table.frame["client"]]
    reasons = dict(zip(names, table.frame["reason"], strict=True))
    assert reasons.keys() == {*ATTACKS, *HONEST}
    for name, text in reasons.items():
        assert ("hostile" in text) == (name in ATTACKS)
        assert len(text.split(";")[0].split()) <= 7
    inverted = of(run, "inverted", ROUNDS).evidence
    assert inverted is not None
    assert reasons["inverted"] == f"harmful until round {inverted.last}; hostile (sign_flip)"
    assert reasons["copied"] == "copy of 1 other client"
    assert reasons["broken"] == "refused: model has NaN or Inf; hostile (broken)"
    assert reasons["tiny"].startswith("dataset_size ")
    assert "points against its own past" in reasons["sleeper"]


def test_an_honest_client_that_loses_weight_is_shown_as_honest(run: RunFolder) -> None:
    lowered = replace(of(run, "inverted", ROUNDS), attack=None)
    assert lowered.simulated_as == "honest"
    assert lowered.known_facts() == "The client is honest."
    assert replace(lowered, is_simulated=False).known_facts() == ""
    assert of(run, "clean 1", ROUNDS).simulated_as == ""
