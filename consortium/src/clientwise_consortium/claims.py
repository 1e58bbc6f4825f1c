"""A member's signature of its criteria: the record keeps it, so the coordinator cannot invent criteria."""

from __future__ import annotations

from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from .canonical import Row
from .envelope import check, sign
from .keys import UntrustedError

LABEL = "clientwise criteria 1"
FACTS = {"experiment", "seed", "round", "criteria"}


def claimed(
    identity: Ed25519PrivateKey,
    member: str,
    experiment: str,
    seed: int,
    round_num: int,
    criteria: Mapping[str, float],
) -> Row:
    """The criteria of one update, signed.

    Args:
        identity: of the member.
        member: its name.
        experiment: SHA-256 of the experiment's file.
        seed: of the request.
        round_num: of the request.
        criteria: by label, as they are sent.
    """
    claim = {
        "experiment": experiment,
        "seed": seed,
        "round": round_num,
        "criteria": dict(criteria),
    }
    return {"claim": claim, "signature": sign(identity, LABEL, member, claim).hex()}


def read_claim(signed: Row, member: str, identity: Ed25519PublicKey, experiment: str) -> Row:
    """What a member claims; UntrustedError where it did not sign this for this experiment."""
    try:
        claim, signature = signed["claim"], bytes.fromhex(signed["signature"])
        check(identity, signature, LABEL, member, claim)
        if signed.keys() != {"claim", "signature"} or claim.keys() != FACTS:
            raise UntrustedError(f"{member}: a claim of another form")
        if claim["experiment"] != experiment:
            raise UntrustedError(f"{member}: criteria of another experiment")
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UntrustedError(f"{member}: its criteria are not signed") from None
    return dict(claim)
