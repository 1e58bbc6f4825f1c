"""A deployment on plain Flower: an unpatched SuperLink and SuperNodes as processes, with TLS and registered keys."""

from __future__ import annotations

import datetime
import ipaddress
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tomli_w

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import clientwise as cw
import processes
from clientwise.errors import NotBegunError
from clientwise.flower import write_parts

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1800)]
NAMES = ["north", "south", "west"]
CRITERIA = ["label_diversity", "dataset_size", "model_divergence"]
METHODS = [  # the loops of P2 and P3, which exchange several messages in a round
    {"name": "P2", "criteria": CRITERIA, "adjust": "first_improvement"},
    {"name": "P3", "criteria": ["server_performance"], "adapt_loss": "class_weights"},
]
APP = """from pathlib import Path

from clientwise.flower import {app}

app = {app}(Path(__file__).with_name("experiment.toml"))
"""


class Federation:
    """A Flower app in a folder, and the processes that serve it."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        self.out = folder / "run"
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.port = free_port()
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_HOME": str(folder / "home"),
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self._write_app(config)
        self._write_certificate()

    def _write_app(self, config: dict[str, Any]) -> None:
        package = self.folder / "app" / "federation"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "experiment.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
        for app in ("server_app", "client_app"):
            (package / f"{app}.py").write_text(APP.format(app=app), encoding="utf-8")
        components = {
            "serverapp": "federation.server_app:app",
            "clientapp": "federation.client_app:app",
        }
        run_config = {"out": str(self.out), "server-data": str(self.folder / "data" / "server.npz")}
        project = {
            "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
            "project": {"name": "federation", "version": "1.0.0", "dependencies": []},
            "tool": {"flwr": {"app": {"publisher": "test", "components": components}}},
        }
        project["tool"]["flwr"]["app"]["config"] = run_config  # type: ignore[index]
        file = self.folder / "app" / "pyproject.toml"
        file.write_text(tomli_w.dumps(project), encoding="utf-8")
        home = self.folder / "home"
        home.mkdir()
        link = {
            "address": f"127.0.0.1:{self.port}",
            "root-certificates": str(self.folder / "link.crt"),
        }
        connections = {"superlink": {"default": "here", "here": link}}
        (home / "config.toml").write_text(tomli_w.dumps(connections), encoding="utf-8")

    def _write_certificate(self) -> None:
        """A certificate that the SuperLink signed itself."""
        key = write_key(self.folder / "link.key", serialization.PrivateFormat.TraditionalOpenSSL)
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
        now = datetime.datetime.now(datetime.UTC)
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(here, critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA384())
        )
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        (self.folder / "link.crt").write_bytes(pem)

    def start_link(self) -> None:
        certificate = ["--ssl-certfile", "link.crt", "--ssl-keyfile", "link.key"]
        self._start(
            "link",
            *("flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--enable-supernode-auth", "--ssl-ca-certfile", "link.crt", *certificate),
        )
        self.wait_for(lambda: "Uvicorn running" in self.log("link"), 120, "the SuperLink")

    def start_node(self, name: str) -> None:
        """Register a node's key, and start its SuperNode."""
        key = write_key(self.folder / name, serialization.PrivateFormat.OpenSSH)
        public = self.folder / f"{name}.pub"
        public.write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
            )
        )
        self.run("flwr", "supernode", "register", str(public), "here", "--name", name)
        self._start(
            name,
            *("flower-supernode", "--superlink", f"127.0.0.1:{self.port}"),
            *("--root-certificates", "link.crt", "--auth-supernode-private-key", name),
            *("--port", str(free_port())),
            *("--node-config", f'data="{self.folder / "data" / f"{name}.npz"}"'),
        )

    def _start(self, name: str, *command: str) -> None:
        with (self.logs / name).open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=self.environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def run(self, *command: str) -> None:
        """Run a command to its end."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr + self.all_logs()

    def log(self, name: str) -> str:
        return (self.logs / name).read_text(encoding="utf-8", errors="replace")

    def all_logs(self) -> str:
        return "\n".join(self.log(path.name)[-2000:] for path in self.logs.iterdir())

    def wait_for(self, condition: Any, seconds: float, what: str) -> None:
        processes.wait_until(condition, seconds, what, self.all_logs)

    def is_finished(self) -> bool:
        try:
            return (self.out / "run.sqlite").exists() and cw.Run(self.out).finished
        except NotBegunError:
            return False

    def stop(self) -> None:
        for process in self._processes:
            os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def write_key(path: Path, form: serialization.PrivateFormat) -> ec.EllipticCurvePrivateKey:
    """A new private key."""
    key = ec.generate_private_key(ec.SECP384R1())
    nothing = serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, nothing))
    return key


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def running(folder: Path, config: dict[str, Any]) -> Iterator[Federation]:
    federation = Federation(folder, config)
    try:
        federation.start_link()
        for name in NAMES:
            federation.start_node(name)
        yield federation
    finally:
        federation.stop()


def weights(folder: Path) -> dict[tuple[str, int, int], float]:
    frame = cw.Run(folder).frame("weights")
    rows = frame[["method", "round", "client", "weight"]].itertuples(index=False)
    return {(method, number, client): weight for method, number, client, weight in rows}


def test_the_loops_of_the_papers_run_between_processes_as_here(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    tiny["partition"]["clients"] = len(NAMES)
    settings = {"clients": NAMES, "input_shape": [1, 8, 8], "num_classes": 10}
    config = tiny | {"federation": {}, "flower": settings, "methods": METHODS, "rounds": 2}
    write_parts(config, tmp_path / "data")
    deployed = {key: value for key, value in config.items() if key not in ("data", "partition")}
    with running(tmp_path, deployed) as federation:
        federation.run("flwr", "run", "app", "here")
        federation.wait_for(federation.is_finished, 400, "the run to finish")
    expected = weights(cw.run(config, tmp_path / "here", progress=False).folder)
    assert len(expected) == len(METHODS) * 2 * len(NAMES)
    assert weights(federation.out) == pytest.approx(expected, abs=1e-6)
