"""The protocol of secure aggregation: sums are exact, and nobody is exposed by dropouts or lies."""

from __future__ import annotations

import re
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("Crypto", reason="needs clientwise[deployment]")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rounds import Parties, is_noise, some_terms

from clientwise.secrecy.masks.client import SecureClient
from clientwise.secrecy.masks.primitives import combine, split
from clientwise.secrecy.masks.statements import signed_keys, signed_survivors
from clientwise.secrecy.masks.terms import ProtocolError, Terms, VoidError

STEPS = some_terms().steps


def nested(depth: int) -> list[Any]:
    """Lists in lists."""
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def check_sums(parties: Parties) -> dict[str, list[int]]:
    """Run; every total is the plain sum of the clients that the server names. Returns these."""
    clients = {}
    for purpose, (present, total) in parties.run().items():
        assert numpy.array_equal(total, parties.plain_sum(purpose, present))
        clients[purpose] = present
    return clients


@given(
    cohort=st.integers(3, 7),
    share=st.sampled_from([0.5, 2 / 3]),
    gone=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 6)), max_size=3),
)
@settings(max_examples=20)
def test_a_total_is_the_sum_of_the_clients_in_it_whoever_drops_out_and_when(
    cohort: int, share: float, gone: list[tuple[str, int]]
) -> None:
    threshold = max(3, int(share * cohort + 1e-9) + 1)

    def replies(step: str, client: int, message: Any) -> Any:
        return None if (step, client) in gone else message

    parties = Parties(some_terms(cohort, threshold), replies)
    try:
        clients = check_sums(parties)
    except VoidError as reason:
        why = str(reason)
    else:
        why = ""
    if why:
        left = cohort - len({client for _, client in gone})
        assert left < threshold or "between the two sums" in why
        return
    assert len(clients["vector"]) >= threshold
    assert clients["vector"] == clients["criteria"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("who", [(3,), (1, 3)])
def test_clients_vanish_in_every_step(step: str, who: tuple[int, ...]) -> None:
    """Between the two sums, the round is void: their difference would tell about the clients' scores."""
    parties = Parties(
        some_terms(6, 4), lambda now, one, sent: None if now == step and one in who else sent
    )
    sent_criteria = STEPS.index(step) > STEPS.index("mask criteria")
    sent_vector = STEPS.index(step) > STEPS.index("mask vector")
    if sent_criteria and not sent_vector:
        with pytest.raises(VoidError, match="a client dropped out between the two sums"):
            parties.run()
        assert all(
            one.state["done"] <= STEPS.index("unmask vector") for one in parties.clients.values()
        )
        return
    clients = check_sums(parties)
    assert (3 in clients["criteria"]) == sent_criteria
    assert (3 in clients["vector"]) == sent_vector


@pytest.mark.parametrize("listed", [[0, 1, 2, 3, 4], [0, 1, 2, 3]])
def test_a_client_refuses_a_list_that_lacks_a_client_of_the_sum_before(listed: list[int]) -> None:
    """A server that deviates cannot learn the scores of one or two clients so."""

    def requests(step: str, client: int, message: Any) -> Any:
        return {"survivors": listed} if step == "confirm vector" else message

    parties = Parties(some_terms(6, 4), requests=requests)
    with pytest.raises(VoidError):
        parties.run()
    reasons = set(parties.refusals.values())
    assert len(reasons) == 2
    assert any("between the two sums" in reason for reason in reasons)


@pytest.mark.parametrize("step", STEPS)
def test_too_few_clients_make_the_round_void(step: str) -> None:
    def replies(now: str, one: int, sent: Any) -> Any:
        return None if now == step and one in (1, 3) else sent

    with pytest.raises(VoidError, match="3 of 5 clients"):
        Parties(some_terms(), replies).run()


def test_masked_values_look_random_and_differ_between_rounds() -> None:
    seen: list[bytes] = []

    def replies(step: str, client: int, message: Any) -> Any:
        if step.startswith("mask"):
            seen.append(message["masked"].tobytes())
        return message

    for run in ("round 1", "round 2"):
        check_sums(Parties(some_terms(run=run), replies))
    assert len(set(seen)) == len(seen) == 20


# Lying clients ------------------------------------------------------------------------------------


def test_a_client_that_signs_for_another_is_dropped() -> None:
    parties = Parties(some_terms())

    def replies(step: str, client: int, message: Any) -> Any:
        if step == "keys" and client == 2:
            stranger = Ed25519PrivateKey.generate()
            text = signed_keys(parties.terms, 2, message["keys"])
            return message | {"signature": stranger.sign(text).hex()}
        return message

    parties.replies = replies
    assert check_sums(parties)["vector"] == [0, 1, 3, 4]
    assert "did not sign these keys" in parties.server.dropped[2]


@pytest.mark.parametrize("key", ["00" * 32, "01" + "00" * 31, "not hex", None, "ab"])
def test_a_key_that_is_no_usable_point_drops_its_client(key: Any) -> None:
    parties = Parties(some_terms())

    def replies(step: str, client: int, message: Any) -> Any:
        if step == "keys" and client == 2:
            keys = message["keys"] | {"vector": key}
            text = signed_keys(parties.terms, 2, keys)
            return {"keys": keys, "signature": parties.keys[2].sign(text).hex()}
        return message

    parties.replies = replies
    assert check_sums(parties)["vector"] == [0, 1, 3, 4]


def test_a_copied_key_drops_its_client() -> None:
    parties = Parties(some_terms())
    first: dict[str, str] = {}

    def replies(step: str, client: int, message: Any) -> Any:
        if step != "keys":
            return message
        if client == 0:
            first.update(message["keys"])
        if client == 2:
            text = signed_keys(parties.terms, 2, first)
            return {"keys": dict(first), "signature": parties.keys[2].sign(text).hex()}
        return message

    parties.replies = replies
    assert check_sums(parties)["vector"] == [0, 1, 3, 4]
    assert "twice" in parties.server.dropped[2]


def test_garbage_shares_are_left_out_and_the_round_goes_on() -> None:
    """Client 2 sends garbage instead of encrypted shares, and client 0 garbage when it unmasks."""

    def replies(step: str, client: int, message: Any) -> Any:
        if step == "shares" and client == 2:
            garbage = {name: "ab" * (len(one) // 2) for name, one in message["packets"].items()}
            return message | {"packets": garbage}
        if step == "unmask criteria" and client == 0:
            return message | {"shares": dict.fromkeys(message["shares"], "cd" * 16)}
        if step == "mask criteria" and client in (4, 5):
            return None
        return message

    parties = Parties(some_terms(7, 4), replies)
    assert check_sums(parties)["vector"] == [0, 1, 2, 3, 6]
    assert "client 0 sent a wrong share of client 4's secret" in parties.server.notes


def test_a_client_that_shared_garbage_and_vanishes_makes_the_round_void() -> None:
    def replies(step: str, client: int, message: Any) -> Any:
        if step == "shares" and client == 2:
            garbage = {name: "ab" * (len(one) // 2) for name, one in message["packets"].items()}
            return message | {"packets": garbage}
        if step == "mask criteria" and client == 2:
            return None
        return message

    with pytest.raises(VoidError, match="client 2 vanished, and only 0 usable shares"):
        Parties(some_terms(), replies).run()


def test_a_client_that_shared_another_secret_and_vanishes_makes_the_round_void(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its shares fit their commitments, but not its public key."""
    parties = Parties(some_terms())
    honest_shares = parties.clients[2].shares

    def lie(request: Any) -> Any:
        secrets = parties.clients[2].state["secrets"]
        true = {purpose: dict(one) for purpose, one in secrets.items()}
        for one in secrets.values():
            one["mask"] = "ef" * 16
        reply = honest_shares(request)
        parties.clients[2].state["secrets"] = true
        return reply

    monkeypatch.setattr(parties.clients[2], "shares", lie)
    parties.replies = lambda step, one, sent: None if (step, one) == ("mask criteria", 2) else sent
    with pytest.raises(VoidError, match="client 2 vanished after it shared a wrong secret"):
        parties.run()


def test_another_self_mask_than_the_committed_one_is_restored_from_shares() -> None:
    def replies(step: str, client: int, message: Any) -> Any:
        is_liar = step == "unmask vector" and client == 2
        return message | {"own": "00" * 16} if is_liar else message

    parties = Parties(some_terms(), replies)
    assert check_sums(parties)["vector"] == [0, 1, 2, 3, 4]
    assert "another self-mask" in parties.server.dropped[2]


# Lying servers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("purpose", ["criteria", "vector"])
def test_no_client_is_named_active_and_dropped(purpose: str) -> None:
    """Client 4 sent its values; some clients are told that it dropped out, and others that it did not.

    With 5 clients and t = 4, no two lists find four signatures each.
    """
    parties = Parties(some_terms())

    def requests(step: str, client: int, message: Any) -> Any:
        if step == f"confirm {purpose}" and client in (0, 1):
            return {"survivors": [0, 1, 2, 3]}
        return message

    parties.requests = requests
    with pytest.raises(VoidError):
        parties.run()
    revealed = [
        one.state["done"] > STEPS.index(f"unmask {purpose}") for one in parties.clients.values()
    ]
    assert not any(revealed)


def test_a_client_reveals_nothing_for_a_list_that_others_did_not_sign() -> None:
    parties = Parties(some_terms())

    def requests(step: str, client: int, message: Any) -> Any:
        if step != "unmask criteria":
            return message
        text = signed_survivors(parties.clients[client].state["view"])
        forged = Ed25519PrivateKey.generate().sign(text).hex()
        return {"signatures": dict.fromkeys(message["signatures"], forged)}

    parties.requests = requests
    with pytest.raises(VoidError, match="sent their shares"):
        parties.run()
    assert all("did not sign" in reason for reason in parties.refusals.values())


def test_three_signatures_are_not_enough_and_none_counts_twice() -> None:
    parties = Parties(some_terms())

    def requests(step: str, client: int, message: Any) -> Any:
        if step == "unmask criteria":
            return {"signatures": dict(list(message["signatures"].items())[:3])}
        return message

    parties.requests = requests
    with pytest.raises(VoidError):
        parties.run()
    assert "only 3 clients signed" in parties.refusals[0]


@pytest.mark.parametrize(
    ("step", "change", "reason"),
    [
        ("shares", lambda sent: {"roster": dict(list(sent["roster"].items())[:3])}, "only 3"),
        (
            "shares",
            lambda sent: {"roster": sent["roster"] | {"1": sent["roster"]["0"]}},
            "client 1 did not sign",
        ),
        (
            "shares",
            lambda sent: {"roster": sent["roster"] | {"7": sent["roster"]["0"]}},
            "6 clients",
        ),
        ("mask criteria", lambda sent: sent | {"packets": {}}, "only 1 clients shared"),
        ("confirm criteria", lambda sent: {"survivors": [0]}, "as dropped|only 1"),
        ("confirm criteria", lambda sent: {"survivors": [0, 0, 1, 2, 3]}, "twice"),
        ("confirm criteria", lambda sent: {"survivors": [0, 1, 2, 3, 4, 9]}, "no part"),
        ("confirm criteria", lambda sent: {"survivors": [True, 1, 2, 3]}, "not a list of clients"),
    ],
)
def test_clients_refuse_a_server_that_deviates(step: str, change: Any, reason: str) -> None:
    def requests(now: str, client: int, message: Any) -> Any:
        return change(message) if now == step else message

    parties = Parties(some_terms(), requests=requests)
    with pytest.raises(VoidError):
        parties.run()
    assert len(parties.refusals) == 5
    assert all(re.search(reason, text) for text in parties.refusals.values()), parties.refusals


def test_another_broadcast_for_one_client_unmasks_nobody_with_it() -> None:
    """One client is told sums with which its score is largest, the others sums with which theirs is zero.

    Four of five confirm the list, which has the fifth. What the server reads is not the fifth's update.
    """
    parties = Parties(some_terms())
    parties.score = lambda told: told["score"]  # type: ignore[index]

    def requests(step: str, client: int, message: Any) -> Any:
        if step == "mask vector":
            return message | {"broadcast": {"score": int(client == 2)}}
        return message

    parties.requests = requests
    begin_sum = parties.server.begin_sum
    parties.server.begin_sum = lambda purpose, told: begin_sum(purpose, {"score": 0})  # type: ignore[method-assign]
    present, total = parties.run()["vector"]
    assert present == [0, 1, 2, 3, 4]
    assert is_noise(total)
    assert is_noise(total - parties.values["vector"][2])


def test_clients_with_different_models_do_not_go_on() -> None:
    """The hash of the model is among what clients sign."""
    parties = Parties(some_terms())
    other = Terms("run 1, seed 1, round 1", "another model", 5, 4, some_terms().sums)
    parties.clients[2] = SecureClient(other, 2, parties.keys[2], parties.identities)
    reply = parties.clients[2].keys()
    roster = {str(client): one.keys() for client, one in parties.clients.items() if client != 2} | {
        "2": reply
    }
    for client in (0, 1, 3, 4):
        with pytest.raises(ProtocolError, match="client 2 did not sign these keys for this round"):
            parties.clients[client].shares({"roster": roster})
    with pytest.raises(ProtocolError, match="client 0 did not sign"):
        parties.clients[2].shares({"roster": roster})


@pytest.mark.parametrize(
    ("step", "key", "value"),
    [
        ("keys", "keys", {"sharing": nested(980)}),
        ("shares", "packets", {"9" * 5000: ""}),
        ("unmask vector", "shares", {"1": nested(980)}),
        ("unmask vector", "own", nested(980)),
    ],
)
def test_strange_values_drop_their_client_alone(step: str, key: str, value: Any) -> None:
    """Python 3.11 refuses to write lists in lists that it could just read. Later versions write deeper ones."""

    def replies(now: str, client: int, message: Any) -> Any:
        return message | {key: value} if (now, client) == (step, 2) else message

    parties = Parties(some_terms(), replies)
    check_sums(parties)
    assert [*parties.server.dropped] in ([2], [])
    assert all("answer refused" in reason for reason in parties.server.dropped.values())


def test_other_names_of_a_client_are_ignored() -> None:
    """Python refuses to convert 5,000 digits. A client that is named in 1,000 ways is noted once."""
    others = {"9" * 5000: "", "٣": ""} | {"0" * count + "3": "" for count in range(1000)}

    def replies(step: str, client: int, message: Any) -> Any:
        if (step, client) == ("unmask vector", 2):
            return message | {"shares": others}
        return message

    parties = Parties(some_terms(), replies)
    check_sums(parties)
    assert parties.server.notes == ["client 2 sent a wrong share of client 3's secret"]


def test_each_step_is_answered_once_and_in_order() -> None:
    parties = Parties(some_terms())
    asked: list[tuple[str, int, Any]] = []

    def requests(step: str, client: int, message: Any) -> Any:
        asked.append((step, client, message))
        return message

    parties.requests = requests
    check_sums(parties)
    assert all(len(one.state) == 2 for one in parties.clients.values()), "secrets are left"
    for step, client, message in asked:
        kind, _, purpose = step.partition(" ")
        with pytest.raises(ProtocolError, match="comes next"):
            parties._answer(client, kind, purpose, message)


def test_a_client_does_not_skip_the_confirmation() -> None:
    parties = Parties(some_terms())
    parties.clients[0].keys()
    with pytest.raises(ProtocolError, match="'shares' comes next"):
        parties.clients[0].unmask("vector", {"signatures": {}})


# Building blocks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("cohort", "threshold"), [(2, 2), (2, 3), (3, 2), (4, 2), (5, 6), (6, 3)])
def test_terms_need_a_majority_and_three_clients(cohort: int, threshold: int) -> None:
    with pytest.raises(ValueError, match=r"majority|at least 3"):
        some_terms(cohort, threshold)


def test_fewer_shares_than_the_threshold_tell_nothing() -> None:
    secret = bytes(range(16))
    holders = [3, 5, 8, 9]
    shares = split(secret, 3, holders)
    some = {holder: shares[holder] for holder in (8, 3, 9)}
    assert combine(some, 3, holders) == secret
    assert combine({3: shares[3], 5: shares[5]}, 2, holders) != secret


def test_sharing_keys_differ_by_direction_and_view() -> None:
    client = Parties(some_terms()).clients[0]
    client.keys()
    roster = {"1": {"sharing": "09" + "00" * 31}}
    found = set()
    for view in ("one", "two"):
        for sender, receiver in ((0, 1), (1, 0)):
            found.add(client._sharing_key(roster, view, sender, receiver))
    assert len(found) == 4
