"""The parties as processes: unpatched Flower, nginx, three sites and a coordinator, each in a network namespace.

All are forked from one process that has imported everything: to import Flower and torch takes a core for seconds, and
a dozen processes are started, some of them again and again.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import tomli_w

from clientwise_consortium.keys import public_keys
from clientwise_consortium.new import shipped
from clientwise_consortium.record import LINES, read
from clientwise_consortium.verify import rounds, verify
from conftest import NAMES
from federation import Federation

LIBC = ctypes.CDLL(None, use_errno=True)
DIE_WITH_PARENT = 1  # prctl: PR_SET_PDEATHSIG
NEW_NETWORK = 0x40000000  # setns: CLONE_NEWNET
MAINS = {
    "flower-superlink": ("flwr.superlink.cli", "flower_superlink"),
    "flower-supernode": ("flwr.supernode.cli", "flower_supernode"),
    "flwr": ("flwr.cli.app", "app"),
    "clientwise-consortium": ("clientwise_consortium.command", "main"),
    "hostile-member": ("hostile", "member"),
    "hostile-coordinator": ("hostile", "coordinator"),
    "hostile-mailbox": ("hostile", "mailbox"),
}
PARTS = ["clientwise_consortium.node", "clientwise_consortium.server"]
ENVIRONMENT = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}
DOOR = "10.77.0.1"  # the coordinator's address, as in the shipped nginx.conf
LINK, RUNTIME = 8000, 9094  # the ports of the units
HIDDEN = 8001  # the SuperLink's, where a hostile mailbox has its own
APP = """import sys
print(sys.argv[0], file=open({marker!r}, 'a'))
from flwr.clientapp import ClientApp
app = ClientApp()
"""


def why_not() -> str:
    """Why there can be no such run here; "": there can."""
    missing = [one for one in ("ip", "nginx", "openssl", "curl") if not shutil.which(one)]
    if missing:
        return f"not installed: {', '.join(missing)}"
    probe = f"cwprobe{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    if done.returncode:
        return f"this account may make no network namespace: {done.stderr.strip()}"
    return ""


@contextmanager
def imported() -> Iterator[Any]:
    """Start the process that all others are forked from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module for module, _ in MAINS.values()] + PARTS)
    path = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
    before = dict(os.environ)
    os.environ.update({**ENVIRONMENT, "PYTHONPATH": path})
    forkserver.ensure_running()
    os.environ.clear()
    os.environ.update(before)
    yield context


def become(
    command: str, arguments: list[str], namespace: str, log: str, more: dict[str, str]
) -> None:
    """A new process goes to its namespace and runs a command."""
    LIBC.prctl(DIE_WITH_PARENT, signal.SIGKILL)
    with open(f"/run/netns/{namespace}") as file:
        if LIBC.setns(file.fileno(), NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(more.pop("PWD"))
    os.environ.update(more)
    sys.argv = [command, *arguments]
    module, name = MAINS[command]
    sys.exit(getattr(importlib.import_module(module), name)())


class Network:
    """A namespace for each party, joined by a bridge in one of their own."""

    def __init__(self, label: str) -> None:
        hub = f"cw{os.getpid()}{label}"
        self.names = {"hub": hub}
        commands = [f"netns add {hub}", f"-n {hub} link add br0 type bridge"]
        commands += [f"-n {hub} link set br0 up"]
        for number, party in enumerate(["coordinator", *NAMES], 1):
            own = self.names[party] = f"{hub}{party}"
            commands += [
                f"netns add {own}",
                f"-n {hub} link add v{number} type veth peer name eth0 netns {own}",
                f"-n {hub} link set v{number} master br0 up",
                f"-n {own} addr add 10.77.0.{number}/16 dev eth0",
                f"-n {own} link set eth0 up",
                f"-n {own} link set lo up",
            ]
        for command in commands:
            subprocess.run(["ip", *command.split()], check=True, capture_output=True)

    def end(self) -> None:
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


class Processes:
    """All parties of a federation, in a folder.

    Args:
        federation: their files.
        context: from `imported`.
        label: of the network.
        plan: what hostile parties do, by round; "mailbox": what the mailbox does.
    """

    def __init__(
        self, federation: Federation, context: Any, label: str, plan: dict[str, Any]
    ) -> None:
        self.federation = federation
        self.folder = federation.folder
        self.plan = plan
        self.deaths: list[str] = []  # of processes that were started again
        self._context = context
        self._network = Network(label)
        self._running: dict[str, Any] = {}
        self._nginx: subprocess.Popen[bytes] | None = None
        self._begun = time.monotonic()
        self._link = HIDDEN if "mailbox" in plan else LINK
        (self.folder / "logs").mkdir()
        (self.folder / "secret").write_text("s" * 64)
        self.marker = self.folder / "PWNED"
        self._environment = {
            "FLWR_HOME": str(self.folder / "home"),
            "HOSTILE": json.dumps(plan),
            "PWD": str(self.folder),
        }

    def begin(self) -> None:
        """Start everything, and the run."""
        self._write_settings()
        self.start("link")
        self.wait(lambda: "Uvicorn running" in self.log("link"), "the SuperLink")
        if "mailbox" in self.plan:
            self.start("mailbox")
        self._start_nginx()
        for name in NAMES:
            self.start_site(name)
        self.start_server()

    def start(self, name: str) -> None:
        """Start a process by its name: link, mailbox, server, supernode-SITE or node-SITE."""
        role, _, site = name.partition("-")
        party = site or "coordinator"
        secret = ("--superexec-auth-secret-file", "secret")
        process = ("--isolation", "process", "--host", "127.0.0.1", *secret)
        command, arguments = {
            "link": ("flower-superlink", ["--insecure", *process, "--port", str(self._link)]),
            "supernode": (
                "flower-supernode",
                [
                    *("--root-certificates", "nginx.crt", "--superlink", f"{DOOR}:443"),
                    *(*process, "--port", str(RUNTIME)),
                ],
            ),
            "mailbox": ("hostile-mailbox", [str(LINK), str(HIDDEN)]),
            "node": ("hostile-member", ["node", f"{site}-node.toml"]),
            "server": ("hostile-coordinator", ["server", "server.toml"]),
            "flwr": ("flwr", ["run", "app", "here"]),
        }[role]
        if not self.plan and role in ("node", "server"):
            command = "clientwise-consortium"
        more = {**self._environment, "PARTY": party}
        if role in ("node", "server"):
            more["CREDENTIALS_DIRECTORY"] = str(self._credentials(party))
        where = (self._network.names[party], str(self.folder / "logs" / name), more)
        made = self._context.Process(target=become, args=(command, arguments, *where), daemon=True)
        made.start()
        self._running[name] = made

    def start_site(self, name: str) -> None:
        """A site's machine: Flower's service and ours."""
        self.start(f"supernode-{name}")
        self.start(f"node-{name}")

    def start_server(self) -> None:
        """The coordinator's service and `flwr run`."""
        self.start("server")
        self.start("flwr")
        done = self._running.pop("flwr")
        done.join()
        assert done.exitcode == 0, self.logs()

    def kill(self, name: str) -> None:
        made = self._running.pop(name)
        made.kill()
        made.join()

    def end(self) -> None:
        for name in list(self._running):
            self.kill(name)
        if self._nginx is not None:
            self._nginx.kill()
            self._nginx.wait()
        self._network.end()

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 300) -> None:
        """Wait, and start again what dies: a site's service with Flower's, as its machine would, and the server."""
        deadline = time.monotonic() + seconds
        while not condition():
            ended = [name for name, made in self._running.items() if made.exitcode]
            for name in ended:
                if self._running[name].exitcode != -signal.SIGKILL:
                    raise AssertionError(f"{name} ended\n{self.logs()}")
                self._start_again(name)
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not in {seconds} s\n{self.logs()}")
            time.sleep(0.1)
        print(f"{time.monotonic() - self._begun:6.1f} s: {what}")

    def _start_again(self, name: str) -> None:
        print(f"{time.monotonic() - self._begun:6.1f} s: {name} was killed")
        self.deaths.append(name)
        if name == "server":
            self.start_server()
        else:
            _, _, site = name.partition("-")
            self.kill(f"supernode-{site}")
            self.start_site(site)

    def ends(self, seconds: float = 300) -> None:
        """Wait until the server has done its work."""
        self.wait(lambda: self._running["server"].exitcode == 0, "the end", seconds)

    def at(self, party: str, command: list[str]) -> subprocess.CompletedProcess[str]:
        """A command at a party, after which it goes on."""
        within = ["ip", "netns", "exec", self._network.names[party]]
        return subprocess.run([*within, *command], cwd=self.folder, capture_output=True, text=True)

    def status(self, method: str, path: str) -> int:
        """What nginx says to a request of a site; 0 where it does not listen yet."""
        command = ["curl", "-s", "--path-as-is", "--cacert", "nginx.crt", "-o", "/dev/null"]
        command += ["-w", "%{http_code}", "-X", method, f"https://{DOOR}{path}"]
        return int(self.at("north", command).stdout)

    def log(self, name: str) -> str:
        path = self.folder / "logs" / name
        return path.read_text(errors="replace") if path.exists() else ""

    def logs(self) -> str:
        files = sorted((self.folder / "logs").iterdir())
        return "\n".join(f"== {file.name}\n{self.log(file.name)[-3000:]}" for file in files)

    def who_ran_the_bundle(self) -> set[str]:
        """`flwr run` imports the app that it sends, in the account of who types it. No service does."""
        return set(self.marker.read_text().split())

    def lines(self) -> list[dict[str, Any]]:
        """The rounds on record."""
        path = self.folder / "run-record" / LINES
        found = [line["body"] for line in read(path)] if path.exists() else []
        return [one for one in found if "round" in one]

    def used(self, number: int) -> set[str]:
        """Whose updates a round used."""
        (rows,) = [
            rows for body, rows in rounds(self.folder / "run-record") if body["round"] == number
        ]
        return set(rows)

    def answers(self, site: str) -> dict[str, list[str]]:
        """The digests of a site's answers, by question: the question is written first."""
        query = "SELECT event, question, facts FROM events ORDER BY number"
        found: dict[str, list[str]] = {}
        with closing(sqlite3.connect(self.folder / site / "ledger.db")) as database:
            for event, question, facts in database.execute(query):
                if event in ("asked", "repeated"):
                    last = found.setdefault(question, [])
                if event == "answered":
                    last.append(json.loads(facts)["sha256"])
        return found

    def verified(self) -> list[str]:
        """The faults of the record, given the heads of all sites."""
        signers = self.federation.keys.signers
        coordinator = public_keys(signers, "clientwise-coordinator")["coordinator"]
        members, heads = self.federation.members, self.federation.heads()
        record = self.folder / "run-record"
        return verify(record, self.federation.experiment, coordinator, members, heads)

    def refusals(self, site: str) -> list[str]:
        """Why a site refused, by its ledger."""
        query = "SELECT facts FROM events WHERE event = 'refused' ORDER BY number"
        with closing(sqlite3.connect(self.folder / site / "ledger.db")) as database:
            return [json.loads(facts)["reason"] for (facts,) in database.execute(query)]

    def _write_settings(self) -> None:
        for name in NAMES:
            settings = self.federation.settings(name, runtime=f"127.0.0.1:{RUNTIME}")
            text = tomli_w.dumps(settings.model_dump(mode="json"))
            (self.folder / f"{name}-node.toml").write_text(text)
        table = {
            "signers": str(self.federation.keys.signers),
            "experiment": str(self.federation.experiment),
            "run": str(self.folder / "run"),
            "server_data": str(self.folder / "server.npz"),
            "runtime": f"127.0.0.1:{self._link}",
        }
        (self.folder / "server.toml").write_text(tomli_w.dumps(table))
        app = self.folder / "app" / "hostile_app"
        app.mkdir(parents=True)
        for name in ("__init__", "client_app", "server_app"):
            (app / f"{name}.py").write_text(APP.format(marker=str(self.marker)))
        parts = {
            "serverapp": "hostile_app.server_app:app",
            "clientapp": "hostile_app.client_app:app",
        }
        project = {
            "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
            "project": {"name": "hostile-app", "version": "1.0.0", "dependencies": []},
            "tool": {"flwr": {"app": {"publisher": "nobody", "components": parts}}},
        }
        (self.folder / "app" / "pyproject.toml").write_text(tomli_w.dumps(project))
        (self.folder / "home").mkdir()
        here = {"address": f"127.0.0.1:{self._link}", "insecure": True}
        connections = {"superlink": {"default": "here", "here": here}}
        (self.folder / "home" / "config.toml").write_text(tomli_w.dumps(connections))

    def _credentials(self, name: str) -> Path:
        """As systemd's LoadCredential would pass them."""
        folder = self.folder / "credentials" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "identity").write_bytes((self.federation.keys.folder / name).read_bytes())
        (folder / "runtime").write_bytes((self.folder / "secret").read_bytes())
        return folder

    def _start_nginx(self) -> None:
        """The shipped file, with a certificate of this test's."""
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
        command += f" -subj /CN={DOOR} -addext subjectAltName=IP:{DOOR}"
        command += " -keyout nginx.key -out nginx.crt"
        subprocess.run(command.split(), cwd=self.folder, check=True, capture_output=True)
        text = shipped("nginx.conf").read_text()
        assert f"listen {DOOR}:443 ssl" in text
        text = text.replace("/etc/nginx/clientwise", str(self.folder / "nginx"))
        paths = [f"{name}_temp_path {name};" for name in ("client_body", "proxy", "fastcgi")]
        paths += ["uwsgi_temp_path uwsgi;", "scgi_temp_path scgi;", "access_log access.log;"]
        # One process, which leaves no workers behind when it is killed
        head = "daemon off; master_process off; pid nginx.pid; error_log error.log; events {}"
        (self.folder / "nginx.conf").write_text(f"{head}\nhttp {{ {' '.join(paths)} {text} }}\n")
        within = ["ip", "netns", "exec", self._network.names["coordinator"]]
        command = f"nginx -p {self.folder} -e error.log -c nginx.conf"
        self._nginx = subprocess.Popen([*within, *command.split()])
        self.wait(lambda: self.status("GET", "/") == 404, "nginx")
