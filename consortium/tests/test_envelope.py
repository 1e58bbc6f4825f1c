"""Envelopes and sessions: who reads what, and what is refused."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from clientwise_consortium.canonical import encode
from clientwise_consortium.claims import claimed, read_claim
from clientwise_consortium.envelope import check, seal, sign, unseal
from clientwise_consortium.keys import UntrustedError, public_keys
from clientwise_consortium.session import AgainError, ServerSide, SiteSide, join, split
from conftest import NAMES, Keys

ABOUT = {"run": "A", "number": 3, "to": "north"}


def test_only_the_receiver_reads_what_only_the_sender_sealed() -> None:
    sender, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    receiver = X25519PrivateKey.generate()
    public = receiver.public_key().public_bytes_raw()
    envelope = seal(sender, public, ABOUT, b"hello" * 1000)
    assert unseal(receiver, sender.public_key(), ABOUT, envelope) == b"hello" * 1000
    assert b"hello" not in envelope
    assert seal(sender, public, ABOUT, b"") != seal(sender, public, ABOUT, b"")
    for key, identity, about, content in [
        (receiver, other, ABOUT, envelope),
        (receiver, sender, {**ABOUT, "number": 4}, envelope),
        (X25519PrivateKey.generate(), sender, ABOUT, envelope),
        (receiver, sender, ABOUT, envelope[:-1]),
        (receiver, sender, ABOUT, b""),
        (receiver, sender, ABOUT, bytes(32) + envelope[32:]),
    ]:
        with pytest.raises(UntrustedError):
            unseal(key, identity.public_key(), about, content)


def test_every_changed_byte_is_noticed() -> None:
    sender, receiver = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    envelope = seal(sender, receiver.public_key().public_bytes_raw(), ABOUT, b"secret")
    for position in range(len(envelope)):
        changed = bytearray(envelope)
        changed[position] ^= 1
        with pytest.raises(UntrustedError):
            unseal(receiver, sender.public_key(), ABOUT, bytes(changed))


def test_a_signature_is_for_one_purpose() -> None:
    identity = Ed25519PrivateKey.generate()
    signature = sign(identity, "one", {"a": 1})
    check(identity.public_key(), signature, "one", {"a": 1})
    for label, part in (("two", {"a": 1}), ("one", {"a": 2})):
        with pytest.raises(UntrustedError):
            check(identity.public_key(), signature, label, part)


def test_numbers_that_are_none_are_not_encoded() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode({"a": float("nan")})


def test_criteria_are_signed_for_one_experiment_and_member() -> None:
    identity = Ed25519PrivateKey.generate()
    signed = claimed(identity, "north", "e1", 1, 2, {"dataset_size": 5.0})
    assert read_claim(signed, "north", identity.public_key(), "e1")["round"] == 2
    for member, experiment in (("south", "e1"), ("north", "e2")):
        with pytest.raises(UntrustedError):
            read_claim(signed, member, identity.public_key(), experiment)
    changed = {**signed, "claim": {**signed["claim"], "criteria": {"dataset_size": 50.0}}}
    for bad in (changed, {}, {"claim": 3, "signature": "zz"}):
        with pytest.raises(UntrustedError):
            read_claim(bad, "north", identity.public_key(), "e1")


@pytest.fixture
def sides(keys: Keys) -> tuple[ServerSide, dict[str, SiteSide]]:
    coordinator = keys.private("coordinator")
    members = public_keys(keys.signers, "clientwise-member")
    sites = {name: SiteSide(name, keys.private(name), coordinator.public_key()) for name in NAMES}
    return ServerSide(coordinator, members), sites


def greet(server: ServerSide, site: SiteSide, name: str) -> None:
    header, _ = split(server.hello())
    assert server.greeted(site.here(header)) == name


def test_a_session_carries_instructions_and_replies(sides) -> None:  # type: ignore[no-untyped-def]
    server, sites = sides
    greet(server, sites["north"], "north")
    number, message = server.instruction("north", "train", b"model")
    header, envelope = split(message)
    assert sites["north"].instruction(header, envelope) == b"model"
    reply = sites["north"].reply(header, b"update")
    assert server.reply("north", number, "train", reply) == b"update"
    with pytest.raises(UntrustedError):  # a reply to another message
        server.reply("north", number + 1, "train", reply)
    with pytest.raises(UntrustedError, match="before"):  # the mailbox repeats it
        sites["north"].instruction(header, envelope)


def test_messages_for_others_are_not_opened(sides) -> None:  # type: ignore[no-untyped-def]
    server, sites = sides
    for name in ("north", "south"):
        greet(server, sites[name], name)
    _, message = server.instruction("north", "train", b"model")
    header, envelope = split(message)
    with pytest.raises(UntrustedError):
        sites["south"].instruction(header, envelope)
    with pytest.raises(UntrustedError):  # another purpose than the one that was sealed
        sites["north"].instruction({**header, "purpose": "evaluate"}, envelope)
    number, message = server.instruction("south", "train", b"model")
    header, envelope = split(message)
    sites["south"].instruction(header, envelope)
    reply = sites["south"].reply(header, b"update")
    with pytest.raises(UntrustedError):  # the mailbox gives it to the server as north's
        server.reply("north", number, "train", reply)


def test_strangers_get_no_session(sides, keys: Keys) -> None:  # type: ignore[no-untyped-def]
    server, sites = sides
    members = public_keys(keys.signers, "clientwise-member")
    stranger = ServerSide(Ed25519PrivateKey.generate(), members)
    header, _ = split(stranger.hello())
    with pytest.raises(UntrustedError):
        sites["north"].here(header)
    hello, _ = split(server.hello())
    coordinator = keys.private("coordinator").public_key()
    impostor = SiteSide("north", keys.private("south"), coordinator)
    unknown = SiteSide("doctor", keys.private("doctor"), coordinator)
    for site in (impostor, unknown):
        with pytest.raises(UntrustedError):
            server.greeted(site.here(hello))
    for bad in (b"", b'{"member":[]}\n', b'{"member":"north","opening":3}\n'):
        with pytest.raises(UntrustedError):
            server.greeted(bad)


def test_a_restarted_site_is_noticed(sides) -> None:  # type: ignore[no-untyped-def]
    server, sites = sides
    greet(server, sites["north"], "north")
    number, _ = server.instruction("north", "train", b"model")
    with pytest.raises(AgainError):
        server.reply("north", number, "train", join({"kind": "unknown"}))
    for bad in (b"", b"[]\n", b"\xff\n", b"{}"):
        with pytest.raises(UntrustedError):
            server.reply("north", number, "train", bad)
