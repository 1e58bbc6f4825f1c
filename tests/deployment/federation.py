"""A real federation for tests: the app and scripts that `clientwise new` writes, in real processes.

Time limits are those of an ordinary idle machine; a slower one gets more (`processes.pace`).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy
import pytest
import tomli_w

import clientwise as cw
import processes

# The node's own `load`: at its nth call it does what the nth line of the file NAME.npz.moods says.
MOODY = """
import os, time
from pathlib import Path
from clientwise.flower import OwnData, load_npz


def next_mood(moods: Path) -> str:
    if not moods.exists() or "AGREEING" in os.environ:
        return ""
    mood, _, others = moods.read_text().partition("\\n")
    moods.write_text(others)
    return mood


def load(path: str) -> OwnData:
    own = load_npz(path)
    mood = next_mood(Path(path + ".moods"))
    if mood == "raise":
        raise OSError(f"disk full while reading {own.train[0][0].tolist()}")
    if mood == "nan":
        own.train[0][:] = 3e38  # finite, as data must be; what is computed from it is not
    if mood.startswith("sleep"):
        Path(path + ".pid").write_text(str(os.getpid()))
        time.sleep(float(mood.split()[1]))
    if mood == "hold":
        held = Path(path + ".held")
        held.touch()
        while held.exists():
            time.sleep(0.1)
    return own
"""
SENDING = "Sending: "  # a SuperNode's log, before it sends a reply

# Below the ports that Linux gives to outgoing connections, so that none of these takes one
# meanwhile.
_PORTS = random.Random(os.getpid()).sample(range(20_000, 32_000), 2_000)


def free_port() -> int:
    """A port that nothing listens at, another one at every call."""
    while True:
        port = _PORTS.pop()
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


def require(programs: Iterable[str] = (), *, root: bool = False) -> None:
    """Skip the test where these are missing; fail with CLIENTWISE_REQUIRE_ALL, as in CI."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [name for name in programs if not shutil.which(name, path=path)]
    if root and os.geteuid() != 0:
        missing.append("root")
    if not missing:
        return
    reason = f"needs {', '.join(missing)}"
    if os.environ.get("CLIENTWISE_REQUIRE_ALL"):
        pytest.fail(reason)
    pytest.skip(reason)


def _read(path: Path) -> bytes:
    """A file of a process that may have ended by now."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


class Federation:
    """An app in a folder, its SuperLink and its SuperNodes.

    Args:
        folder: where everything is written.
        names: the clients.
        host: address at which nodes find the server.
        enter: the command that enters a place's network. Places are "link" (SuperLink and
            administrator), "server" (proxy), and the nodes' names.
        proxy: whether nodes reach the SuperLink through nginx.
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
        self.app = folder / "app"
        self.names = names
        self.state = folder / "state"
        self.logs = folder / "logs"
        self.run_folder = self.state / "run"
        self._enter = enter
        self._proxy = proxy
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.logs.mkdir(parents=True)
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOST": host,
            "PORT": str(free_port()),
            "STATE": str(self.state),
            "OMP_NUM_THREADS": "1",
            "DETACH": "1",
        }
        if proxy:
            self.environment["UPSTREAM"] = f"unix:{self.state / 'fleet.sock'}"
        subprocess.run(
            [sys.executable, "-m", "clientwise", "new", str(self.app)],
            check=True,
            capture_output=True,
        )

    def configure(self, change: dict[str, Any], data: dict[str, Any] | None = None) -> None:
        """Change the app's experiment and write the nodes' files: digits, or `data`."""
        from clientwise.flower import write_parts

        (self.app / "data.py").write_text(MOODY, encoding="utf-8")
        partition = {"name": "dirichlet", "clients": len(self.names), "concentration": 0.5}
        config = self.change({"flower": {"clients": self.names}})
        chosen = data or {"data": "digits", "partition": partition}
        parts = write_parts(config | chosen, self.app / "data")
        for part in parts:
            part.chmod(0o600)
        with numpy.load(parts[0]) as first, numpy.load(parts[-1]) as server:
            shape = first["train_inputs"].shape[1:]
            classes = 1 + int(server["report_targets"].max())
        self.change({"flower": {"input_shape": list(shape), "num_classes": classes}})
        # Without the template's noise, which differs from that of a run in this process.
        self.change({"training": {"epochs": 2, "batch_size": 20, "learning_rate": 0.1}})
        self.change({"model": {"name": "mlp", "hidden": [32]}} | change)

    def change(self, change: dict[str, Any]) -> dict[str, Any]:
        """Change the app's experiment; returns the changed one."""
        path = self.app / "federation" / "experiment.toml"
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        for key, value in change.items():
            before = table.get(key)
            # `training` is replaced as a whole: the template's noise would stay.
            if isinstance(value, dict) and isinstance(before, dict) and key != "training":
                table[key] = before | value
            else:
                table[key] = value
        path.write_text(tomli_w.dumps(table), encoding="utf-8")
        return table

    def run(self, command: list[str]) -> str:
        """Run a command, which must succeed; returns what it printed."""
        done = self.attempt(command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def attempt(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command, which may fail."""
        return subprocess.run(
            command, capture_output=True, text=True, env=self.environment, timeout=600, check=False
        )

    def launch(self, name: str, command: list[str]) -> None:
        """Start a process that keeps running."""
        environment = self.environment | {"NODE_PORT": str(free_port())}
        with (self.logs / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def script(self, name: str, *arguments: object, place: str = "link") -> str:
        """Run one of the scripts, which must succeed; returns what it printed."""
        return self.run(self.at(place, self.app / "deploy" / name, *arguments))

    def at(self, place: str, *command: object) -> list[str]:
        """A command, to be run in a place's network."""
        return [*self._enter(place), *map(str, command)]

    def log(self, name: str) -> str:
        """What a process has printed so far."""
        return (self.logs / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it listens."""
        (self.logs / "superlink.log").touch()
        before = self.log("superlink").count("Uvicorn running")
        self.launch("superlink", [*self._enter("link"), str(self.app / "deploy" / "superlink.sh")])
        self.wait_for(
            lambda: self.log("superlink").count("Uvicorn running") > before,
            120,
            "the SuperLink to listen",
        )

    def start(self) -> None:
        """Certificates, the SuperLink, and a SuperNode with a registered key for every client."""
        self.script("certificates.sh")
        self.start_superlink()
        if self._proxy:
            self.start_door()
            self.start_proxy()
        for name in self.names:
            self.script("node-key.sh", name)
            self.agree(name)
            self.register(name)
            self.start_node(name)

    def agree(self, *names: str) -> str:
        """Approve the app, by the operators of these nodes, or of all; what was printed."""
        usual = self.environment
        self.environment = usual | {"AGREEING": "1", "WHY": "the test says so"}
        said = ""
        for name in names or self.names:
            said += self.script("agree.sh", name, self.app / "data" / f"{name}.npz")
        self.environment = usual
        return said

    def register(self, name: str, *options: str) -> None:
        """Register a node, or renew its certificate, and copy the certificate to the node."""
        self.script("register.sh", name, self.state / "keys" / f"{name}.csr", *options)
        shutil.copy(self.state / "members" / f"{name}.crt", self.state / "keys")

    def start_door(self) -> None:
        """The socket into the SuperLink's network, as federation-fleet.service has it."""
        (self.state / "fleet.sock").unlink(missing_ok=True)
        socket_file = self.state / "fleet.sock"
        command = [
            "systemd-socket-activate",
            "-l",
            str(socket_file),
            "/lib/systemd/systemd-socket-proxyd",
        ]
        self.launch(
            "door", [*self._enter("link"), *command, f"127.0.0.1:{self.environment['PORT']}"]
        )
        self.wait_for(socket_file.exists, 30, "the SuperLink's socket")

    def start_proxy(self) -> None:
        """The nginx in front of the SuperLink."""
        self.launch("proxy", [*self._enter("server"), str(self.app / "deploy" / "proxy.sh")])

    def kill_app(self, kind: str) -> None:
        """SIGKILL to every "serverapp" or "clientapp" process here; there must be one."""
        assert self._kill_all(f"flwr-{kind}"), f"no {kind} runs"

    def _kill_all(self, command: str) -> int:
        """SIGKILL to this federation's processes with `command` in the command line; how many."""
        killed = 0
        state = str(self.state).encode()
        for folder in Path("/proc").glob("[0-9]*"):
            is_meant = command.encode() in _read(folder / "cmdline")
            if is_meant and state in _read(folder / "environ"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(folder.name), signal.SIGKILL)
                killed += 1
        return killed

    def wait_for_nodes(self, online: int | None = None) -> None:
        """Until `online` nodes are connected; all of them by default."""
        expected = len(self.names) if online is None else online
        self.wait_for(
            lambda: self.script("watch.sh").count(" online ") == expected,
            180,
            "the nodes to connect",
        )

    def start_node(self, name: str) -> None:
        """Start a client's SuperNode."""
        data = str(self.app / "data" / f"{name}.npz")
        self.launch(
            name, [*self._enter(name), str(self.app / "deploy" / "supernode.sh"), name, data]
        )

    def kill(self, name: str, *, children: bool = True) -> None:
        """SIGKILL, as a power cut does; with `children` also to all it started."""
        process = self._processes.pop(name)
        if children:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait(60)

    def send_signal(self, name: str, number: int) -> None:
        """Send a signal to a process and to all it started."""
        os.killpg(self._processes[name].pid, number)

    def end(self, name: str) -> None:
        """SIGTERM, and wait for the end."""
        process = self._processes.pop(name)
        process.terminate()
        process.wait(60 * processes.pace())

    def has_ended(self, name: str) -> bool:
        """Whether a process ended by itself."""
        return self._processes[name].poll() is not None

    def stop(self) -> None:
        """End everything this federation started."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
        self._kill_all("")  # apps of killed nodes, and log writers

    def begin(self, data: str = "server") -> int:
        """Start or resume the run; returns Flower's number for it."""
        said = self.script("start.sh", self.app / "data" / f"{data}.npz")
        return int(re.findall(r"run (\d+)", said)[-1])

    def set_moods(self, name: str, *moods: str) -> None:
        """What a node does at its first message, its second: "", "raise", "nan", "sleep 60", "hold"."""
        (self.app / "data" / f"{name}.npz.moods").write_text("\n".join(moods))

    def sleeper(self, name: str, seconds: float = 120) -> int:
        """The process id of the client app that sleeps right now."""
        path = self.app / "data" / f"{name}.npz.pid"
        self.wait_for(
            lambda: path.exists() and path.read_text() != "", seconds, f"{name} to be asked"
        )
        pid = int(path.read_text())
        path.unlink()
        return pid

    def wait_until_held(self, seconds: float) -> None:
        """Until every node has a message and holds it."""
        files = self._held_files()
        self.wait_for(lambda: all(path.exists() for path in files), seconds, "nodes to be asked")

    def release(self) -> None:
        """Let nodes go on that hold a message, and wait until each of them sends its reply."""
        sent = {name: self.log(name).count(SENDING) for name in self.names}
        for path in self._held_files():
            path.unlink()
        self.wait_for(
            lambda: all(self.log(name).count(SENDING) > sent[name] for name in self.names),
            120,
            "nodes to reply",
        )

    def _held_files(self) -> list[Path]:
        return [self.app / "data" / f"{name}.npz.held" for name in self.names]

    def wait_for(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Until the condition holds; an error with the end of every log if it does not in time."""
        processes.wait_until(condition, seconds, what, self._last_lines)

    def wait_for_rounds(self, count: int, seconds: float = 400) -> None:
        """Until so many rounds are done."""
        self.wait_for(lambda: self.rounds() >= count, seconds, f"round {count}")

    def wait_until_finished(self) -> None:
        """Until the run folder says that the run is finished."""
        self.wait_for(lambda: cw.Run(self.run_folder).finished, 60, "the run to be finished")

    def _last_lines(self) -> str:
        ends = {path.name: path.read_text(errors="replace")[-1500:] for path in self.logs.iterdir()}
        return json.dumps(ends, indent=1)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of the run's database; none where there is no database yet."""
        file = f"file:{self.run_folder / 'run.sqlite'}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(file, uri=True)) as database:
                return database.execute(sql).fetchall()
        except sqlite3.OperationalError:
            return []

    def rounds(self) -> int:
        """How many rounds are done."""
        return len(self.query("SELECT 1 FROM rounds"))

    def refused(self, round_num: int) -> dict[int, str]:
        """Refused clients of a round, with the reasons."""
        where = f"round_num = {round_num} AND refusal IS NOT NULL"
        return dict(self.query(f"SELECT client, refusal FROM participants WHERE {where}"))

    def weights(self, round_num: int) -> dict[int, float]:
        """Weights of a round's accepted clients."""
        where = f"round_num = {round_num} AND refusal IS NULL"
        return dict(self.query(f"SELECT client, weight FROM participants WHERE {where}"))

    def weights_here(self, round_num: int) -> dict[int, float]:
        """The weights of the same experiment, run in this process."""
        experiment = cw.load(self.app / "federation" / "experiment.toml")
        local = cw.Run(cw.run(experiment, self.app.parent / "local"))
        sql = "SELECT client, weight FROM participants WHERE round_num = ?"
        return dict(local.query(sql, round_num))
