"""Real processes on loopback: unpatched Flower, nginx, three sites, a coordinator and a hostile bundle."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
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
pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]
FLOWER = {
    "flower-superlink": "from flwr.superlink.cli import flower_superlink as main; main()",
    "flower-supernode": "from flwr.supernode.cli import flower_supernode as main; main()",
    "flwr": "from flwr.cli.app import app as main; main()",
    "clientwise-consortium": "from clientwise_consortium.command import main; sys.exit(main())",
}
HOSTILE = """import sys
print(sys.argv[0], file=open({marker!r}, 'a'))
from flwr.clientapp import ClientApp
app = ClientApp()
"""


class Processes:
    """The parties as processes, with logs in a folder."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
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
        }

    def start(self, name: str, command: str, *arguments: str, key: str | None = None) -> None:
        environment = dict(self.environment)
        if key is not None:
            environment["CREDENTIALS_DIRECTORY"] = str(self.credentials(key))
        with (self.folder / "logs" / name).open("ab") as log:
            self.running[name] = subprocess.Popen(
                python(command, *arguments),
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
        )
        self.wait(lambda: "Uvicorn running" in self.log("link"), "the SuperLink")

    def start_nginx(self) -> None:
        """The shipped file, with this test's addresses."""
        command = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ]
        command += ["-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-keyout", "nginx.key"]
        command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", "nginx.crt"]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)
        text = shipped("nginx.conf").read_text()
        self.door = free_port()
        for old, new in (
            ("10.77.0.1:443", f"127.0.0.1:{self.door}"),
            ("/etc/nginx/clientwise", str(self.folder / "nginx")),
            ("127.0.0.1:8000", f"127.0.0.1:{self.link}"),
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
                [str(NGINX), "-p", str(self.folder), "-e", "error.log", "-c", "nginx.conf"],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.wait(lambda: self.status("GET", "/") == 404, "nginx")

    def status(self, method: str, path: str) -> int:
        """What nginx says to a request; 0 where it does not listen yet."""
        context = ssl.create_default_context(cafile=self.folder / "nginx.crt")
        url = f"https://127.0.0.1:{self.door}{path}"
        request = urllib.request.Request(url, method=method, data=b"" if method == "POST" else None)
        try:
            return int(urllib.request.urlopen(request, context=context, timeout=5).status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def start_site(self, name: str) -> None:
        port = free_port()
        door = ("--insecure", "--superlink", f"127.0.0.1:{self.link}")
        if "nginx" in self.running:
            door = ("--root-certificates", "nginx.crt", "--superlink", f"127.0.0.1:{self.door}")
        self.start(
            f"supernode-{name}",
            *("flower-supernode", "--isolation", "process", "--host", "127.0.0.1"),
            *("--port", str(port), *door),
            *("--superexec-auth-secret-file", "secret"),
        )
        settings = self.federation.settings(name, runtime=f"127.0.0.1:{port}")
        path = self.folder / f"{name}-node.toml"
        path.write_text(tomli_w.dumps(settings.model_dump(mode="json")))
        self.wait(lambda: "Uvicorn running" in self.log(f"supernode-{name}"), name)
        self.start_node(name)

    def start_node(self, name: str) -> None:
        path = self.folder / f"{name}-node.toml"
        self.start(f"node-{name}", "clientwise-consortium", "node", str(path), key=name)

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
        self.start("server", "clientwise-consortium", "server", str(path), key="coordinator")

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
        done = subprocess.run(
            python("flwr", "run", "app", "here"),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )
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
            time.sleep(0.5)

    def who_ran_the_bundle(self) -> set[str]:
        """`flwr run` imports the app that it sends, in the account of who types it. No service does."""
        return set(self.marker.read_text().split())

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
    started: list[Processes] = []

    def begin(**changes: object) -> Processes:
        found = Processes(Federation(tmp_path, keys, **changes))
        started.append(found)
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


def test_a_run_in_which_a_site_and_the_coordinator_are_killed(
    start: Callable[..., Processes],
) -> None:
    parties = start(rounds=4)
    parties.wait(lambda: parties.rounds() == [1], "round 1")
    parties.kill("node-north")
    parties.start_node("north")
    parties.wait(lambda: 2 in parties.rounds(), "round 2")
    parties.kill("server")
    parties.start_server()
    parties.submit()
    parties.wait(lambda: 4 in parties.rounds(), "round 4", seconds=400)
    assert parties.who_ran_the_bundle() == {"flwr"}
    federation = parties.federation
    signers = federation.keys.signers
    coordinator = public_keys(signers, "clientwise-coordinator")["coordinator"]
    members = public_keys(signers, "clientwise-member")
    record = parties.folder / "run-record"
    assert verify(record, federation.experiment, coordinator, members, federation.heads()) == []


def test_a_local_stranger_gets_no_task(start: Callable[..., Processes]) -> None:
    """Who can reach the SuperLink's port, but has not the services' shared secret."""
    parties = start(rounds=1)
    asked = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP, TaskType.CLIENT_APP])
    headers = {
        "content-type": "application/protobuf",
        "accept": "application/protobuf",
        "flwr-package-name": "flwr",
        "flwr-package-version": package_version,
        "flwr-component-name": "stranger",
    }
    url = f"http://127.0.0.1:{parties.link}/v1/runtime/acquire-task"
    request = urllib.request.Request(url, asked.SerializeToString(), headers, method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    assert refused.value.code == 401


def test_masked_sums(start: Callable[..., Processes]) -> None:
    parties = start(masked=True, rounds=2)
    parties.wait(lambda: 2 in parties.rounds(), "round 2")
    lines = [line["body"] for line in read(parties.folder / "run-record" / LINES)]
    assert [line["kept"] for line in lines[1:]] == [None, None]
    if NGINX is not None:  # the doors that the guide checks
        assert parties.status("POST", "/v1/control/start-run") == 404
        assert parties.status("POST", "/v1/runtime/acquire-task") == 404
        assert parties.status("GET", "/v1/fleet/pull-messages") == 403
        assert parties.status("POST", "/v1/fleet/pull-messages/../../runtime/acquire-task") == 404
    assert parties.who_ran_the_bundle() == {"flwr"}
