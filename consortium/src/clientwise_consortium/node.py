"""A site's service: answers sealed instructions with installed code, as far as its approval goes."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clientwise.experiment.load import load_experiment
from clientwise.flower import client_app, load_npz
from clientwise.hosts.flower.wire import ARRAYS, REQUEST, unpack
from clientwise.hosts.protocols import Refused
from clientwise.writing import write_atomically
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from flwr.app import ConfigRecord, Context, Message, RecordDict, UserConfig
from torch import Tensor

from .approval import Approval, most_mu
from .approval import Experiment as ReadExperiment
from .canonical import Row, digest, encode
from .claims import claimed
from .gate import SiteGate, begin
from .keys import (
    APPROVAL,
    COORDINATOR,
    MEMBER,
    UntrustedError,
    listed,
    private_key,
    read_signed,
)
from .ledger import Ledger, is_state
from .mailbox import answer_tasks, be_task, from_bytes, to_bytes
from .masked import Scoring, criteria_of, fixed_bytes
from .masks import Masker
from .session import UNKNOWN, SiteSide, join, split
from .settings import NodeSettings, credential

log = logging.getLogger("clientwise.consortium")
HEAD = re.compile("[0-9a-f]{1,64}")
PURPOSES = ("train", "evaluate", "key", "criteria", "update")
MOST_STRANGE = 1000  # messages of a kind that are noted, though they led to nothing


@dataclass
class MaskedRound:
    """The masked round that a site takes part in: it lives in memory."""

    seed: int
    round_num: int
    masker: Masker
    criteria: list[float] | None = None
    update: Tensor | None = None  # [d]
    request: str = ""  # digest of the request that all members got


class Node:
    """Answers the messages of the mailbox.

    Args:
        settings: `node.toml`.
        identity: the site's private key.
    """

    def __init__(self, settings: NodeSettings, identity: Ed25519PrivateKey) -> None:
        self._settings = settings
        self._identity = identity
        coordinator = listed(settings.signers, COORDINATOR, [settings.coordinator])
        self._approval = _approved(settings)
        content = settings.experiment.read_bytes()
        read = ReadExperiment.read(content)  # refuses plugins, before the library sees the file
        if read.digest != self._approval.experiment:
            raise UntrustedError(f"{settings.experiment}: not the experiment that was approved")
        if read.masked != self._approval.masked:
            raise UntrustedError(f"{settings.approval}: approved with masked = {not read.masked}")
        self._members = listed(settings.signers, MEMBER, read.members)
        _refuse_other_key(self._members[settings.site], identity)
        self._read = read
        self._experiment = load_experiment(read.for_library())
        self._ledger = Ledger(settings.state / "ledger.db")
        self._last = settings.state / "ledger.last"
        _refuse_set_back(self._ledger, self._last)
        _refuse_beyond_house(settings, self._approval, self._ledger)
        begin(self._ledger, self._approval)
        self._gate = SiteGate(self._experiment, self._approval, self._ledger)
        self._app = client_app(read.for_library(), load_npz, gate=self._gate)
        self._session = SiteSide(settings.site, identity, coordinator[settings.coordinator])
        self._masked: MaskedRound | None = None
        self._strange: Counter[str] = Counter()
        self._write_summary()

    def answer(self, message: bytes) -> bytes:
        """The reply to any bytes. What is not sealed for this site is answered without a word about it."""
        try:
            header, rest = split(message)
            if header.get("kind") == "hello":
                return self._session.here(header)
            if header.get("purpose") not in PURPOSES:
                raise UntrustedError("no such purpose")
            content = self._session.instruction(header, rest)
        except UntrustedError as error:
            log.warning("not answered: %s", error)
            self._note_strange("strange", str(error))
            return join({"kind": UNKNOWN})
        reply = self._obeyed(str(header["purpose"]), content)
        return self._session.reply(header, reply)

    def _obeyed(self, purpose: str, content: bytes) -> bytes:
        """The content of a reply: facts and bytes, or why there are none."""
        told: dict[str, Any] = {}
        try:
            asked, rest = split(content)
            told = self._compared(asked.get("ledger"))
            if not HEAD.fullmatch(str(asked.get("head"))):
                raise Refused("an instruction has the head of the record")
            self._gate.note_head(asked["head"])
            facts, result = self._act(purpose, asked, rest)
            noted = {"purpose": purpose, "bytes": len(result), "sha256": digest(result), **facts}
            self._ledger.note("answered", self._approval.id, noted)
        except Exception as error:
            facts, result = {"refused": self._why(purpose, error)}, b""
        self._write_summary()
        state = self._ledger.state()
        write_atomically(self._last, encode(state), 0o600)
        return join({**facts, **told, "ledger": state}, result)

    def _compared(self, known: object) -> dict[str, Any]:
        """What a reply says of the ledger, where it was set back since the coordinator knows it."""
        if not is_state(known) or self._ledger.has(*known):
            return {}
        log.warning("the ledger was set back: it has no longer the %d events that it had", known[0])
        self._note_strange("went back", known[0])
        return {"went_back": True}

    def _why(self, purpose: str, error: Exception) -> str:
        """What the coordinator is told of an error: only a refusal's text tells nothing of the rows."""
        if isinstance(error, Refused):
            reason, event = str(error), "refused"
            log.warning("%s refused: %s", purpose, error)
        else:
            reason, event = f"{type(error).__name__}; the site's log says more", "failed"
            log.exception("%s failed", purpose)
        self._note_strange(event, {"purpose": purpose, "reason": reason})
        return reason

    def _note_strange(self, event: str, facts: Any) -> None:
        """Note what led to nothing; not without end, for then others could fill the disk."""
        self._strange[event] += 1
        if self._strange[event] <= MOST_STRANGE:
            self._ledger.note(event, self._approval.id, facts)

    def _act(self, purpose: str, asked: Row, rest: bytes) -> tuple[dict[str, Any], bytes]:
        if purpose in ("train", "evaluate"):
            if self._approval.masked:
                raise Refused("this site's updates leave it in masked sums alone")
            return self._plain(purpose, from_bytes(rest))
        if not self._approval.masked:
            raise Refused("masked sums are not approved")
        step: Callable[[Row, bytes], bytes] = {
            "key": self._key,
            "criteria": self._criteria,
            "update": self._update,
        }[purpose]
        return {}, step(asked, rest)

    def _plain(self, purpose: str, request: RecordDict) -> tuple[dict[str, Any], bytes]:
        reply = self._ask_app(purpose, request)
        if purpose == "evaluate":
            return {}, to_bytes(reply)
        plain = json.loads(str(request.config_records[REQUEST]["json"]))
        number = (plain["seed"], plain["task"]["round_num"])
        experiment = self._approval.experiment
        signed = claimed(
            self._identity, self._settings.site, experiment, *number, criteria_of(reply)
        )
        return {"signed": signed}, to_bytes(reply)

    def _key(self, asked: Row, rest: bytes) -> bytes:
        """Begin a masked round: once for a seed and a number, under whichever approval."""
        seed, round_num = asked["seed"], asked["round"]
        self._gate.refuse_other_rounds(seed, round_num)
        where = {"kind": "sum", "seed": seed, "round": round_num}
        if not self._ledger.note("summed", self._approval.id, **where):
            raise Refused(
                f"round {round_num} of seed {seed} was summed before, and is summed once: another run needs other "
                "seeds"
            )
        terms = {"experiment": self._approval.experiment, "seed": seed, "round": round_num}
        masker = Masker(self._settings.site, self._identity, self._members, terms)
        self._masked = MaskedRound(seed, round_num, masker)
        return masker.key()

    def _criteria(self, asked: Row, rest: bytes) -> bytes:
        """Train, keep the update, and add the criteria up."""
        current = self._current()
        request = from_bytes(rest)
        plain = json.loads(str(request.config_records[REQUEST]["json"]))
        if (plain["seed"], plain["task"]["round_num"]) != (current.seed, current.round_num):
            raise Refused("the request is not of the round that was begun")
        # All members get the same bytes, to which the masks are bound; each puts its own number in.
        plain["client"] = list(self._members).index(self._settings.site)
        request[REQUEST] = ConfigRecord({"json": json.dumps(plain)})
        reply = self._ask_app("train", request)
        scoring = self._scoring()
        found = criteria_of(reply)
        current.criteria = [found[name] for name in scoring.names]
        model = unpack(request.array_records[ARRAYS])
        current.update = unpack(reply.array_records[ARRAYS]) - model
        values = scoring.sums.criteria(current.criteria)
        current.request = digest(rest)
        told = {"request": current.request}
        return fixed_bytes(current.masker.masked("criteria", _roster(asked), told, values))

    def _update(self, asked: Row, rest: bytes) -> bytes:
        """Score the update by the sums of the criteria, and add it up. The round then ends."""
        current = self._current()
        self._masked = None
        if current.criteria is None or current.update is None:
            raise Refused("the criteria of this round come first")
        scoring = self._scoring()
        score = scoring.score(current.criteria, asked["sums"])
        values = scoring.sums.update(score, current.update)
        # Bound to the request, too: with another model for the others, whose updates are then known or nothing, the
        # sum would be this site's own update.
        told = {"request": current.request, "sums": asked["sums"]}
        return fixed_bytes(current.masker.masked("update", _roster(asked), told, values))

    def _current(self) -> MaskedRound:
        if self._masked is None:
            raise Refused("no round was begun, or this site was restarted: the round is void")
        return self._masked

    def _scoring(self) -> Scoring:
        assert self._read.clip is not None, "masked sums are approved"
        return Scoring.of(self._experiment, self._read.clip)

    def _ask_app(self, purpose: str, request: RecordDict) -> RecordDict:
        """The library's answer; Refused with its reason."""
        settings: UserConfig = {"data": self._settings.data}
        be_task(1, 1, 1)
        message = Message(request, 1, purpose)
        reply = self._app(message, Context(1, 1, settings, RecordDict(), {}))
        if reply.has_error():
            raise Refused(reply.error.reason)
        return reply.content

    def _write_summary(self) -> None:
        """What was released so far, for `agree`; the record's heads and the site's rounds, for `verify`."""
        summary = {
            "released": self._ledger.released(),
            "heads": sorted(set(self._ledger.questions("head"))),
            # A masked round has no row of a single site
            "rounds": [] if self._approval.masked else self._ledger.rounds(self._approval.id),
        }
        write_atomically(self._settings.summary, encode(summary), 0o644)


def run(settings: NodeSettings) -> None:
    """Serve, until the service is stopped."""
    node = Node(settings, private_key(credential("identity")))
    answer_tasks(settings.runtime, credential("runtime"), node.answer)


def _approved(settings: NodeSettings) -> Approval:
    """The signed approval, for this site, and this code."""
    content = read_signed(settings.approval, settings.signers, settings.approver, APPROVAL)
    approval = Approval.read(content)
    if approval.site != settings.site:
        raise UntrustedError(f"{settings.approval}: approved for {approval.site}")
    if digest(settings.lock.read_bytes()) != approval.lock:
        raise UntrustedError(f"{settings.lock}: other code than was approved")
    return approval


def _refuse_set_back(ledger: Ledger, last: Path) -> None:
    """Refuse to begin with a ledger that has not what it had at the last reply."""
    if not last.exists():
        return
    state = json.loads(last.read_bytes())
    if not is_state(state) or not ledger.has(*state):
        raise UntrustedError(
            "this site's ledger was set back: what left the site since then is not in it. If it was restored and the "
            f"other members know it, remove {last}"
        )


def _refuse_beyond_house(settings: NodeSettings, approval: Approval, ledger: Ledger) -> None:
    """The house's limits, which root wrote, hold for whatever an approver signs."""
    total = most_mu(approval, ledger.released(but=approval.id))
    if total is None:
        if not settings.allow_no_noise:
            raise UntrustedError("approved without noise, and the house's allow_no_noise is false")
    elif total > settings.most_mu:
        raise UntrustedError(
            f"mu = {total:.3g} with all earlier approvals, the house allows {settings.most_mu:.3g}"
        )


def _refuse_other_key(known: Ed25519PublicKey, identity: Ed25519PrivateKey) -> None:
    if known.public_bytes_raw() != identity.public_key().public_bytes_raw():
        raise UntrustedError("this site's key is not the one in the signers file")


def _roster(asked: Row) -> dict[str, bytes]:
    return {str(name): bytes.fromhex(key) for name, key in asked["roster"].items()}
