"""Time stamps by a real authority: OpenSSL's, behind a web server on loopback."""

from __future__ import annotations

import json
import math
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("rfc3161_client", reason="needs clientwise[stamps]")

import clientwise as cw
import processes
from clientwise.cli import app
from clientwise.errors import RunError
from clientwise.record.signed import stamps
from clientwise.record.signed.keys import make_private_key
from clientwise.record.signed.stamps import (
    FILE,
    count_stamps,
    stamp_head,
    verify_stamps,
)

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
CONFIG: dict[str, Any] = {
    "name": "stamped",
    "rounds": 1,
    "data": "digits",
    "model": "linear",
    "partition": {"name": "iid", "clients": 3},
    "methods": ["FedAvg"],
}
SETTINGS = """
[tsa]
default_tsa = here
[here]
serial = {folder}/serial
signer_cert = {folder}/tsa.pem
signer_key = {folder}/tsa.key
signer_digest = sha256
default_policy = 1.2.3.4
digests = sha256
[root]
basicConstraints = critical, CA:true
keyUsage = critical, keyCertSign
[stamping]
basicConstraints = critical, CA:false
keyUsage = critical, digitalSignature
extendedKeyUsage = critical, timeStamping
[req]
distinguished_name = name
[name]
"""


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def certificate(folder: Path, name: str, extensions: str, *issuer: str) -> None:
    """Make NAME.key and NAME.pem."""
    made = ["-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
    about = ["-subj", f"/CN={name}", "-extensions", extensions, "-days", "2"]
    openssl(folder, "req", "-x509", "-config", "tsa.cnf", *made, *about, *issuer)


class Authority(BaseHTTPRequestHandler):
    """Answers requests with `openssl ts -reply`."""

    folder: Path

    def do_POST(self) -> None:
        assert self.headers["Content-Type"] == "application/timestamp-query"
        content = self.rfile.read(int(self.headers["Content-Length"]))
        (self.folder / "asked.tsq").write_bytes(content)
        answer = ["-queryfile", "asked.tsq", "-out", "answer.tsr"]
        openssl(self.folder, "ts", "-reply", "-config", "tsa.cnf", *answer)
        self.send_response(200)
        self.end_headers()
        self.wfile.write((self.folder / "answer.tsr").read_bytes())

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def tsa(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of an authority, and its root certificate."""
    folder = tmp_path_factory.mktemp("tsa")
    (folder / "tsa.cnf").write_text(SETTINGS.format(folder=folder), encoding="utf-8")
    (folder / "serial").write_text("01", encoding="utf-8")
    certificate(folder, "root", "root")
    certificate(folder, "other", "root")
    certificate(folder, "tsa", "stamping", "-CA", "root.pem", "-CAkey", "root.key")
    handler = type("Here", (Authority,), {"folder": folder})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", folder / "root.pem"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tsa: tuple[str, Path]) -> Path:
    """A signed run with a stamp of its last entry."""
    folder = tmp_path_factory.mktemp("run")
    make_private_key(folder / "key")
    run = cw.run(CONFIG, folder / "run", progress=False, signing_key=folder / "key")
    stamp_head(run, tsa[0])
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be changed."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def change(run: Path, **values: object) -> None:
    """Change the stamp."""
    stamp = json.loads((run / FILE).read_text(encoding="utf-8"))
    (run / FILE).write_text(json.dumps(stamp | values), encoding="utf-8")


def test_a_stamp_is_verified_offline(made: Path, tsa: tuple[str, Path]) -> None:
    found = verify_stamps(made, tsa[1])
    assert (found.stamps, found.faults) == (1, [])
    assert found.until == 3  # facts, the round, the end
    assert found.time is not None


def test_a_stamp_of_another_authority_is_no_stamp(made: Path, tsa: tuple[str, Path]) -> None:
    found = verify_stamps(made, tsa[1].with_name("other.pem"))
    assert found.time is None
    assert "not a valid stamp of entry 3" in found.faults[0]
    with pytest.raises(RunError, match="no certificate can be read"):
        verify_stamps(made, tsa[1].with_name("tsa.cnf"))


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"position": 2}, "not a valid stamp of entry 2"),
        ({"position": 9}, "the record ends before entry 9"),
        ({"position": math.inf}, "the record ends before entry 0"),
        ({"position": None}, "the record ends before entry 0"),
        ({"answer": "00"}, "not a valid stamp of entry 3"),
        ({"answer": "x"}, "the record ends before entry 0"),
    ],
)
def test_a_stamp_that_does_not_fit_is_found(
    run: Path, tsa: tuple[str, Path], values: dict[str, object], fault: str
) -> None:
    change(run, **values)
    found = verify_stamps(run, tsa[1])
    assert fault in found.faults[0]
    assert found.time is None


def test_no_changed_byte_gives_another_time(run: Path, tsa: tuple[str, Path]) -> None:
    """Some bytes are not signed, such as the version of the envelope; they say nothing about the time."""
    time = verify_stamps(run, tsa[1]).time
    answer = bytes.fromhex(json.loads((run / FILE).read_text(encoding="utf-8"))["answer"])
    stamps = []
    for place in range(0, len(answer), 5):
        changed = bytearray(answer)
        changed[place] ^= 1
        stamps.append(json.dumps({"position": 3, "answer": changed.hex()}))
    (run / FILE).write_text("\n".join(stamps), encoding="utf-8")
    found = verify_stamps(run, tsa[1])
    assert found.time in (None, time)
    assert 0.98 * len(stamps) < len(found.faults) <= len(stamps)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "ftp://127.0.0.1", "file:///etc/passwd"])
def test_an_authority_that_cannot_be_reached_is_an_error(run: Path, url: str) -> None:
    with pytest.raises(RunError, match=r"gave no time stamp|begins with http"):
        stamp_head(run, url)
    assert count_stamps(run) == 1


@pytest.mark.parametrize(
    "answers",
    [
        [b"no HTTP\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\n\r\n", *[b"x"] * 50],
        [b"HTTP/1.1 200 OK\r\n", *[b"x"] * 50],  # a header that does not end
    ],
)
def test_an_authority_that_answers_wrongly_or_too_slowly_is_an_error(
    run: Path, answers: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clientwise.record.signed.stamps.SECONDS", 0.5)

    def answer(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.recv(2**16)
            for part in answers:
                connection.sendall(part)
                time.sleep(0.1)

    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        threading.Thread(target=answer, args=[listening], daemon=True).start()
        began = time.monotonic()
        with pytest.raises(RunError, match="gave no time stamp"):
            stamp_head(run, f"http://127.0.0.1:{listening.getsockname()[1]}")
    assert processes.in_time(time.monotonic() - began, 4.0)
    assert count_stamps(run) == 1


def test_an_authority_that_answers_with_garbage_is_an_error(
    run: Path, tsa: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changed, cut and made-up answers: none is kept as a stamp, unless it still is one of this request."""
    chance = random.Random(1)
    fetch = stamps._fetch

    def changed(url: str, request: bytes) -> bytes:
        answer = bytearray(fetch(url, request))
        kind = chance.random()
        if kind < 0.5:
            answer[chance.randrange(len(answer))] ^= 1 << chance.randrange(8)
        elif kind < 0.8:
            del answer[chance.randrange(len(answer)) :]
        else:
            answer = bytearray(chance.randbytes(chance.randrange(200)))
        return bytes(answer)

    monkeypatch.setattr(stamps, "_fetch", changed)
    kept = 0
    for _ in range(60):
        try:
            stamp_head(run, tsa[0])
            kept += 1
        except RunError as error:
            assert "not a time stamp of this record" in str(error)  # noqa: PT017  some are kept
    assert kept < 40  # a changed signature is found by `verify`
    found = verify_stamps(run, tsa[1])
    assert found.stamps == kept + 1
    assert len(found.faults) >= kept - 2


def test_the_commands(tsa: tuple[str, Path], tmp_path: Path) -> None:
    def called(*arguments: object, status: int = 0) -> str:
        done = CliRunner().invoke(app, [str(one) for one in arguments])
        assert done.exit_code == status, done.output
        return " ".join(done.output.split())

    url, root = tsa
    make_private_key(tmp_path / "key")
    config = tmp_path / "stamped.toml"
    config.write_text(cw.load(CONFIG).to_toml(), encoding="utf-8")
    run = tmp_path / "run"
    begin = ["run", config, "--out", run, "--sign", tmp_path / "key"]
    assert "--sign" in called("run", config, "--out", run, "--tsa", url, status=2)
    said = called(*begin, "--tsa", "http://127.0.0.1:9")  # the run is complete all the same
    assert "gave no time stamp" in said
    assert "Stamps none: all times are" in called("verify", run, "--tsa-certificate", root)
    assert "Stamped entries 1 to 3" in called("stamp", run, "--tsa", url)
    assert "Stamps 1, not checked" in called("verify", run)
    assert "entries 1 to 3 existed at 20" in called("verify", run, "--tsa-certificate", root)
    called(*begin[:4], "--sign", tmp_path / "key", "--rounds", "2", "--resume")
    said = called("verify", run, "--tsa-certificate", root)
    assert "entries 4 to" in said
    assert "have no stamp" in said
    called("verify", run, "--tsa-certificate", root.with_name("other.pem"), status=2)
