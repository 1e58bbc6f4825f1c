"""Real processes: unpatched Flower, nginx, three sites, a coordinator and a hostile bundle.

Each party has a network namespace of its own where this account may make them (root); elsewhere, all are on loopback.

Here, as processes: in masked rounds, a site that is killed after each phase, the coordinator killed, a coordinator that
changes the roster, gives one site another model or other sums, lowers noise, or asks twice, and a member that sends
random, 100-fold or earlier parts; in plain rounds, a site and the coordinator killed, and a mailbox that reads, drops,
reorders and duplicates. In one process, in `test_hostile.py`: a member's message given as another's, changed
messages, garbage, a coordinator that runs what was not approved, a ledger that was set back.
"""

from __future__ import annotations

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
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import tomli_w
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.version import package_version

from clientwise_consortium.keys import public_keys
from clientwise_consortium.new import shipped
from clientwise_consortium.record import LINES, read
from clientwise_consortium.verify import verify
from conftest import NAMES, Keys
from federation import Federation

NGINX = shutil.which("nginx")  # without it, the sites reach the SuperLink directly
NAMESPACES = shutil.which("ip") and os.geteuid() == 0
if NAMESPACES:  # root of a container may not make them
    probe = f"cwprobe{os.getpid()}"
    NAMESPACES = not subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]
FLOWER = {
    "flower-superlink": "from flwr.superlink.cli import flower_superlink as main; main()",
    "flower-supernode": "from flwr.supernode.cli import flower_supernode as main; main()",
    "flwr": "from flwr.cli.app import app as main; main()",
    "hostile-member": "from hostile import member as main; main()",
    "hostile-coordinator": "from hostile import coordinator as main; main()",
    "hostile-mailbox": "from hostile import mailbox as main; main()",
    "clientwise-consortium": "from clientwise_consortium.command import main; sys.exit(main())",
}
REACH = {"clients": NAMES, "input_shape": [4], "num_classes": 2, "reply_seconds": 12.0}
HOSTILE = """import sys
print(sys.argv[0], file=open({marker!r}, 'a'))
from flwr.clientapp import ClientApp
app = ClientApp()
"""


class Network:
    """A namespace for each party, joined by a bridge in one of their own. Without any, all share this machine's."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.door = "127.0.0.1"  # the coordinator's address

    def make(self) -> None:
        hub = f"cw{os.getpid()}"
        self.names["hub"] = hub
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
        self.door = "10.77.0.1"
        for command in commands:
            subprocess.run(["ip", *command.split()], check=True, capture_output=True)

    def end(self) -> None:
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def within(self, party: str) -> list[str]:
        """What a command of a party begins with."""
        return ["ip", "netns", "exec", self.names[party]] if self.names else []


class Processes:
    """The parties as processes, with logs in a folder.

    Args:
        federation: their files.
        network: where they are.
        plan: what hostile parties do, by round.
    """

    def __init__(self, federation: Federation, network: Network, plan: dict[str, str]) -> None:
        self.federation = federation
        self.network = network
        self.plan = plan
        self.folder = federation.folder
        (self.folder / "logs").mkdir()
        (self.folder / "secret").write_text("s" * 64)
        self.marker = self.folder / "PWNED"
        self.link = free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = os.environ | {
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "HOSTILE": json.dumps(plan),
            "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)]),
        }

    def start(
        self, name: str, command: str, *arguments: str, at: str, key: str | None = None
    ) -> None:
        environment = dict(self.environment)
        if key is not None:
            environment["CREDENTIALS_DIRECTORY"] = str(self.credentials(key))
        with (self.folder / "logs" / name).open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*self.network.within(at), *python(command, *arguments)],
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def credentials(self, name: str) -> Path:
        """As systemd's LoadCredential would pass them."""
        folder = self.folder / "credentials" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "identity").write_bytes((self.federation.keys.folder / name).read_bytes())
        (folder / "runtime").write_bytes((self.folder / "secret").read_bytes())
        return folder

    def start_link(self) -> None:
        self.start(
            "link",
            *("flower-superlink", "--insecure", "--isolation", "process", "--host", "127.0.0.1"),
            *("--port", str(self.link), "--superexec-auth-secret-file", "secret"),
            at="coordinator",
        )
        self.wait(lambda: "Uvicorn running" in self.log("link"), "the SuperLink")
        self.fleet = self.link  # where the sites' requests go
        if "all" in self.plan:
            self.fleet = free_port()
            ports = (str(self.fleet), str(self.link))
            self.start("mailbox", "hostile-mailbox", *ports, at="coordinator")

    def start_nginx(self) -> None:
        """The shipped file, with this test's addresses."""
        address = self.network.door
        command = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ]
        command += ["-nodes", "-days", "2", "-subj", f"/CN={address}", "-keyout", "nginx.key"]
        command += ["-addext", f"subjectAltName=IP:{address}", "-out", "nginx.crt"]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)
        text = shipped("nginx.conf").read_text()
        self.door = 443 if self.network.names else free_port()
        for old, new in (
            ("10.77.0.1:443", f"{address}:{self.door}"),
            ("/etc/nginx/clientwise", str(self.folder / "nginx")),
            ("127.0.0.1:8000", f"127.0.0.1:{self.fleet}"),
        ):
            assert old in text
            text = text.replace(old, new)
        paths = [f"{name}_temp_path {name};" for name in ("client_body", "proxy", "fastcgi")]
        paths += ["uwsgi_temp_path uwsgi;", "scgi_temp_path scgi;", "access_log access.log;"]
        http = f"http {{ {' '.join(paths)} {text} }}"
        head = "daemon off; pid nginx.pid; error_log error.log; events {}"
        (self.folder / "nginx.conf").write_text(f"{head}\n{http}\n")
        with (self.folder / "logs" / "nginx").open("ab") as log:
            self.running["nginx"] = subprocess.Popen(
                [
                    *self.network.within("coordinator"),
                    *(str(NGINX), "-p", str(self.folder), "-e", "error.log", "-c", "nginx.conf"),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.wait(lambda: self.status("GET", "/") == 404, "nginx")

    def status(self, method: str, path: str) -> int:
        """What nginx says to a request of a site; 0 where it does not listen yet."""
        url = f"https://{self.network.door}:{self.door}{path}"
        command = ["curl", "-s", "--path-as-is", "--cacert", "nginx.crt", "-o", "/dev/null"]
        command += ["-w", "%{http_code}", "-X", method, url]
        return int(self.at("north", command).stdout)

    def at(self, party: str, command: list[str]) -> subprocess.CompletedProcess[str]:
        """A command at a party, after which it goes on."""
        return subprocess.run(
            [*self.network.within(party), *command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )

    def start_site(self, name: str) -> None:
        port = free_port()
        door = ("--insecure", "--superlink", f"127.0.0.1:{self.fleet}")
        if "nginx" in self.running:
            address = f"{self.network.door}:{self.door}"
            door = ("--root-certificates", "nginx.crt", "--superlink", address)
        self.start(
            f"supernode-{name}",
            *("flower-supernode", "--isolation", "process", "--host", "127.0.0.1"),
            *("--port", str(port), *door),
            *("--superexec-auth-secret-file", "secret"),
            at=name,
        )
        settings = self.federation.settings(name, runtime=f"127.0.0.1:{port}")
        path = self.folder / f"{name}-node.toml"
        path.write_text(tomli_w.dumps(settings.model_dump(mode="json")))
        self.wait(lambda: "Uvicorn running" in self.log(f"supernode-{name}"), name)
        self.start_node(name)

    def start_node(self, name: str) -> None:
        path = self.folder / f"{name}-node.toml"
        is_hostile = name == "south" and self.plan
        command = "hostile-member" if is_hostile else "clientwise-consortium"
        self.start(f"node-{name}", command, "node", str(path), at=name, key=name)

    def start_server(self) -> None:
        table = {
            "signers": str(self.federation.keys.signers),
            "experiment": str(self.federation.experiment),
            "run": str(self.folder / "run"),
            "server_data": str(self.folder / "server.npz"),
            "runtime": f"127.0.0.1:{self.link}",
        }
        path = self.folder / "server.toml"
        path.write_text(tomli_w.dumps(table))
        command = "hostile-coordinator" if self.plan else "clientwise-consortium"
        self.start("server", command, "server", str(path), at="coordinator", key="coordinator")

    def submit(self) -> None:
        """`flwr run`, with an app whose code writes marker files wherever it is run."""
        app = self.folder / "app" / "hostile"
        app.mkdir(parents=True, exist_ok=True)
        for name in ("__init__", "client_app", "server_app"):
            (app / f"{name}.py").write_text(HOSTILE.format(marker=str(self.marker)))
        components = {"serverapp": "hostile.server_app:app", "clientapp": "hostile.client_app:app"}
        project = {
            "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
            "project": {"name": "hostile", "version": "1.0.0", "dependencies": []},
            "tool": {"flwr": {"app": {"publisher": "nobody", "components": components}}},
        }
        (self.folder / "app" / "pyproject.toml").write_text(tomli_w.dumps(project))
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        here = {"address": f"127.0.0.1:{self.link}", "insecure": True}
        connections = {"superlink": {"default": "here", "here": here}}
        (home / "config.toml").write_text(tomli_w.dumps(connections))
        done = self.at("coordinator", python("flwr", "run", "app", "here"))
        assert done.returncode == 0, done.stdout + done.stderr + self.logs()

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for name in list(self.running):
            self.kill(name)

    def log(self, name: str) -> str:
        return (self.folder / "logs" / name).read_text(errors="replace")

    def logs(self) -> str:
        files = sorted((self.folder / "logs").iterdir())
        return "\n".join(f"== {file.name}\n{self.log(file.name)[-3000:]}" for file in files)

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not in {seconds} s\n{self.logs()}")
            time.sleep(0.1)

    def who_ran_the_bundle(self) -> set[str]:
        """`flwr run` imports the app that it sends, in the account of who types it. No service does."""
        return set(self.marker.read_text().split())

    def has_done(self, number: int, step: str) -> bool:
        """Whether north has answered a step of a masked round."""
        path = self.federation.folder / "north" / "ledger.db"
        with closing(sqlite3.connect(path, timeout=60)) as database:
            query = "SELECT event, round, facts FROM events ORDER BY number"
            events = database.execute(query).fetchall()
        begun = [place for place, one in enumerate(events) if one[:2] == ("summed", number)]
        after = events[begun[0] :] if begun else []
        done = [json.loads(facts)["purpose"] for event, _, facts in after if event == "answered"]
        return step in done

    def next_round(self) -> int:
        """Wait until north begins another masked round; its number."""
        before = self.begun()
        self.wait(lambda: self.begun() > before, "another round")
        return self.begun()

    def begun(self) -> int:
        """The last masked round that north has begun."""
        path = self.federation.folder / "north" / "ledger.db"
        with closing(sqlite3.connect(path, timeout=60)) as database:
            query = "SELECT max(round) FROM events WHERE event = 'summed'"
            return int(database.execute(query).fetchone()[0] or 0)

    def rounds(self) -> list[int]:
        path = self.folder / "run-record" / LINES
        lines = read(path) if path.exists() else []
        return [line["body"]["round"] for line in lines if "round" in line["body"]]


def python(command: str, *arguments: str) -> list[str]:
    code = f"import sys; sys.argv[0] = {command!r}; {FLOWER[command]}"
    return [sys.executable, "-c", code, *arguments]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.fixture
def start(keys: Keys, tmp_path: Path) -> Iterator[Callable[..., Processes]]:
    network = Network()
    started: list[Processes] = []

    def begin(plan: dict[str, str] | None = None, **changes: object) -> Processes:
        if NAMESPACES:
            network.make()
        found = Processes(Federation(tmp_path, keys, **changes), network, plan or {})
        started.append(found)
        if changes.get("evaluation"):  # south approves exact results
            for name in NAMES:
                found.federation.approve(name, evaluations=20, cell=1 if name == "south" else 5)
        found.start_link()
        if NGINX is not None:
            found.start_nginx()
        for name in NAMES:
            found.start_site(name)
        found.start_server()
        found.submit()
        return found

    yield begin
    for one in started:
        one.stop()
    network.end()


def verified(parties: Processes) -> list[str]:
    federation = parties.federation
    coordinator = public_keys(federation.keys.signers, "clientwise-coordinator")["coordinator"]
    record = parties.folder / "run-record"
    heads = federation.heads()
    return verify(record, federation.experiment, coordinator, federation.members, heads)


def test_plain_rounds_over_a_curious_mailbox_while_parties_are_killed(
    start: Callable[..., Processes],
) -> None:
    """All updates have noise, and the results of two sites."""
    often = {"clients_every": 1}
    parties = start({"all": "disturb"}, rounds=5, flower=REACH, evaluation=often)
    asked = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP, TaskType.CLIENT_APP])
    (parties.folder / "asked").write_bytes(asked.SerializeToString())
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--data-binary", "@asked"]
    for name in ("content-type: application/protobuf", "accept: application/protobuf"):
        command += ["-H", name]
    for name, value in (("name", "flwr"), ("version", package_version)):
        command += ["-H", f"flwr-package-{name}: {value}"]
    command += ["-H", "flwr-component-name: stranger"]
    url = f"http://127.0.0.1:{parties.link}/v1/runtime/acquire-task"
    # A local stranger, who has not the services' shared secret
    assert parties.at("coordinator", [*command, url]).stdout == "401"
    if NGINX is not None and NAMESPACES:
        doors_are_closed(parties)
    parties.wait(lambda: 1 in parties.rounds(), "round 1")
    parties.kill("node-north")
    parties.start_node("north")
    parties.wait(lambda: 2 in parties.rounds(), "round 2")
    parties.kill("server")
    parties.start_server()
    parties.submit()
    parties.wait(lambda: 5 in parties.rounds(), "round 5", seconds=400)
    parties.wait(lambda: parties.running["server"].poll() is not None, "the end")
    assert parties.rounds() == [1, 2, 3, 4, 5]
    assert parties.who_ran_the_bundle() == {"flwr"}
    assert verified(parties) == []
    for name in NAMES:
        released = parties.federation.ledger(name).released()
        assert released["train"]["requests"] <= 10
        assert released["train"]["without_noise"] == 0
        bare = released.get("evaluate", {"without_noise": 0, "requests": 0})
        assert bare["without_noise"] == (bare["requests"] if name == "south" else 0)
    carried = (parties.folder / "read-by-the-mailbox").read_bytes()
    assert len(carried) > 20_000
    for word in (b"dataset_size", b"criterion", b"refused", b"ledger", b"sample_noise"):
        assert word not in carried


def doors_are_closed(parties: Processes) -> None:
    """The commands of the guide, at a site."""
    guide = (Path(__file__).parents[1] / "docs" / "guide.md").read_text()
    (block,) = re.findall(r"<!-- doors -->\n```\n(.*?)```", guide, re.DOTALL)
    answers = []
    for line in block.replace("coordinator.clientwise", parties.network.door).splitlines():
        done = parties.at("north", ["sh", "-c", line])
        answers.append(done.stdout.strip() if done.returncode == 0 else "fails")
    *closed, last = answers
    assert closed == ["404", "404", "404", "fails", "403"]
    assert last[0] == "4", last
    assert parties.status("POST", "/v1/fleet/pull-messages/../../runtime/acquire-task") == 404


def test_masked_rounds_in_which_every_party_misbehaves(start: Callable[..., Processes]) -> None:
    """First every deed, a round each; then kills, whose rounds are as many as Flower takes to notice."""
    plan = {str(number): deed for number, deed in enumerate(DEEDS, 1)}
    honest = len(DEEDS) + 1
    parties = start(plan, masked=True, rounds=60, flower=REACH)
    parties.wait(lambda: honest in parties.rounds(), "an honest round", seconds=400)
    killed = []
    for step in ("key", "criteria", "update", "coordinator"):
        number = parties.next_round()
        name = "server" if step == "coordinator" else "node-north"
        until = "criteria" if step == "coordinator" else step
        parties.wait(lambda n=number, s=until: parties.has_done(n, s), f"{until} of {number}")
        time.sleep(0.7)  # in which the reply is sent; else, Flower holds the task for a minute
        parties.kill(name)
        if name == "server":
            parties.start_server()
            parties.submit()
        else:
            parties.start_node("north")
        parties.wait(lambda n=number: n in parties.rounds(), f"round {number}")
        killed += [number] if step != "update" else []  # after it, the round may be whole
    last = parties.next_round()
    parties.wait(lambda: last in parties.rounds(), "the last round")
    parties.kill("server")
    lines = [line["body"] for line in read(parties.folder / "run-record" / LINES)][1:]
    for line in lines:  # used, or void with its reason
        assert (line["kept"] is None) != ("void" in str(line["remarks"])), line
    used = {line["round"] for line in lines if line["kept"] is None}
    assert {honest, last} <= used
    assert not used & {*range(1, honest), *killed}
    for line, (deed, reason) in zip(lines, DEEDS.items(), strict=False):
        assert reason in str(line["remarks"]), deed
    assert verified(parties) == []
    for name in NAMES:
        assert parties.federation.events(name).count("summed") <= len(lines) + 1
        assert parties.federation.ledger(name).released()["train"]["requests"] <= len(lines) + 1
    assert parties.who_ran_the_bundle() == {"flwr"}


DEEDS = {  # what the coordinator or a member does, and a word of the reason why the round is void
    "roster": "the roster must have every member",
    "broadcast": "sums to",
    "sums": "sum to",
    "noise": "those of no method that was approved",
    "twice": "no round was begun",
    "random": "possible",
    "hundredfold": "possible",
    "replayed": "possible",
}
