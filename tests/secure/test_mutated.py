"""Mutated messages of secure aggregation: none ends a run, and nobody is exposed."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import numpy
import pytest

pytest.importorskip("Crypto", reason="needs clientwise[deployment]")

from rounds import Parties, is_noise, some_terms

from clientwise.secrecy.masks.terms import VoidError
from fire_share import EVERY

SHARE = 0.12  # of the messages of a round that are mutated


def mutated(value: Any, draw: Any) -> Any:
    """A message with one change somewhere in it."""
    strange = [None, 0, -1, 2**70, 1e400, "", "zz", [], {}, True, "00" * 32, "0" * 10_000]
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        kind = draw.random()
        if kind < 0.1:
            return {name: one for name, one in value.items() if name != key}
        if kind < 0.2:
            return value | {str(draw.choice([key * 2, "7", "-1", "x", "٣"])): value[key]}
        return value | {key: mutated(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.8:
        changed = list(value)
        changed[draw.randrange(len(value))] = mutated(draw.choice(value), draw)
        return changed
    if isinstance(value, str) and value and draw.random() < 0.6:
        place = draw.randrange(len(value))
        return value[:place] + draw.choice("0123456789abcdefg") + value[place + 1 :]
    return draw.choice(strange)


@pytest.mark.fire
@pytest.mark.timeout(1800)
def test_5000_mutated_messages_end_no_run_and_unmask_nobody() -> None:
    fire(5_000 // EVERY)


def test_100_mutated_messages_end_no_run_and_unmask_nobody() -> None:
    fire(100)


def fire(wanted: int) -> None:
    """Rounds in which replies, requests or both are mutated.

    Every round ends in the exact sum of the clients it names, or is void with a reason. Where a client
    was told something else than the others, it may also end in noise.
    """
    draw = random.Random(1)
    done = 0
    ends = {"sum": 0, "noise": 0, "void": 0}
    while done < wanted:
        count = Changes(draw)
        ends[one_round(count)] += 1
        done += count.made
    assert ends["sum"] > 0
    assert ends["void"] > 0


class Changes:
    """Mutates messages of some steps, in one or both directions."""

    def __init__(self, draw: random.Random) -> None:
        self.made = 0
        self.parties: Parties | None = None
        self.revealed: list[tuple[str, int, Any, list[int]]] = []
        self.told = False  # whether a client was told something else than the others
        self._draw = draw
        self._sides = draw.choice([("replies",), ("requests",), ("replies", "requests")])
        self._share = draw.choice([SHARE / 4, SHARE, 4 * SHARE])

    def requests(self, step: str, client: int, message: Any) -> Any:
        changed = self._changed("requests", message)
        self.told |= changed is not message
        return changed

    def replies(self, step: str, client: int, message: Any) -> Any:
        if step.startswith("unmask"):  # what the server learns, mutated or not
            assert self.parties
            state = self.parties.clients[client].state
            # After the last step, the state is deleted; the client signed what the server has.
            survivors = state.get("survivors", self.parties.server.survivors)
            self.revealed.append((step.partition(" ")[2], client, message, survivors))
        return self._changed("replies", message)

    def _changed(self, side: str, message: Any) -> Any:
        if side not in self._sides or self._draw.random() > self._share:
            return message
        self.made += 1
        return mutated(message, self._draw)


def one_round(changes: Changes) -> str:
    parties = changes.parties = Parties(some_terms(), changes.replies, changes.requests)
    end = "sum"
    try:
        for purpose, (present, total) in parties.run().items():
            assert len(present) >= parties.terms.threshold
            if not numpy.array_equal(total, parties.plain_sum(purpose, present)):
                assert changes.told
                assert is_noise(total)
                end = "noise"
        return end
    except VoidError:
        return "void"
    finally:
        check_nobody_is_exposed(parties, changes)


def check_nobody_is_exposed(parties: Parties, changes: Changes) -> None:
    """Of no client, the server learns the self-mask and the mask key of the same sum."""
    held: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    known = set()
    for purpose, holder, message, survivors in changes.revealed:
        known.add((purpose, str(holder)))
        for owner in message["shares"]:
            kind = "self" if int(owner) in survivors else "mask"
            held[purpose, owner, kind].add(holder)
    for purpose in parties.terms.purposes:
        for owner in map(str, parties.clients):
            enough = parties.terms.threshold
            self_mask = (purpose, owner) in known or len(held[purpose, owner, "self"]) >= enough
            assert not (self_mask and len(held[purpose, owner, "mask"]) >= enough)
