"""The real nginx with the config of deploy/proxy.sh: revoked certificates, half-open connections."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from federation import free_port, require
from test_scripts import App

import processes

pytestmark = [pytest.mark.flower, pytest.mark.timeout(3600)]  # `make test-deploy` runs them
FLEET = "/v1/fleet/pull-messages"
HALF_OPEN = 1500
FIRST_BYTES = b"\x16\x03\x01\x02\x00\x01"  # of a TLS handshake that never goes on
LIMIT = 20  # connections of one address
# Opens half-open connections from one address, then calls the proxy from another one.
FLOOD = """
import socket, subprocess, sys
port = int(sys.argv[1])
held = []
for _ in range(100):
    try:
        one = socket.create_connection(("127.0.0.1", port), 10, source_address=("127.0.0.2", 0))
    except ConnectionRefusedError:
        continue
    one.sendall(bytes.fromhex(sys.argv[2]))
    held.append(one)
print(len(held), flush=True)
url = f"https://127.0.0.1:{port}"
for address in ("127.0.0.2", "127.0.0.3"):
    command = ["curl", "-sk", "-o", "/dev/null", "-w", "%{http_code} ", "--interface", address, url]
    subprocess.run(command, check=False)
"""


class SuperLink(http.server.BaseHTTPRequestHandler):
    """Answers every call of the fleet API."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


class Proxy:
    """An app's nginx in front of a server that answers, and its members' certificates."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.port = free_port()
        self.settings = {"PORT": str(self.port), "LINK_PORT": str(free_port())}
        self.settings["ROTATE_SECONDS"] = "1"
        self.script("certificates.sh")
        self._link = http.server.ThreadingHTTPServer(
            ("127.0.0.1", int(self.settings["LINK_PORT"])), SuperLink
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificates = app.state / "certificates"
        context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
        self._link.socket = context.wrap_socket(self._link.socket, server_side=True)
        threading.Thread(target=self._link.serve_forever, daemon=True).start()
        with (app.folder / "proxy.log").open("wb") as log:
            self._nginx = subprocess.Popen(
                [str(app.folder / "deploy" / "proxy.sh")],
                env={"PATH": os.environ["PATH"]} | self.settings,
                stdout=log,
                stderr=log,
            )
        processes.wait_until(lambda: self._listens(), 30, "nginx to listen", self.log)

    def script(self, name: str, *arguments: object) -> str:
        """Run a script, which must succeed; returns what it printed."""
        done = self.app.script(name, *arguments, **self.settings)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def register(self, name: str, *options: str) -> None:
        """Make a member's certificate and give it to the member."""
        keys = self.app.state / "keys"
        if not (keys / name).exists():
            self.script("node-key.sh", name)
        self.script("register.sh", name, keys / f"{name}.csr", *options)
        shutil.copy(self.app.state / "members" / f"{name}.crt", keys)

    def status(
        self, certificate: Path | None = None, key: Path | None = None, address: str = "127.0.0.1"
    ) -> str:
        """The HTTP status of a call from an address; 000 if there is no answer within ten seconds."""
        shown = [] if certificate is None else ["--cert", str(certificate), "--key", str(key)]
        seconds = str(10 * processes.pace())
        command = ["curl", "--silent", "--insecure", "--output", os.devnull, "--data", "x"]
        command += ["--max-time", seconds, "--write-out", "%{http_code}", *shown]
        command += ["--interface", address]
        url = f"https://127.0.0.1:{self.port}{FLEET}"
        return subprocess.run([*command, url], capture_output=True, text=True, check=False).stdout

    def status_of(self, name: str, address: str = "127.0.0.1") -> str:
        """The HTTP status of a member's call."""
        keys = self.app.state / "keys"
        return self.status(keys / f"{name}.crt", keys / f"{name}.pem", address)

    def log(self) -> str:
        """What nginx has printed."""
        return (self.app.folder / "proxy.log").read_text()

    def end(self) -> None:
        """Stop both."""
        self._nginx.terminate()
        self._nginx.wait(60)
        self._link.shutdown()
        self._link.server_close()

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    require(["nginx", "curl", "openssl", "ssh-keygen"])
    one = Proxy(App(tmp_path / "app"))
    try:
        yield one
    finally:
        one.end()


def test_a_revoked_certificate_opens_nothing(proxy: Proxy) -> None:
    for name in ("zurich", "zurich-west"):
        proxy.register(name)
        assert proxy.status_of(name) == "200"
    assert proxy.status() == "400"

    # A renewed certificate replaces the old one, which another machine may still hold.
    keys = proxy.app.state / "keys"
    old = keys / "old.crt"
    (keys / "zurich.crt").rename(old)
    proxy.register("zurich", "--renew")
    assert proxy.status(old, keys / "zurich.pem") == "200"
    proxy.script("revoke.sh", "zurich", "--old")
    refused = "the old certificate to be refused"
    processes.wait_until(lambda: proxy.status(old, keys / "zurich.pem") == "400", 30, refused)
    assert proxy.status_of("zurich") == "200"

    # A member leaves. The others stay, also one whose name begins alike, and after a renewal.
    proxy.script("revoke.sh", "zurich")
    refused = "the member to be refused"
    processes.wait_until(lambda: proxy.status_of("zurich") == "400", 30, refused)
    proxy.script("certificates.sh")
    proxy.script("revoke.sh")
    time.sleep(1)  # the proxy reads the list again
    assert proxy.status_of("zurich") == "400"
    assert proxy.status_of("zurich-west") == "200"
    assert "no certificate of bern" in proxy.app.script("revoke.sh", "bern").stdout


def test_the_access_log_is_compressed_when_it_is_large(proxy: Proxy) -> None:
    proxy.register("zurich")
    folder = proxy.app.state / "proxy"
    for number in range(70):
        (folder / f"access-20200101-{number:06}.log.gz").touch()
    assert proxy.status_of("zurich") == "200"
    log_file = folder / "access.log"
    processes.wait_until(lambda: b"CN=zurich" in log_file.read_bytes(), 30, "a line", proxy.log)
    written = log_file.read_bytes()
    with log_file.open("ab") as log:
        log.write(b"x" * 26_000_000)

    def was_compressed() -> bool:
        return len(list(folder.glob("access-2*.log.gz"))) == 60

    processes.wait_until(was_compressed, 60, "the log to be compressed", proxy.log)
    assert proxy.status_of("zurich") == "200"
    # nginx writes to a new file, after it has answered.
    processes.wait_until(lambda: b"CN=zurich" in log_file.read_bytes(), 30, "a line", proxy.log)
    newest = max(folder.glob("access-2*.log.gz"))
    assert gzip.decompress(newest.read_bytes()).startswith(written)


def test_half_open_connections_keep_nobody_out(proxy: Proxy) -> None:
    proxy.register("zurich")
    with contextlib.ExitStack() as held:
        for _ in range(HALF_OPEN):
            one = held.enter_context(socket.create_connection(("127.0.0.1", proxy.port)))
            one.sendall(FIRST_BYTES)
        one.settimeout(60 * processes.pace())
        began = time.monotonic()
        for _ in range(5):
            assert proxy.status_of("zurich") == "200"
        # The proxy closes what does not go on.
        assert one.recv(1) == b""
        assert time.monotonic() - began < 50 * processes.pace()
    assert "worker_connections are not enough" not in proxy.log()


def test_slow_requests_keep_nobody_out(proxy: Proxy) -> None:
    """By a stranger and by a member: headers that never end, and bodies of one byte every few seconds."""
    for name in ("zurich", "bern"):
        proxy.register(name)
    keys = proxy.app.state / "keys"
    start = f"POST {FLEET} HTTP/1.1\r\nHost: localhost\r\n".encode()
    body = start + b"Content-Length: 100000\r\n\r\n"
    with contextlib.ExitStack() as held:

        def slow(member: str | None, first: bytes) -> list[ssl.SSLSocket]:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            if member:
                context.load_cert_chain(keys / f"{member}.crt", keys / f"{member}.pem")
            opened = []
            for _ in range(100):
                one = socket.create_connection(("127.0.0.1", proxy.port), 30)
                opened.append(held.enter_context(context.wrap_socket(one)))
                opened[-1].sendall(first)
            return opened

        headers = slow(None, start) + slow("zurich", start)
        bodies = slow("zurich", body)
        began = time.monotonic()
        while time.monotonic() - began < 25:  # longer than the time for a header
            assert proxy.status_of("bern", address="127.0.0.2") == "200"
            for one in headers + bodies:
                with contextlib.suppress(OSError):
                    one.sendall(b"x")
            time.sleep(3)
        assert not any(map(is_open, headers))
        assert sum(map(is_open, bodies)) <= 64  # of one address; a stranger has none


def is_open(connection: ssl.SSLSocket) -> bool:
    connection.settimeout(0.0)
    try:
        return bool(connection.recv(1)) and is_open(connection)
    except ssl.SSLWantReadError:
        return True
    except OSError:
        return False


def test_the_kernel_refuses_connections_before_the_handshake(tmp_path: Path) -> None:
    """With deploy/limits.sh one address cannot take the proxy's room; in a network of its own."""
    require(["nft", "ip", "nginx", "curl", "openssl", "ssh-keygen"], root=True)
    app = App(tmp_path / "app")
    port = str(free_port())
    settings = {"PORT": port, "CONNECTIONS": str(LIMIT)}
    assert app.script("certificates.sh", **settings).returncode == 0
    place = f"cw{os.getpid()}-limits"
    inside = ["ip", "netns", "exec", place]
    environment = {"PATH": os.environ["PATH"]} | settings
    subprocess.run(["ip", "netns", "add", place], check=True)
    nginx = None
    try:
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        limits = [*inside, str(app.folder / "deploy" / "limits.sh")]
        for _ in range(2):  # the second time replaces the first
            subprocess.run(limits, env=environment, check=True)
        proxy = [*inside, str(app.folder / "deploy" / "proxy.sh")]
        nginx = subprocess.Popen(proxy, env=environment)
        listens = [*inside, "bash", "-c", f"exec 3<> /dev/tcp/127.0.0.1/{port}"]
        processes.wait_until(
            lambda: subprocess.run(listens, capture_output=True, check=False).returncode == 0,
            30,
            "nginx to listen",
        )
        flood = [*inside, sys.executable, "-c", FLOOD, port, FIRST_BYTES.hex()]
        said = subprocess.run(flood, capture_output=True, text=True, check=True).stdout
        assert said.split() == [str(LIMIT), "000", "400"]  # refused; nginx wants a certificate
    finally:
        if nginx is not None:
            nginx.terminate()
            nginx.wait(60)
        subprocess.run(["ip", "netns", "del", place], check=True)
