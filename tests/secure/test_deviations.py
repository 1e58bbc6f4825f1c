"""A server that deviates: every message and field, for one client and for several, alone and together.

Whatever it sends, in whatever order, clients refuse, or it reads noise, or the sum of at least t clients.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

pytest.importorskip("Crypto", reason="needs clientwise[deployment]")

from attacker import SUMS, Attack, some_terms
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

import clientwise.secrecy.masks.client
from clientwise.secrecy.masks import statements
from clientwise.secrecy.masks.client import SecureClient
from clientwise.secrecy.masks.primitives import public_bytes
from clientwise.secrecy.masks.statements import mask_key
from clientwise.secrecy.masks.terms import Message, Sum, Terms
from fire_share import EVERY

STEPS = some_terms().steps
VICTIMS = ((0,), (4,), (0, 1), (1, 2, 3, 4))
# n, t and the clients that collude with the server: 2t > n + c
SETTINGS = ((5, 4, ()), (5, 3, ()), (5, 4, (2,)), (6, 5, (2, 3)))
Change = Callable[[Attack, int, Message], Message | None]


@cache
def identities() -> dict[int, Ed25519PrivateKey]:
    return {client: Ed25519PrivateKey.generate() for client in range(6)}


@cache
def earlier(cohort: int, threshold: int) -> Attack:
    """A round of the same clients before, to which the server gave the same name.

    Of this round, the server is given all mask keys, as if everybody had dropped out.
    """
    keys = {client: identities()[client] for client in range(cohort)}
    return Attack(some_terms(cohort, threshold), keys=keys).run()


def before(attack: Attack) -> Attack:
    return earlier(attack.terms.cohort, attack.terms.threshold)


# Rosters ------------------------------------------------------------------------------------------


def with_roster(change: Callable[[Attack, int, Message], Message]) -> Change:
    return lambda attack, client, sent: {"roster": change(attack, client, sent["roster"])}


def others(client: int, table: Iterable[str]) -> list[str]:
    return [name for name in table if name != str(client)]


def less(attack: Attack, client: int, roster: Message) -> Message:
    gone = others(client, roster)[-1]
    return {name: one for name, one in roster.items() if name != gone}


def one_replayed(attack: Attack, client: int, roster: Message) -> Message:
    name = others(client, roster)[0]
    return roster | {name: before(attack).answers["keys"][int(name)]}


def all_replayed(attack: Attack, client: int, roster: Message) -> Message:
    old = before(attack).answers["keys"]
    return {str(one): roster[str(one)] if one == client else old[one] for one in old}


def own_replayed(attack: Attack, client: int, roster: Message) -> Message:
    return roster | {str(client): before(attack).answers["keys"][client]}


def names_swapped(attack: Attack, client: int, roster: Message) -> Message:
    one, two = others(client, roster)[:2]
    return roster | {one: roster[two], two: roster[one]}


def sums_swapped(attack: Attack, client: int, roster: Message) -> Message:
    name = others(client, roster)[0]
    keys = roster[name]["keys"]
    swapped = keys | {"criteria": keys["vector"], "vector": keys["criteria"]}
    return roster | {name: roster[name] | {"keys": swapped}}


def servers_key(attack: Attack, client: int, roster: Message) -> Message:
    name = others(client, roster)[0]
    key = X25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    entry = roster[name]
    return roster | {name: entry | {"keys": entry["keys"] | {"vector": key}}}


def second_keys(attack: Attack, client: int, roster: Message) -> Message:
    """A client that colludes signs other keys for some of the others."""
    for colluding in attack.colluding - {client}:
        other = SecureClient(attack.terms, colluding, attack.keys[colluding], attack.identities)
        roster = roster | {str(colluding): other.keys()}
        for purpose, secrets in other.state["secrets"].items():
            key = mask_key(attack.terms, colluding, purpose, bytes.fromhex(secrets["mask"]))
            attack.leaked[public_bytes(key)] = key
    return roster


# Shares and broadcasts ----------------------------------------------------------------------------


def fewer_packets(attack: Attack, client: int, sent: Message) -> Message:
    gone = others(client, sent["packets"])[-1]
    left = {name: one for name, one in sent["packets"].items() if name != gone}
    return sent | {"packets": left}


def packets_swapped(attack: Attack, client: int, sent: Message) -> Message:
    packets = sent["packets"]
    one, two = others(client, packets)[:2]
    return sent | {"packets": packets | {one: packets[two], two: packets[one]}}


def packets_of_another(attack: Attack, client: int, sent: Message) -> Message:
    other = (client + 1) % attack.terms.cohort
    return sent | attack.packets_for(other)


def packets_replayed(attack: Attack, client: int, sent: Message) -> Message:
    return sent | before(attack).packets_for(client)


def garbage_packets(attack: Attack, client: int, sent: Message) -> Message:
    return sent | {"packets": dict.fromkeys(sent["packets"], "ab" * 80)}


def no_commitments(attack: Attack, client: int, sent: Message) -> Message:
    return sent | {"commitments": {}}


def told(score: Any) -> Change:
    return lambda attack, client, sent: sent | {"broadcast": score}


# Lists and signatures -----------------------------------------------------------------------------


def without(*gone: int) -> Change:
    def change(attack: Attack, client: int, sent: Message) -> Message:
        return {"survivors": [one for one in sent["survivors"] if one not in gone]}

    return change


def without_itself(attack: Attack, client: int, sent: Message) -> Message:
    return {"survivors": [one for one in sent["survivors"] if one != client]}


def alone(attack: Attack, client: int, sent: Message) -> Message:
    return {"survivors": [client]}


def with_a_stranger(attack: Attack, client: int, sent: Message) -> Message:
    return {"survivors": [*sent["survivors"], 9]}


def fewer_signatures(attack: Attack, client: int, sent: Message) -> Message:
    return {"signatures": dict(list(sent["signatures"].items())[:2])}


def signatures_of(step: str) -> Change:
    def change(attack: Attack, client: int, sent: Message) -> Message:
        found = attack.answers[step].items()
        listed = attack.clients[client].state["survivors"]
        return {
            "signatures": {str(one): reply["signature"] for one, reply in found if one in listed}
        }

    return change


def signatures_replayed(attack: Attack, client: int, sent: Message) -> Message:
    found = before(attack).answers["confirm criteria"].items()
    return {"signatures": {str(one): reply["signature"] for one, reply in found}}


def signatures_repeated(attack: Attack, client: int, sent: Message) -> Message:
    first = next(iter(sent["signatures"].values()), "ab" * 64)
    return {"signatures": dict.fromkeys(sent["signatures"], first)}


def not_asked(attack: Attack, client: int, sent: Message) -> None:
    return None


DEVIATIONS: dict[str, dict[str, Change]] = {
    "shares": {
        one.__name__: with_roster(one)
        for one in (
            less,
            one_replayed,
            all_replayed,
            own_replayed,
            names_swapped,
            sums_swapped,
            servers_key,
            second_keys,
        )
    },
    "mask criteria": {
        one.__name__: one
        for one in (
            fewer_packets,
            packets_swapped,
            packets_of_another,
            packets_replayed,
            garbage_packets,
            no_commitments,
        )
    },
    "mask vector": {"with packets": lambda attack, client, sent: sent | attack.packets_for(client)},
}
for purpose in ("criteria", "vector"):
    mask, confirm, unmask = (f"{kind} {purpose}" for kind in ("mask", "confirm", "unmask"))
    DEVIATIONS.setdefault(mask, {})["another broadcast"] = told({"score": 3})
    DEVIATIONS[mask]["the others are told zero"] = told({"score": 0})
    DEVIATIONS[mask]["no broadcast"] = told(None)
    DEVIATIONS[confirm] = {
        "without 2": without(2),
        "without 2 and 3": without(2, 3),
        "with a stranger": with_a_stranger,
        "without itself": without_itself,
        "alone": alone,
    }
    DEVIATIONS[unmask] = {
        "fewer signatures": fewer_signatures,
        "of another sum": signatures_of(
            "confirm criteria" if purpose == "vector" else "confirm vector"
        ),
        "replayed": signatures_replayed,
        "repeated": signatures_repeated,
        "unchecked": signatures_of(confirm),
    }
for step in STEPS:
    DEVIATIONS.setdefault(step, {})["not asked"] = not_asked
ALL = [(step, name) for step, table in DEVIATIONS.items() for name in table]


def attacked(
    setting: tuple[int, int, tuple[int, ...]],
    deviations: Iterable[tuple[str, str, tuple[int, ...]]],
) -> Attack:
    """A round with these deviations, each for its victims; nothing may be readable that should not be."""
    cohort, threshold, colluding = setting
    planned = list(deviations)

    def tell(step: str, client: int, message: Message) -> Message | None:
        found: Message | None = message
        for now, name, victims in planned:
            if found is not None and now == step and client in victims:
                with suppress(IndexError, KeyError, ValueError):  # nothing left to change
                    found = DEVIATIONS[step][name](attack, client, found)
        return found

    keys = {client: identities()[client] for client in range(cohort)}
    attack = Attack(some_terms(cohort, threshold), tell, frozenset(colluding), keys=keys)
    for purpose in attack.terms.purposes:
        attack.leaked |= before(attack).mask_keys(purpose, every=True)
    return attack.run()


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_honest_server_reads_both_sums(setting: tuple[int, int, tuple[int, ...]]) -> None:
    attack = attacked(setting, [])
    assert attack.refusals == []
    assert attack.check() == 2


@pytest.mark.parametrize(("step", "name"), ALL)
def test_one_deviation(step: str, name: str) -> None:
    for victims in (VICTIMS[0], VICTIMS[-1]):
        attacked(SETTINGS[0], [(step, name, victims)]).check()
    attacked(SETTINGS[-1], [(step, name, VICTIMS[0])]).check()


def test_several_deviations_at_once() -> None:
    combined(40)


@pytest.mark.fire
@pytest.mark.timeout(1800)
def test_a_thousand_deviations_at_once() -> None:
    combined(1_000 // EVERY)


def combined(rounds: int) -> None:
    draw = random.Random(1)
    for _ in range(rounds):
        setting = draw.choice(SETTINGS)
        planned = []
        for step, name in draw.sample(ALL, draw.randint(2, 4)):
            victims = [client for client in range(setting[0]) if draw.random() < 0.5]
            planned.append((step, name, tuple(victims)))
        attack = attacked(setting, planned)
        try:
            attack.check()
        except AssertionError as found:
            raise AssertionError(f"{setting} {planned}") from found


@pytest.mark.parametrize(
    "change",
    [
        {"run": "run 2, seed 1, round 1"},
        {"agreed": "another model"},
        {"cohort": 6},
        {"threshold": 3},
        {"sums": (Sum("criteria", 12, 64), Sum("vector", 12, 64))},
        {"sums": SUMS[1:]},
    ],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.parametrize("victims", VICTIMS)
def test_clients_with_other_terms(change: dict[str, Any], victims: tuple[int, ...]) -> None:
    other: Terms = replace(some_terms(), **change)
    attack = Attack(some_terms(), own_terms=dict.fromkeys(victims, other)).run()
    assert attack.check() == 0
    assert any("did not sign these keys" in one or "other keys" in one for one in attack.refusals)


# Order, repetition and restored states --------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_not_answered_before_its_turn_or_twice(step: str) -> None:
    """Before each step, all other steps are tried with the messages that honest clients get for them."""
    honest: dict[str, Message] = {}

    def note(now: str, client: int, message: Message) -> Message:
        honest.setdefault(now, message)
        return message

    Attack(some_terms(), note).run()

    def tell(now: str, client: int, message: Message) -> Message:
        if (now, client) == (step, 0):
            for other in STEPS:
                if other != step:
                    assert attack.ask_plainly(other, 0, honest[other]) is None, other
        return message

    attack = Attack(some_terms(), tell)
    assert attack.run().check() == 2
    assert len(attack.refusals) == len(STEPS) - 1


@pytest.mark.parametrize(("step", "name"), ALL)
def test_a_state_that_was_restored_from_before_a_step(step: str, name: str) -> None:
    """A client answers a step, is restored, and answers again with something else.

    It then counts as a client that colludes: 2t > n + 1. A node's ledger prevents even that.
    """
    victim = 0

    def tell(now: str, client: int, message: Message) -> Message | None:
        if (now, client) != (step, victim):
            return message
        state = copy.deepcopy(attack.clients[victim].state)
        other = DEVIATIONS[step][name](attack, victim, message)
        if other is not None:
            attack.ask_plainly(step, victim, other)
        first = attack.answers[step].get(victim)
        attack.clients[victim].state = state
        attack.ask_plainly(step, victim, message)
        if first is not None:  # the server may go on with either answer
            attack.answers[step][victim] = first
        return None

    attack = Attack(some_terms(), tell, keys={one: identities()[one] for one in range(5)})
    attack.run().check()


# The attack itself finds what is wrong ----------------------------------------------------------------


def any_broadcast(view: str, purpose: str, peers: list[int], broadcast: Any) -> str:
    """The views of 0.2.0's masks."""
    return statements.sum_view(view, purpose, peers, None)


@pytest.mark.parametrize(
    ("weakened", "by", "deviations"),
    [
        (
            "sum_view",
            any_broadcast,
            [
                ("mask vector", "the others are told zero", (1, 2, 3, 4)),
                ("confirm vector", "not asked", (0,)),
            ],
        ),
        (
            "is_signed",
            lambda *given: True,
            [
                ("confirm criteria", "without 2", (0, 1, 3, 4)),
                ("unmask criteria", "unchecked", (0, 1, 2, 3, 4)),
            ],
        ),
        ("roster_view", lambda terms, roster: terms.context, [("shares", "all_replayed", (0,))]),
        ("GONE", None, [("confirm vector", "without 2", (0, 1, 3, 4))]),
    ],
)
def test_a_weaker_client_is_found_out(
    weakened: str, by: Any, deviations: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    attacked(SETTINGS[0], deviations).check()
    if weakened == "GONE":
        monkeypatch.setattr(Terms, "exposes_dropped", lambda *given: False)
    else:
        monkeypatch.setattr(clientwise.secrecy.masks.client, weakened, by)
    with pytest.raises(AssertionError):
        attacked(SETTINGS[0], deviations).check()
