"""Events of a run: one line of JSON each, and an alert command for those that need a person."""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from ...core.types import Refusal
from ...errors import plain
from ...experiment.running.lanes import Progress
from ..flower.wire import RUNS_HERE

log = logging.getLogger("flwr.clientwise")
COMMAND_SECONDS = 60  # after which the alert command is killed
MAX_REASON = 600  # characters


@dataclass
class Events:
    """Writes events to a file, and sends those that need a person to a command."""

    file: Path
    names: Sequence[str]  # of the clients
    command: str = ""  # a shell command
    _present: set[int] = field(default_factory=set)  # clients of the last round
    _missed: set[int] = field(default_factory=set)  # clients that failed when last asked
    _versions: dict[int, Mapping[str, str]] = field(default_factory=dict)  # by client

    def begun(self, resumed: bool, left: Sequence[str] = ()) -> None:
        """A run begins or is resumed; members in `left` take no part."""
        members = [name for name in self.names if name not in left]
        self._write("begun", {"resumed": resumed, "members": members, "versions": RUNS_HERE})

    def versions(self, client: int, found: Mapping[str, str]) -> None:
        """The versions a member runs, once and at every change.

        Differences from the server's are logged.
        """
        if self._versions.get(client) == found:
            return
        self._versions[client] = found
        member = self._name(client)
        differs = []
        for name, one in found.items():
            if one != RUNS_HERE[name]:
                differs.append(f"{name} {one}, here {RUNS_HERE[name]}")
        self._write("versions", {"member": member, "versions": found, "differs": differs})
        if differs:
            log.warning("%s runs other versions: %s", member, "; ".join(differs))

    def declared(self, client: int, name: str, value: float) -> None:
        """The first claim of a member about its data; later claims are compared with it."""
        self._write("declared", {"member": self._name(client), "criterion": name, "value": value})

    def repeated(self, text: str) -> None:
        """Too few members can be reached: they are asked again."""
        self._alert("repeated", {"reason": text})

    def ended(self, error: BaseException | None, *, asked: bool = False) -> None:
        """The run ends: finished, failed, or stopped on request, which is no alert."""
        if error is None:
            self._alert("finished", {})
        elif asked:
            self._write("stopped", {})
        else:
            self._alert("failed", {"reason": plain(_why(error))[:MAX_REASON]})

    def round_done(self, progress: Progress) -> None:
        """A round has ended: its result, its refusals, and whether the model stayed as it was."""
        record = progress.record
        where = {
            "method": progress.method,
            "seed": progress.seed,
            "round": record.round_num,
            "of": progress.rounds,
        }
        facts: dict[str, object] = dict(where)
        shown = record.report or record.local
        if shown:
            facts["quality"] = float(shown.overall()[0])
        timed = zip(record.client_ids, record.seconds.tolist(), strict=True)
        facts["seconds"] = {self._name(client): seconds for client, seconds in timed}
        self._write("round", facts)
        for refusal in record.refusals:
            self._refused(refusal, where)
        if record.kept:  # the round was rejected, or no update could be used
            self._alert("void", {**where, "reason": record.kept.sentence})
        self._present = set(record.client_ids)
        self._missed = {refusal.client_id for refusal in record.refusals} | (
            self._missed - self._present
        )

    def _refused(self, refusal: Refusal, where: Mapping[str, object]) -> None:
        client = refusal.client_id
        facts = {**where, "member": self._name(client), "reason": refusal.reason}
        if client in self._present:
            self._alert("lost", facts)
        elif refusal.kind != "not connected":
            self._alert("refused", facts)
        elif client in self._missed:
            self._write("absent", facts)  # an alert was sent when it was first absent
        else:
            self._alert("absent", facts)

    def _name(self, client: int) -> str:
        return self.names[client] if 0 <= client < len(self.names) else str(client)

    def _write(self, kind: str, facts: dict[str, object]) -> str:
        time = datetime.now().astimezone().isoformat(timespec="seconds")
        # Escapes what is not ASCII
        line = json.dumps({"time": time, "event": kind, **facts}) + "\n"
        try:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:  # a full disk must not keep an alert back
            log.error("%s: cannot be written to: %s", self.file, error)
        return line

    def _alert(self, kind: str, facts: dict[str, object]) -> None:
        line = self._write(kind, facts)
        if not self.command:
            return
        try:
            subprocess.run(
                self.command, shell=True, input=line, text=True, timeout=COMMAND_SECONDS, check=True
            )
        except (
            OSError,
            subprocess.SubprocessError,
        ) as error:  # a broken alert must not end the run
            log.error("the alert command failed: %s", error)


def _why(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return "the run's process was terminated; a SuperLink that ends does that"
    return str(error)
