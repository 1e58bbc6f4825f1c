"""The coordinator's letters: sealed messages over Flower's mailbox, and the replies that are really the sites'."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from flwr.app import Message

from .canonical import Row
from .keys import UntrustedError
from .ledger import is_state
from .mailbox import unwrapped, wrapped
from .session import AgainError, ServerSide, join, split

log = logging.getLogger("clientwise.consortium")
GREETING_SECONDS = 30.0  # after which a node is greeted again
PAUSE = 0.2
LONGEST_REASON = 300
Result = TypeVar("Result")
ATTEMPTS = 2  # of a message: a site that was restarted is greeted again, once


class Grid(Protocol):
    """What is used of Flower's grid."""

    def get_nodes(self) -> Iterable[Any]:
        """The nodes that are connected."""
        ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send; sets the messages' ids."""
        ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there."""
        ...


@dataclass(frozen=True)
class Letter:
    """An instruction to a site that was sent, and may have to be sent again."""

    member: str
    purpose: str
    facts: Row
    content: bytes
    known: Sequence[Any] | None = None  # of the site's ledger, when the letter was sent
    number: int = 0
    flower_id: str = ""
    attempt: int = 1


@dataclass(frozen=True)
class Reply:
    """A site's authenticated reply."""

    member: str
    facts: dict[str, Any]
    content: bytes

    @property
    def refused(self) -> str | None:
        """Why the site refused, as a text for logs and the record; None: it did not."""
        if "refused" not in self.facts:
            return None
        return _printable(str(self.facts["refused"]))


def _printable(text: str) -> str:
    """What others wrote, as it may stand in logs and records."""
    return "".join(one if one.isprintable() else "?" for one in text[:LONGEST_REASON])


class Post:
    """Sends letters to members and reads their replies.

    Args:
        grid: Flower's.
        side: the coordinator's sessions.
        head: gives the head of the record, which is in every letter.
        ledgers: the state of each member's ledger, as it was known last.
    """

    def __init__(
        self,
        grid: Grid,
        side: ServerSide,
        head: Callable[[], str],
        ledgers: Mapping[str, Sequence[Any]],
    ) -> None:
        self._grid = grid
        self._side = side
        self._head = head
        self.ledgers = dict(ledgers)
        self.remarks: list[str] = []  # for the record
        self._letters: dict[str, Letter] = {}  # by the id that the caller knows
        self._node_of: dict[str, int] = {}  # by member, of those that answered a greeting
        self._greeted: dict[int, tuple[str, float]] = {}  # by node: the greeting's id, and when
        self._pulls: dict[str, Future[list[Message]]] = {}  # by Flower's id
        self._lock = threading.RLock()  # several methods may run at once

    def nodes(self) -> dict[str, int]:
        """The nodes of those members that are connected and answered a greeting.

        What the mailbox says of nodes is not used: the signature under the answer says who is there.
        """
        with self._lock:
            connected = [node.node_id for node in self._grid.get_nodes()]
            for node in connected:
                self._greet(node)
            return {name: node for name, node in self._node_of.items() if node in connected}

    def send(
        self, purpose: str, contents: Mapping[str, bytes], facts: Row | None = None
    ) -> dict[str, str]:
        """Letters to members; their ids, by member. Without one: it could not be greeted."""
        with self._lock:
            sent = {}
            for member, content in contents.items():
                letter = self._sent(Letter(member, purpose, facts or {}, content))
                if letter is not None:
                    self._letters[letter.flower_id] = letter
                    sent[member] = letter.flower_id
            return sent

    def receive(self, ids: Iterable[str]) -> dict[str, Reply | str]:
        """The replies that are there, by the id of the letter; a text where there is none to be used."""
        with self._lock:
            found: dict[str, Reply | str] = {}
            for name in ids:
                letter = self._letters.get(name)
                if letter is not None:
                    reply = self._reply_to(name, letter)
                    if reply is not None:
                        del self._letters[name]
                        found[name] = reply
            return found

    def exchange(
        self, purpose: str, contents: Mapping[str, bytes], seconds: float, facts: Row | None = None
    ) -> dict[str, Reply | str]:
        """Send letters and wait for the replies, by member; those in time."""
        waiting = {name: member for member, name in self.send(purpose, contents, facts).items()}
        found: dict[str, Reply | str] = {}
        deadline = time.monotonic() + seconds
        while waiting and time.monotonic() < deadline:
            for name, reply in self.receive(list(waiting)).items():
                found[waiting.pop(name)] = reply
            if waiting:
                self.nodes()  # a site that was restarted is greeted meanwhile
                time.sleep(PAUSE)
        return found

    def _sent(self, letter: Letter) -> Letter | None:
        """Seal and push a letter; None where the site has no session, or the mailbox does not take it."""
        node = self.nodes().get(letter.member)
        if node is None:
            return None
        known = self.ledgers.get(letter.member)
        facts = {**letter.facts, "head": self._head(), "ledger": known}
        content = join(facts, letter.content)
        try:
            number, sealed = self._side.instruction(letter.member, letter.purpose, content)
        except UntrustedError as error:
            log.warning("no letter to %s: %s", letter.member, error)
            return None
        name = self._push(node, sealed)
        if name is None:
            return None
        return replace(letter, known=known, number=number, flower_id=name)

    def _push(self, node: int, content: bytes) -> str | None:
        message = Message(wrapped(content), node, "query")
        names = [name for name in self._grid.push_messages([message]) if name]
        return str(names[0]) if names else None

    def _pull(self, flower_id: str) -> bytes | None:
        """The bytes of the reply to one message; None: not there yet. ValueError where it has none."""
        if flower_id not in self._pulls:
            self._pulls[flower_id] = _in_thread(lambda: list(self._grid.pull_messages([flower_id])))
        pull = self._pulls[flower_id]
        wait([pull], timeout=PAUSE)
        if not pull.done():
            return None
        del self._pulls[flower_id]
        for reply in pull.result():
            if reply.metadata.reply_to_message_id == flower_id:
                return unwrapped(reply)
        return None

    def _reply_to(self, name: str, letter: Letter) -> Reply | str | None:
        try:
            found = self._pull(letter.flower_id)
            if found is None:
                return None
            content = self._side.reply(letter.member, letter.number, letter.purpose, found)
            facts, rest = split(content)
        except AgainError:
            return self._repeated(name, letter)
        except Exception as error:  # nothing that arrives ends the run
            return _printable(f"its reply cannot be used: {type(error).__name__}: {error}")
        self._note_ledger(letter, facts)
        return Reply(letter.member, facts, rest)

    def _repeated(self, name: str, letter: Letter) -> str | None:
        """Greet a site again and send the letter once more."""
        node = self._node_of.pop(letter.member, None)
        if letter.attempt >= ATTEMPTS or node is None:
            return "its site has no session"
        del self._greeted[node]
        deadline = time.monotonic() + 2 * GREETING_SECONDS
        while letter.member not in self.nodes() and time.monotonic() < deadline:
            time.sleep(PAUSE)
        again = self._sent(replace(letter, attempt=letter.attempt + 1))
        if again is None:
            return "its site could not be greeted again"
        self._letters[name] = again
        return None

    def _greet(self, node: int) -> None:
        """Greet a node that is unknown, again where it does not answer for long, and read its answer."""
        if node in self._node_of.values():
            return
        name, at = self._greeted.get(node, ("", -math.inf))
        if time.monotonic() - at > GREETING_SECONDS:
            name = self._push(node, self._side.hello()) or ""
            self._greeted[node] = (name, time.monotonic())
        try:
            found = self._pull(name) if name else None
            if found is not None:
                self._greeted[node] = ("", time.monotonic())
                self._node_of[self._side.greeted(found)] = node
        except (
            UntrustedError,
            ValueError,
        ) as error:  # a stranger, or a site that was just restarted
            self._greeted[node] = ("", time.monotonic())
            log.warning("node %d did not answer the greeting: %s", node, error)

    def _note_ledger(self, letter: Letter, facts: Row) -> None:
        """Remark on a ledger that was set back: it has not what it had when the letter was sent."""
        member, state = letter.member, facts.get("ledger")
        if not is_state(state):
            return
        before = 0 if letter.known is None else letter.known[0]
        went_back = facts.get("went_back") is True or state[0] < before
        if went_back:
            remark = f"the ledger of {member} went back: it has no longer the {before} events that it had"
            log.warning("%s", remark)
            self.remarks.append(remark)
        if went_back or member not in self.ledgers or state[0] > self.ledgers[member][0]:
            self.ledgers[member] = state


def _in_thread(work: Callable[[], Result]) -> Future[Result]:
    """Work that may take hours, and then ends with the process.

    Flower tries for two hours to get a reply whose sender was killed while it sent it.
    """
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done
