"""A real federation for tests: what `clientwise new` writes, with its own scripts, in real processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import tomli_w

import clientwise as cw

# The node's own `load`: at its nth call it does what the nth line of a file beside the data says.
MOODY = """
import os, time
from pathlib import Path
from clientwise.flower import OwnData, load_npz


def load(path: str) -> OwnData:
    own, moods = load_npz(path), Path(path + ".moods")
    mood, _, others = moods.read_text().partition("\\n") if moods.exists() else ("", "", "")
    if moods.exists():
        moods.write_text(others)
    if mood == "raise":
        raise OSError(f"disk full while reading {own.train[0][0].tolist()}")
    if mood == "nan":
        own.train[0][:] = 3e38  # finite, as data must be; what is computed from it is not
    if mood.startswith("sleep"):
        Path(path + ".pid").write_text(str(os.getpid()))
        time.sleep(float(mood.split()[1]))
    return own
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _read(path: Path) -> bytes:
    """Of a process that may have ended by now."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


class Federation:
    """An app in a folder, its SuperLink and its SuperNodes.

    `enter` gives the command that enters a place's network: the "link", where the SuperLink and its administrator are,
    the "server", where the proxy is, or a node's. With `proxy` the nodes reach nginx, and the SuperLink by it alone.
    """

    def __init__(
        self,
        folder: Path,
        names: list[str],
        *,
        host: str = "127.0.0.1",
        enter: Callable[[str], list[str]] = lambda place: [],
        proxy: bool = False,
    ) -> None:
        self.app, self.names, self._enter, self._proxy = folder / "app", names, enter, proxy
        self.state, self.logs = folder / "state", folder / "logs"
        self.run_folder = self.state / "run"
        self.logs.mkdir(parents=True)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = (
            os.environ
            | {
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "HOST": host,
                "PORT": str(free_port()),
                "STATE": str(self.state),
                "OMP_NUM_THREADS": "1",
                "DETACH": "1",
            }
            | ({"UPSTREAM": f"unix:{self.state / 'fleet.sock'}"} if proxy else {})
        )
        subprocess.run([sys.executable, "-m", "clientwise", "new", str(self.app)], check=True, capture_output=True)

    def configure(self, change: dict[str, Any], data: dict[str, Any] | None = None) -> None:
        """Change the app's experiment, and write the nodes' files: digits, or what `data` and its `partition` say."""
        from clientwise.flower import write_parts

        (self.app / "data.py").write_text(MOODY, encoding="utf-8")
        partition = {"name": "dirichlet", "clients": len(self.names), "concentration": 0.5}
        config = self.change({"flower": {"clients": self.names}})
        parts = write_parts(config | (data or {"data": "digits", "partition": partition}), self.app / "data")
        for part in parts:
            part.chmod(0o600)
        with numpy.load(parts[0]) as first, numpy.load(parts[-1]) as server:
            shape, classes = first["train_inputs"].shape[1:], 1 + int(server["report_targets"].max())
        self.change({"flower": {"input_shape": list(shape), "num_classes": classes}})
        self.change(change)

    def change(self, change: dict[str, Any]) -> dict[str, Any]:
        """Change the app's experiment; as it is then."""
        path = self.app / "federation" / "experiment.toml"
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        for key, value in change.items():
            table[key] = table[key] | value if isinstance(value, dict) and key in table else value
        path.write_text(tomli_w.dumps(table), encoding="utf-8")
        return table

    def run(self, command: list[str]) -> str:
        """Run a command to its end; what it printed."""
        done = self.attempt(command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def attempt(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, which may be a bad one."""
        return subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=180, check=False)

    def launch(self, name: str, command: list[str]) -> None:
        """Start what keeps running."""
        environment = self.environment | {"NODE_PORT": str(free_port())}
        with (self.logs / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def script(self, name: str, *arguments: object, place: str = "link") -> str:
        """Run one of the scripts to its end; what it printed."""
        return self.run(self.at(place, self.app / "deploy" / name, *arguments))

    def at(self, place: str, *command: object) -> list[str]:
        """A command, to be run in a place's network."""
        return [*self._enter(place), *map(str, command)]

    def log(self, name: str) -> str:
        """What a process has said so far."""
        return (self.logs / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it listens."""
        said = self.log("superlink").count("Uvicorn running") if (self.logs / "superlink.log").exists() else 0
        self.launch("superlink", [*self._enter("link"), str(self.app / "deploy" / "superlink.sh")])
        self.wait_for(lambda: self.log("superlink").count("Uvicorn running") > said, 120, "the SuperLink to listen")

    def start(self) -> None:
        """Certificates, the SuperLink, and a SuperNode with a registered key for every client."""
        self.script("certificates.sh")
        self.start_superlink()
        if self._proxy:
            self.start_door()
            self.start_proxy()
        self.script("agree.sh")
        for name in self.names:
            self.script("node-key.sh", name)
            self.register(name)
            self.start_node(name)

    def register(self, name: str, *options: str) -> None:
        """Let a node in, or renew its certificate; which goes back to the node."""
        self.script("register.sh", name, self.state / "keys" / f"{name}.csr", *options)
        shutil.copy(self.state / "members" / f"{name}.crt", self.state / "keys")

    def start_door(self) -> None:
        """The door of the SuperLink's network, as federation-fleet.service has it."""
        (self.state / "fleet.sock").unlink(missing_ok=True)
        door = ["systemd-socket-activate", "-l", str(self.state / "fleet.sock"), "/lib/systemd/systemd-socket-proxyd"]
        self.launch("door", [*self._enter("link"), *door, f"127.0.0.1:{self.environment['PORT']}"])
        self.wait_for((self.state / "fleet.sock").exists, 30, "the SuperLink's door")

    def start_proxy(self) -> None:
        """The nginx before it."""
        self.launch("proxy", [*self._enter("server"), str(self.app / "deploy" / "proxy.sh")])

    def kill_app(self, kind: str) -> None:
        """SIGKILL to what Flower runs: a "serverapp" or "clientapp" of this federation; it must be there."""
        mine = [
            int(folder.name)
            for folder in Path("/proc").glob("[0-9]*")
            if _read(folder / "cmdline").find(f"flwr-{kind}".encode()) >= 0
            and _read(folder / "environ").find(str(self.state).encode()) >= 0
        ]
        assert mine, f"no {kind} runs"
        for pid in mine:
            os.kill(pid, signal.SIGKILL)

    def wait_for_nodes(self) -> None:
        """Until all of them are connected."""
        online = len(self.names)
        self.wait_for(lambda: self.script("watch.sh").count("online") == online, 180, "the nodes to connect")

    def start_node(self, name: str) -> None:
        """Start a client's SuperNode."""
        data = str(self.app / "data" / f"{name}.npz")
        self.launch(name, [*self._enter(name), str(self.app / "deploy" / "supernode.sh"), name, data])

    def kill(self, name: str, *, children: bool = True) -> None:
        """SIGKILL, as a power cut does; with `children` also to all it started."""
        process = self._processes.pop(name)
        if children:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait(10)

    def end(self, name: str) -> None:
        """End a process politely."""
        process = self._processes.pop(name)
        process.terminate()
        process.wait(60)

    def has_ended(self, name: str) -> bool:
        """Whether a process ended by itself."""
        return self._processes[name].poll() is not None

    def stop(self) -> None:
        """End everything this federation started."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)

    def begin(self, data: str = "server") -> int:
        """Begin the run, or go on with it; Flower's number for it."""
        return int(re.findall(r"run (\d+)", self.script("start.sh", self.app / "data" / f"{data}.npz"))[-1])

    def set_moods(self, name: str, *moods: str) -> None:
        """What a node does when it is asked for the first time, the second ...: "", "raise", "nan" or "sleep 60"."""
        (self.app / "data" / f"{name}.npz.moods").write_text("\n".join(moods))

    def sleeper(self, name: str, seconds: float = 120) -> int:
        """The client process that sleeps right now."""
        path = self.app / "data" / f"{name}.npz.pid"
        self.wait_for(lambda: path.exists() and path.read_text() != "", seconds, f"{name} to be asked")
        pid = int(path.read_text())
        path.unlink()
        return pid

    def wait_for(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Until the condition holds; an error with everybody's last words when it does not in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                words = {path.name: path.read_text(errors="replace")[-1500:] for path in self.logs.iterdir()}
                raise AssertionError(f"waited {seconds} s in vain for {what}: {json.dumps(words, indent=1)}")
            time.sleep(0.5)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Ask the run's database; nothing where there is none yet."""
        try:
            with contextlib.closing(sqlite3.connect(f"file:{self.run_folder / 'run.sqlite'}?mode=ro", uri=True)) as one:
                return one.execute(sql).fetchall()
        except sqlite3.OperationalError:
            return []

    def rounds(self) -> int:
        """How many rounds are done."""
        return len(self.query("SELECT 1 FROM rounds"))

    def refused(self, round_num: int) -> dict[int, str]:
        """Who was left out of a round, and why."""
        rows = self.query(f"SELECT client, refusal FROM participants WHERE round_num = {round_num}")
        return {client: refusal for client, refusal in rows if refusal is not None}

    def weights(self, round_num: int) -> dict[int, float]:
        """Who was weighed how."""
        rows = self.query(f"SELECT client, weight FROM participants WHERE round_num = {round_num} AND refusal IS NULL")
        return dict(rows)

    def weights_here(self, round_num: int) -> dict[int, float]:
        """Who would be weighed how if the same experiment ran in this process."""
        experiment = cw.load(self.app / "federation" / "experiment.toml")
        local = cw.Run(cw.run(experiment, self.app.parent / "local"))
        return dict(local.query("SELECT client, weight FROM participants WHERE round_num = ?", round_num))
