"""The server without a browser: what it answers, to whom, and what it says about folders that are no good."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from pages import HOSTILE_NAME, run_for_real, served, write_run
from starlette.exceptions import HTTPException

import processes
from clientwise.cli.serve import token_in
from clientwise.errors import ClientwiseError
from clientwise.record.reading.folder import RunFolder
from clientwise.report import views
from clientwise.report.document import Document
from clientwise.report.output.html import to_json, write_html
from clientwise.report.server import is_loopback, make_app, served_runs
from clientwise.report.server.prometheus import samples_of
from clientwise.report.server.served_runs import ServedRuns

ODD_PORTS = ("127.0.0.1:99999999", "localhost:65536", "localhost:-1", "localhost:x", "localhost:")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good runs, bad runs, and what is no run at all."""
    folder = tmp_path_factory.mktemp("runs")
    run_for_real(folder / "real")
    write_run(folder / "two methods", ["FedAvg", HOSTILE_NAME])
    (folder / "foreign").mkdir()
    (folder / "foreign" / "notes.txt").write_text("nothing to see")
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.sqlite").write_bytes(b"SQLite format 3\0" + b"rubbish" * 1000)
    (folder / "empty").mkdir()
    (folder / "empty" / "run.sqlite").touch()
    (folder / "begun").mkdir()
    (folder / "begun" / "config.toml").touch()
    broken = write_run(folder / "broken", ["FedAvg"])
    _execute(broken, "UPDATE facts SET value = '{' WHERE key = 'metric'")
    odd = write_run(folder / "odd", ["FedAvg"])
    _execute(
        odd,
        "UPDATE rounds SET notes = 'no JSON', no_effect = 7, reached = '[]', per_class_f1 = '3'",
    )
    return folder


def _execute(folder: Path, sql: str) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(folder / "run.sqlite")) as database, database:
        database.execute(sql)


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    with served([folder]) as address, httpx.Client(base_url=address) as client:
        yield client


def test_the_list_has_every_run_and_says_what_is_wrong_with_the_bad_ones(
    client: httpx.Client,
) -> None:
    document = client.get("/api/list").json()
    rows = {
        row[0]["text"] if isinstance(row[0], dict) else row[0]: row
        for row in document["sections"][0]["items"][0]["rows"]
    }
    assert {"real", "two methods", "damaged", "empty", "begun", "broken"} <= set(rows)
    assert "foreign" not in rows
    assert rows["two methods"][0]["href"] == "/runs/two%20methods"
    assert "cannot be read" in rows["damaged"][-1]
    assert document["status"] == "7 runs"


def test_an_overview_says_how_far_the_run_is_and_is_made_once(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = client.get("/api/runs/real")
    document = first.json()
    assert document["id"] == "real"
    assert document["state"] == "finished"
    assert document["status"] == "finished, 3 rounds"
    assert document["sections"]
    standing = client.get("/api/runs/real/version").json()
    assert standing["version"] == document["version"]
    made: list[int] = []
    monkeypatch.setattr(views, "overview", lambda shown: made.append(1))
    assert client.get("/api/runs/real").content == first.content
    assert not made


def test_a_version_changes_with_the_run(client: httpx.Client, folder: Path) -> None:
    before = client.get("/api/runs/two%20methods/version").json()["version"]
    _execute(folder / "two methods", "UPDATE rounds SET seconds = 0.2 WHERE round_num = 1")
    deadline = time.monotonic() + 120  # what was told is told again for a moment
    while (after := client.get("/api/runs/two%20methods/version").json()["version"]) == before:
        assert time.monotonic() < deadline
    assert client.get("/api/runs/two%20methods").json()["version"] == after


def test_audits_of_rounds_and_clients(client: httpx.Client) -> None:
    asked = {"method": HOSTILE_NAME, "seed": 1}
    document = client.get("/api/runs/two%20methods/round", params={**asked, "round": 2}).json()
    assert HOSTILE_NAME in document["title"]
    document = client.get("/api/runs/two%20methods/client", params={**asked, "client": 5}).json()
    assert "wrong_labels" in json.dumps(document)
    for path, query in (
        ("round", {**asked, "round": 99}),
        ("round", {**asked, "round": "two"}),
        ("round", asked),
        ("round", {"method": "no", "seed": 1, "round": 1}),
        ("client", {**asked, "client": 99}),
        ("client", {**asked, "client": 10**30}),
    ):
        answer = client.get(f"/api/runs/two%20methods/{path}", params=query)
        assert answer.status_code == 422
        assert answer.json()["error"]


def test_runs_are_compared(client: httpx.Client) -> None:
    document = client.get("/api/compare?run=real&run=two%20methods").json()
    assert document["status"] == "2 runs compared"
    assert "real: FedAvg" in json.dumps(document)
    assert client.get("/compare?run=real&run=two%20methods").status_code == 200
    assert client.get("/api/compare").status_code == 422
    assert client.get("/api/compare?run=real&run=nobody").status_code == 404


@pytest.mark.parametrize("name", ["damaged", "empty", "begun", "broken", "odd"])
def test_a_bad_folder_gives_a_message_and_no_traceback(client: httpx.Client, name: str) -> None:
    assert client.get(f"/runs/{name}").status_code == 200  # the page shows what the API says
    answer = client.get(f"/api/runs/{name}")
    if name == "odd" and answer.status_code == 200:
        return  # what it cannot read it may also leave out
    assert answer.status_code == 422
    assert "Traceback" not in answer.text
    assert answer.json()["error"]


@pytest.mark.parametrize(
    "name",
    [
        "nobody",
        "foreign",
        "..",
        "%2e%2e",
        "%2e%2e%2f",
        "..%2f..%2fetc",
        "%2fetc%2fpasswd",
        "/etc",
        "real%2f..%2freal",
        "%00",
    ],
)
@pytest.mark.parametrize(
    "path", ["/runs/{}", "/api/runs/{}", "/api/runs/{}/version", "/static/{}", "/static/x/{}"]
)
def test_no_request_reaches_a_path(client: httpx.Client, name: str, path: str) -> None:
    host, port = client.base_url.host, client.base_url.port
    with socket.create_connection(
        (host, port)
    ) as connection:  # as it stands: a client would tidy it up
        connection.sendall(
            f"GET {path.format(name)} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
        )
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.split(b" ")[1] == b"404"
    assert b"root:" not in answer


def test_links_that_lead_out_are_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "out").symlink_to(folder / "real")
    with served([tmp_path / "runs"]) as address:
        assert httpx.get(f"{address}/api/runs/out").status_code == 404
    with served([folder / "real"]) as address:  # a run folder itself, too
        assert httpx.get(f"{address}/api/runs/real").status_code == 200


def test_two_runs_of_one_name_have_two_ids(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "same")
    write_run(tmp_path / "b" / "same", rounds=7)
    with served([tmp_path / "a", tmp_path / "b"]) as address:
        assert httpx.get(f"{address}/api/runs/same").json()["rounds"] == 5
        assert httpx.get(f"{address}/api/runs/same~2").json()["rounds"] == 7
        query = {
            "method": "FedAvg",
            "seed": 1,
            "round": 7,
            "client": 2,
        }  # the first of the two has no round 7
        for kind, other in (("round", "client"), ("client", "round")):
            document = httpx.get(f"{address}/api/runs/same~2/{kind}", params=query).json()
            (*_, table) = document["sections"][0]["items"]
            assert {row[0]["open"][other]["run"] for row in table["rows"]} == {"same~2"}


def test_a_folder_whose_name_is_no_text_does_not_take_the_list_along(tmp_path: Path) -> None:
    for name in (b"\xff", b"\xfe", b"whole"):
        write_run(tmp_path / "run").rename(tmp_path / os.fsdecode(name))
    runs = ServedRuns([tmp_path])
    listed = {row[0].text for row in runs.list_all().sections[0].items[0].rows}
    assert listed == {"whole", "\ufffd", "\ufffd~2"}
    assert runs.open("\ufffd").rounds == 5


def test_names_that_nobody_has_leave_nothing_behind(folder: Path) -> None:
    runs = ServedRuns([folder])

    async def ask(*names: str) -> None:
        with pytest.raises(HTTPException, match="no run"):
            await runs.document(names)

    for number in range(5):
        asyncio.run(ask(f"nobody {number}"))
        asyncio.run(ask("real", f"nobody {number}"))
    assert not runs._making
    assert not runs._answers


def test_a_document_is_made_once_for_all_who_wait(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, made = ServedRuns([folder]), []
    original = views.overview
    monkeypatch.setattr(views, "overview", lambda shown: made.append(1) or original(shown))

    async def ask_at_once() -> list[object]:
        asked = [runs.document(["real"]), runs.standing(["real"]), runs.document(["real"])]
        return await asyncio.gather(*asked)

    one, _, other = asyncio.run(ask_at_once())
    assert one is other
    assert len(made) == 1
    assert not runs._making


def test_while_a_run_grows_all_get_what_there_is_and_one_waits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, made, let_go = ServedRuns([folder]), [], threading.Event()
    monkeypatch.setattr(served_runs, "REST", 0)
    monkeypatch.setattr(
        served_runs, "_version", lambda folder: str(len(made))
    )  # another after every document

    def overview(shown: object) -> Document:
        made.append(1)
        assert len(made) == 1 or let_go.wait(60)
        return Document(f"made {len(made)}", [], [])

    monkeypatch.setattr(views, "overview", overview)

    async def ask() -> None:
        first = await runs.document(["real"])
        waiting = asyncio.create_task(runs.document(["real"]))
        await asyncio.sleep(0)
        for _ in range(100):
            assert await runs.document(["real"]) is first
        let_go.set()
        assert b"made 2" in (await waiting)[0]

    asyncio.run(ask())
    assert len(made) == 2


def test_what_was_told_is_told_again_before_a_run_is_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = ServedRuns([folder])
    read: list[str] = []
    monkeypatch.setattr(served_runs, "REST", 1e6)
    monkeypatch.setattr(served_runs, "MOST_REST", 1e6)
    monkeypatch.setattr(served_runs, "_version", lambda folder: read.append("") or str(len(read)))

    async def ask() -> None:
        for _ in range(50):
            await runs.document(["real"])
            await runs.standing(["real"])

    asyncio.run(ask())
    assert len(read) == 1


def test_a_bug_is_a_failure_of_the_server_and_not_of_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(runs: object) -> None:
        raise KeyError("a name that was mistyped")

    monkeypatch.setattr(views, "overview", bug)
    app = make_app([folder])

    async def ask(raise_app_exceptions: bool) -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get("/api/runs/real")

    answer = asyncio.run(ask(raise_app_exceptions=False))
    assert answer.status_code == 500
    assert "server failed" in answer.json()["error"]
    with pytest.raises(KeyError, match="mistyped"):  # it comes out, for the server's log
        asyncio.run(ask(raise_app_exceptions=True))


def test_only_reading(client: httpx.Client) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.request(method, "/api/runs/real").status_code == 405
    assert client.head("/").status_code == 200


def test_headers(client: httpx.Client) -> None:
    for path in ("/", "/api/list", "/nothing", "/api/runs/nobody"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_the_page_has_no_inline_script_and_its_files_are_there(client: httpx.Client) -> None:
    import re

    page = client.get("/").text
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", page)
    assert len(scripts) == 2
    assert not any(content for _, content in scripts)
    for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', page):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.text == client.get(path, headers={"Accept-Encoding": "identity"}).text


def test_only_this_machines_names_are_answered(client: httpx.Client) -> None:
    assert client.get("/api/list", headers={"Host": "evil.example"}).status_code == 400
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000", *ODD_PORTS):
        assert client.get("/api/list", headers={"Host": host}).status_code == 200
    for host in ("[", "[::1", "[:::", "localhost:8000:", "\u0663", "", "@", "a/b?c#d", "x" * 9000):
        for path in ("/api/list", "/nothing", "/api/runs/nobody", "/compare"):
            answer = client.get(path, headers={"Host": host.encode()})
            assert answer.status_code in (200, 400, 404, 422), (host, path)


def test_a_token_is_asked_for_whatever_the_host_is_called(folder: Path) -> None:
    with served([folder], token="secret") as address, httpx.Client(base_url=address) as client:
        for host in (*ODD_PORTS, "[", "[::1", "evil.example:port", ""):
            assert client.get("/", headers={"Host": host}).status_code == 401
            assert client.get("/?token=secret", headers={"Host": host}).status_code == 200
            client.cookies.clear()


SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\\\\n]|\\\\["\\\\n])*",?)+)\} (-?[0-9.e+-]+)')


def test_a_monitoring_system_reads_how_runs_stand(client: httpx.Client, folder: Path) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    samples = [SAMPLE.fullmatch(line) for line in lines if not line.startswith("#")]
    assert all(samples)
    assert len(set(lines)) == len(lines)  # nothing is told twice
    assert 'clientwise_up{run="damaged"} 0.0' in lines
    assert 'clientwise_up{run="real"} 1.0' in lines
    assert 'clientwise_finished{run="real"} 1.0' in lines
    (rounds,) = {
        one[3]
        for one in samples
        if one and one[1] == "clientwise_rounds" and 'run="real"' in one[2]
    }
    assert rounds == "3.0"
    named = HOSTILE_NAME.replace("\\", r"\\").replace('"', r"\"")
    assert any(f'run="two methods",method="{named}"' in line for line in lines)
    assert client.get("/health").json() == {"status": "ok", "runs": 7}


def test_members_have_lines_of_their_own(tmp_path: Path) -> None:
    """Of clients that have names, as in a deployment."""
    folder = write_run(tmp_path / "run", ["FedAvg"])
    _execute(folder, "UPDATE clients SET name = 'ward-' || client")
    found = {(one.metric, one.labels.get("member")): one.value for one in samples_of(folder, "run")}
    weight, refused = (
        found["clientwise_member_weight", "ward-1"],
        found["clientwise_member_refused", "ward-1"],
    )
    ((expected,),) = RunFolder(folder).query(
        "SELECT weight FROM participants WHERE client = 1 ORDER BY round_num DESC LIMIT 1"
    )
    ((times,),) = RunFolder(folder).query(
        "SELECT COUNT(*) FROM participants WHERE client = 1 AND refusal IS NOT NULL"
    )
    assert (weight, refused) == (expected or 0.0, times)


def test_a_program_sends_the_token_in_a_header(folder: Path) -> None:
    with served([folder], token="secret") as address, httpx.Client(base_url=address) as client:
        for path in ("/metrics", "/health"):
            assert client.get(path).status_code == 401
            for wrong in ("Bearer wrong", "secret", "Basic secret", "Bearer"):
                assert client.get(path, headers={"Authorization": wrong}).status_code == 401
            answer = client.get(path, headers={"Authorization": "Bearer secret"})
            assert answer.status_code == 200
            assert "set-cookie" not in answer.headers


def test_a_token_is_asked_for_once(folder: Path) -> None:
    with (
        served([folder], token="s3cret & more") as address,
        httpx.Client(base_url=address) as client,
    ):
        for path in (
            "/",
            "/api/list",
            "/runs/real",
            "/static/x/app.js",
            "/?token=wrong",
            "/api/list?token=",
        ):
            answer = client.get(path)
            assert answer.status_code == 401
            assert "token" in answer.text
            assert "content-security-policy" in answer.headers
        cookie = client.get("/", params={"token": "s3cret & more"}).headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert client.get("/api/list").status_code == 200  # the cookie now
        name = next(iter(client.cookies))
        assert httpx.get(f"{address}/api/list", cookies={name: "wrong"}).status_code == 401


def test_a_cookie_is_secure_behind_a_proxy_with_tls(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.sock"
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o600)
    socket_options = ["--host", f"unix:{path}", "--token-file", tmp_path / "token"]
    with (
        command(tmp_path / "said", folder, *socket_options),
        httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client,
    ):
        assert _is_secure(client, "http://localhost/", "https")
        assert not _is_secure(client, "http://localhost/", "http")
    with served([folder], token="secret") as address, httpx.Client() as client:
        assert _is_secure(client, address, "https")
        assert not _is_secure(client, address, "http")
        assert not _is_secure(client, address, None)


def _is_secure(client: httpx.Client, address: str, forwarded: str | None) -> bool:
    headers = {"X-Forwarded-Proto": forwarded} if forwarded else {}
    answer = client.get(address, params={"token": "secret"}, headers=headers)
    return "; Secure" in answer.headers["set-cookie"]


def test_the_command_serves_and_ends_quietly(folder: Path) -> None:
    command = [sys.executable, "-m", "clientwise", "serve", str(folder), "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as serving:
        assert serving.stdout is not None
        address = serving.stdout.readline().strip()
        assert httpx.get(f"{address}api/list").status_code == 200
        taken = address.rsplit(":", 1)[1].strip("/")
        second = processes.run(processes.COMMAND, "serve", folder, "--port", taken)
        assert second.returncode == 2
        assert "choose another" in second.stderr
        assert second.stderr.count("\n") == 1
        serving.send_signal(signal.SIGINT)
        rest = serving.stdout.read()
        assert "Traceback" not in rest
        assert serving.wait(30) == 0


@contextmanager
def command(output: Path, *options: object, first: str = "") -> Iterator[str]:
    """`clientwise serve` as long as the context lasts; what it printed first. `output` is a new file."""
    at_once = f"import sys; sys.stdout.reconfigure(line_buffering=True)\n{first}\n"
    process = processes.start(at_once + processes.COMMAND, "serve", *options, stdout=output)
    try:
        processes.wait_until(
            lambda: output.exists() and "\n" in output.read_text(), 60, "the address"
        )
        yield output.read_text().splitlines()[0]
    finally:
        process.terminate()
        process.join()


FEW_FILES = """
import resource
from clientwise.report.server import listen
listen.HEADER_SECONDS = 2.0
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
"""


@pytest.mark.skipif(os.name == "nt", reason="has no limit of open files")
def test_headers_that_never_end_keep_nobody_out(folder: Path, tmp_path: Path) -> None:
    """More connections than the process may have open."""
    with (
        command(tmp_path / "said", folder, "--port", 0, first=FEW_FILES) as address,
        ExitStack() as held,
        httpx.Client() as reader,
    ):
        assert reader.get(f"{address}api/list").status_code == 200
        port = int(address.rsplit(":", 1)[1].strip("/"))
        slow = []
        for _ in range(300):
            one = held.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nSlow: ")
            slow.append(one)

        def answers() -> bool:
            for one in slow:
                with suppress(OSError):  # closed by the server
                    one.sendall(b"x")
            with suppress(httpx.TransportError):
                return httpx.get(f"{address}api/list").status_code == 200
            return False

        processes.wait_until(answers, 30, "the page to answer")
        # Requests that are sent whole go on, also one after the other, and in two parts.
        for _ in range(2):
            assert reader.get(f"{address}api/list").status_code == 200
        with socket.create_connection(("127.0.0.1", port), 30) as parts:
            for part in (b"GET /api/list HTTP/1.1\r\nHost: localh", b"ost\r\n\r", b"\n"):
                parts.sendall(part)
                time.sleep(0.1)
            assert parts.recv(12) == b"HTTP/1.1 200"


def test_a_token_is_made_up_where_others_can_connect(folder: Path, tmp_path: Path) -> None:
    with command(tmp_path / "said", folder, "--port", 0, "--host", "0.0.0.0") as said:
        address, _, query = said.partition("?")
        assert len(query) > len("token=") + 16
        address = address.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(address).status_code == 401
        assert httpx.get(f"{address}?{query}").status_code == 200


def test_a_token_comes_from_a_file_and_is_not_printed(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    with command(tmp_path / "said", folder, "--port", 0, "--token-file", file) as said:
        token, address = file.read_text().strip(), said.partition("?")[0]
        assert token not in said
        assert file.stat().st_mode & 0o777 == 0o600
        assert httpx.get(address).status_code == 401
        assert httpx.get(address, params={"token": token}).status_code == 200
    assert token_in(file) == token
    file.chmod(0o640)
    with pytest.raises(ClientwiseError, match="chmod 600"):
        token_in(file)


def test_a_socket_is_for_its_owner_alone(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.sock"
    with command(tmp_path / "said", folder, "--host", f"unix:{path}") as said:
        assert said == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            assert client.get("http://localhost/api/list").status_code == 200
            assert client.get("http://evil.example/api/list").status_code == 400


def test_what_is_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org")))


def test_a_report_cannot_be_broken_out_of(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><!--"
    document = Document(evil, [evil], [])
    text = write_html(
        document, {"round": {f"{evil}|1|1": document}}, tmp_path / "new" / "report.html"
    ).read_text()
    assert evil not in text
    assert text.count("<script") == 4  # document, audits, Plotly, the page itself
    assert json.loads(to_json({"a": [float("nan"), 1.5, (float("inf"),)]})) == {
        "a": [None, 1.5, [None]]
    }
