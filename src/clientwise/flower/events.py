"""What happens in a federation, for whoever has to know: a line of JSON each, and a command for what needs a person."""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from ..experiment.lanes import Progress
from .engine import NOT_CONNECTED
from .wire import RUNS_HERE

log = logging.getLogger("flwr.clientwise")
COMMAND_SECONDS = 60  # for a command that does not end


@dataclass
class Events:
    """Events of a run, at the server's time. Those that need a person are also given to `command`, on its input."""

    file: Path
    names: Sequence[str]  # of the clients
    command: str = ""  # a line for the shell
    _present: set[int] = field(default_factory=set)  # who took part in the last round
    _missed: set[int] = field(default_factory=set)  # who was missing when it was last asked
    _versions: dict[int, Mapping[str, str]] = field(default_factory=dict)  # what every member runs

    def begun(self, resumed: bool, left: Sequence[str] = ()) -> None:
        """A run begins, or goes on; with these members."""
        members = [name for name in self.names if name not in left]
        self._write("begun", {"resumed": resumed, "members": members, "versions": RUNS_HERE})

    def versions(self, client: int, found: Mapping[str, str]) -> None:
        """What a member runs, once and whenever it changes; where it is not what runs here, the log says so too."""
        if self._versions.get(client) == found:
            return
        self._versions[client] = found
        differs = [f"{name} {one}, here {RUNS_HERE[name]}" for name, one in found.items() if one != RUNS_HERE[name]]
        self._write("versions", {"member": self._name(client), "versions": found, "differs": differs})
        if differs:
            log.warning("%s runs other versions: %s", self._name(client), "; ".join(differs))

    def ended(self, error: BaseException | None, *, asked: bool = False) -> None:
        """It ends: by itself, by an error, or because somebody asked for it, which needs nobody."""
        if error is None:
            self._alert("finished", {})
        elif asked:
            self._write("stopped", {})
        else:
            said = "its process was told to end: did the SuperLink?" if isinstance(error, SystemExit) else str(error)
            self._alert("failed", {"reason": said[:600]})

    def round_done(self, progress: Progress) -> None:
        """A round has ended: what it brought, and who or what was missing."""
        record, shown = progress.record, progress.record.report or progress.record.local
        where = {"method": progress.method, "seed": progress.seed, "round": record.round_num, "of": progress.rounds}
        late = zip(record.client_ids, record.seconds.tolist(), strict=True)
        quality = {"quality": float(shown.overall()[0])} if shown else {}
        self._write("round", {**where, **quality, "seconds": {self._name(client): one for client, one in late}})
        for refusal in record.refusals:
            facts = {**where, "member": self._name(refusal.client_id), "reason": refusal.reason}
            if refusal.client_id in self._present:
                self._alert("lost", facts)
            elif refusal.reason != NOT_CONNECTED:
                self._alert("refused", facts)
            elif refusal.client_id in self._missed:
                self._write("absent", facts)  # which has been told
            else:
                self._alert("absent", facts)
        for note in record.notes:
            if "stays" in note:  # braked, or nothing that could be used
                self._alert("void", {**where, "reason": note})
        self._present = set(record.client_ids)
        self._missed = {refusal.client_id for refusal in record.refusals} | (self._missed - self._present)

    def _name(self, client: int) -> str:
        return self.names[client] if 0 <= client < len(self.names) else str(client)

    def _write(self, kind: str, facts: dict[str, object]) -> str:
        time = datetime.now().astimezone().isoformat(timespec="seconds")
        line = json.dumps({"time": time, "event": kind, **facts}) + "\n"
        with self.file.open("a", encoding="utf-8") as file:
            file.write(line)
        return line

    def _alert(self, kind: str, facts: dict[str, object]) -> None:
        line = self._write(kind, facts)
        if not self.command:
            return
        try:
            subprocess.run(self.command, shell=True, input=line, text=True, timeout=COMMAND_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError) as error:  # a bell that is broken must not end the run
            log.error("the alert command failed: %s", error)
