"""What code asks of a round is a field: other words for the same thing change nothing."""

from __future__ import annotations

from typing import get_args

from clientwise.core import clock
from clientwise.core.reasons import SENTENCES, Cause


def test_every_cause_has_a_sentence() -> None:
    assert SENTENCES.keys() == {*get_args(Cause)}


def test_a_client_whose_words_are_ours_is_refused_like_any_other() -> None:
    from clientwise.core.types import Refusal

    assert Refusal(1, clock.LATE).kind == "absent"
    assert Refusal(1, str(clock.LATE)).kind is None
