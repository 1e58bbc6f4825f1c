"""Roles on the live page: what every token opens, on every address of the server, and what it does not."""

from __future__ import annotations

import http.client
import json
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest
from pages import HOSTILE_NAME, name_clients, served, unpacked, write_run
from starlette.routing import Route

import processes
from clientwise.errors import ClientwiseError
from clientwise.record.reading.folder import RunFolder
from clientwise.report.output.html import ASSETS
from clientwise.report.server import Roles, make_app
from clientwise.report.server.responses import assets_fingerprint
from clientwise.report.server.roles import BOARD, Reader
from clientwise.report.statement import statement

OPERATOR = "the operator's token"
SITES = {  # by run
    "first": ["Basel", "basel", "a/b", "..", HOSTILE_NAME, '"; drop'],
    "second run": ["Basel", "Bern", "Chur", "Davos", "Engelberg", "Fribourg"],
    "private": ["Basel", "Bern", "Chur", "Davos", "Engelberg", "Fribourg"],
    "without names": [],
}
REPORTS = {"first", "second run", "without names"}  # that the board opens
WITH_TOKEN = ["Basel", "basel", "a/b", HOSTILE_NAME, "Bern", "client 0"]
TELLING = ["Basel", "basel", "Bern", "Chur", "Davos", "Engelberg", "Fribourg", HOSTILE_NAME]
REPORT = {
    "/runs/{id}",
    "/api/runs/{id}",
    "/api/runs/{id}/version",
    "/api/runs/{id}/seed",
    "/api/runs/{id}/round",
    "/api/runs/{id}/client",
}
OPENS = {  # by role; with {id}, of the runs that the role can open
    "operator": REPORT
    | {
        "/",
        "/health",
        "/metrics",
        "/compare",
        "/api/list",
        "/api/list/version",
        "/api/compare",
        "/api/compare/version",
        "/api/compare/seed",
        "/static/{fingerprint}/{name}",
    },
    "board": REPORT | {"/", "/static/{fingerprint}/{name}"},
    "site": {"/", "/runs/{id}/statement"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for run, sites in SITES.items():
        write_run(folder / run, ["FedAvg"])
        name_clients(folder / run, sites)
    config = folder / "private" / "config.toml"
    noise = "[methods.privacy]\nclip = 1.0\ndelta = 0.01\nnoise_multiplier = 1.0\n"
    config.write_text(f"{config.read_text()}\n{noise}")
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.sqlite").write_bytes(b"SQLite format 3\0" + b"rubbish" * 1000)
    (folder / "begun").mkdir()
    (folder / "begun" / "config.toml").touch()
    return folder


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Roles:
    return Roles(tmp_path_factory.mktemp("roles") / "roles.json")


@pytest.fixture(scope="module")
def tokens(roles: Roles) -> dict[Reader, str]:
    readers = [BOARD, *(Reader("site", site) for site in WITH_TOKEN)]
    return {Reader("operator"): OPERATOR} | {reader: roles.give(reader) for reader in readers}


@pytest.fixture(scope="module")
def client(folder: Path, roles: Roles, tokens: dict[Reader, str]) -> Iterator[httpx.Client]:
    with (
        served([folder], OPERATOR, roles=roles) as address,
        httpx.Client(base_url=address) as client,
    ):
        yield client


def _routes(folder: Path) -> list[Route]:
    return [route for route in make_app([folder]).routes if isinstance(route, Route)]


def _addresses(route: Route, run: str) -> Iterator[str]:
    """The addresses of a route about one run, with everything that one of them needs."""
    query = f"?method=FedAvg&seed=1&round=2&client=1&run={quote(run, safe='')}"
    for name in ASSETS if "{name}" in route.path else [""]:
        path = route.path.replace("{id}", quote(run, safe=""))
        path = path.replace("{fingerprint}", assets_fingerprint()).replace("{name}", name)
        yield path + query


def _runs_of(reader: Reader) -> set[str]:
    if reader.role == "site":
        return {run for run, sites in SITES.items() if reader.site in sites}
    return REPORTS if reader.role == "board" else set(SITES)


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _said(answer: httpx.Response) -> str:
    """Everything that an answer tells, also what is packed into a page."""
    packed = 'id="audits"' in answer.text
    return json.dumps(unpacked(answer.text), ensure_ascii=False) if packed else answer.text


def test_every_address_opens_to_those_roles_alone_and_tells_no_site_of_another(
    folder: Path, client: httpx.Client, tokens: dict[Reader, str]
) -> None:
    """A new route is tried, too: until it is in `OPENS`, it must open to nobody."""
    for route in _routes(folder):
        for run in SITES:
            for reader, token in tokens.items():
                is_for_run = "{id}" not in route.path or run in _runs_of(reader)
                opens = route.path in OPENS[reader.role] and is_for_run
                for address in _addresses(route, run):
                    answer = client.get(address, headers=_bearer(token))
                    assert (answer.status_code == 200) == opens, (reader, address)
                    assert opens or answer.status_code in (403, 404), (reader, address)
                    if reader.role == "site":
                        told = {name for name in TELLING if name in _said(answer)}
                        assert told <= {reader.site}, (reader, address)


def test_all_addresses_are_known(folder: Path) -> None:
    assert {route.path for route in _routes(folder)} == set().union(*OPENS.values())
    assert len(make_app([folder]).routes) == len(_routes(folder))  # no mounts, no websockets


def test_a_run_of_others_and_no_run_are_answered_alike(
    client: httpx.Client, tokens: dict[Reader, str]
) -> None:
    token = tokens[Reader("site", "Bern")]
    answers = [
        client.get(f"/runs/{run}/statement", headers=_bearer(token))
        for run in ("first", "damaged", "begun", "without%20names", "nothing")
    ]
    assert {answer.status_code for answer in answers} == {404}
    assert {answer.text.split("'")[0] for answer in answers} == {"there is no run "}


def test_the_list_has_what_the_token_opens(client: httpx.Client, tokens: dict[Reader, str]) -> None:
    for reader, token in tokens.items():
        if reader.role == "operator":
            continue
        document = unpacked(client.get("/", headers=_bearer(token)).text)["document"]
        rows = document["sections"][0]["items"][0]["rows"]
        assert {row[0]["text"] for row in rows} == _runs_of(reader), reader
        for row in rows:
            assert client.get(row[0]["href"], headers=_bearer(token)).status_code == 200


def test_a_statement_is_that_of_the_command(
    folder: Path, client: httpx.Client, tokens: dict[Reader, str]
) -> None:
    from clientwise.report.output.html import to_json
    from clientwise.report.output.page_json import as_json

    for run, sites in SITES.items():
        for site in set(sites) & set(WITH_TOKEN):
            token = tokens[Reader("site", site)]
            answer = client.get(f"/runs/{quote(run)}/statement", headers=_bearer(token))
            expected = as_json(statement(RunFolder(folder / run), site))
            assert unpacked(answer.text)["document"] == json.loads(to_json(expected))
            assert "<img src=x" not in answer.text
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "connect-src" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["cache-control"] == "no-store"


def _raw(client: httpx.Client, path: str, token: str, method: str = "GET") -> tuple[int, str]:
    """The answer to a path that is sent as it is."""
    address = urlsplit(str(client.base_url))
    with closing(http.client.HTTPConnection(address.netloc, timeout=20)) as connection:
        connection.request(method, path, headers=_bearer(token))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_no_spelling_of_an_address_leads_elsewhere(
    client: httpx.Client, tokens: dict[Reader, str]
) -> None:
    for path in (
        "/runs/first/statement/../../../api/runs/first",
        "/runs/first/statement/../../first",
        "/runs/first/statement%2F..%2F..%2Ffirst",
        "/runs/first%2F..%2Fsecond%20run",
        "/runs/..%2Fapi%2Fruns%2Ffirst",
        "/runs/first/statement/",
        "//runs/first",
        "/./runs/first",
        "/RUNS/first",
        "/runs/First/statement",
        "/runs/first/statements/Basel",
        "/runs/first/statement;site=Basel",
        "/runs/first%00/statement",
        "/static/../api/list",
        "/static/x/..%2F..%2Fapi%2Flist",
        "/api/runs/first?site=basel",
        "/runs/first/run.sqlite",
        "/runs/first/config.toml",
        "/openapi.json",
        "/docs",
        "/events",
        "/ws",
    ):
        status, _ = _raw(client, path, tokens[Reader("site", "basel")])
        assert status in (403, 404), path
    for path in ("/runs/first/statement?site=Basel", "/runs/first%2Fstatement?site=Basel"):
        status, text = _raw(client, path, tokens[Reader("site", "basel")])
        assert status == 200
        assert unpacked(text)["document"]["title"] == "Statement for basel"


def test_only_reading(folder: Path, client: httpx.Client, tokens: dict[Reader, str]) -> None:
    for reader in (Reader("operator"), BOARD, Reader("site", "Basel")):
        headers = _bearer(tokens[reader])
        for route in _routes(folder):
            address = next(_addresses(route, "first"))
            for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
                assert client.request(method, address, headers=headers).status_code == 405
            seen = client.head(address, headers=headers)
            assert seen.status_code == client.get(address, headers=headers).status_code
            assert not seen.content


def test_without_a_valid_token_nothing_opens(
    folder: Path, client: httpx.Client, roles: Roles
) -> None:
    hashes = json.loads(roles.path.read_text())
    wrong = ["x", "Basel", "board", hashes["board"], hashes["sites"]["Basel"], "\xff"]
    for route in _routes(folder):
        for run in SITES:
            for address in _addresses(route, run):
                assert client.get(address).status_code == 401
        for token in wrong:
            address = next(_addresses(route, "first"))
            for headers in (
                {"Authorization": f"Bearer {token}"},
                {"Cookie": f"clientwise={token}"},
            ):
                raw = {name.encode(): value.encode() for name, value in headers.items()}
                assert client.get(address, headers=raw).status_code == 401
            assert client.get(f"{address}&token={quote(token)}").status_code == 401
        assert client.get(f"{next(_addresses(route, 'first'))}&token=").status_code == 401


def test_a_token_in_the_address_becomes_a_cookie_of_that_role(
    client: httpx.Client, tokens: dict[Reader, str]
) -> None:
    statement_of_first = "/runs/first/statement"
    with httpx.Client(base_url=client.base_url) as browser:
        answer = browser.get("/", params={"token": tokens[Reader("site", "a/b")]})
        assert "HttpOnly" in answer.headers["set-cookie"]
        assert OPERATOR not in answer.headers["set-cookie"]
        title = unpacked(browser.get(statement_of_first).text)["document"]["title"]
        assert title == "Statement for a/b"
        assert browser.get("/api/list").status_code == 403
        # Another token in the address, or in a header, is another reader from then on.
        assert browser.get("/api/list", headers=_bearer(OPERATOR)).status_code == 200
        assert browser.get("/api/list").status_code == 403
        browser.get("/", params={"token": tokens[BOARD]})
        assert browser.get(statement_of_first).status_code == 403
        assert browser.get("/api/runs/first").status_code == 200
        browser.get("/", params={"token": OPERATOR})
        assert browser.get("/api/list").status_code == 200


def test_the_board_is_told_why_a_private_run_does_not_open(
    client: httpx.Client, tokens: dict[Reader, str]
) -> None:
    answer = client.get("/api/runs/private", headers=_bearer(tokens[BOARD]))
    assert answer.status_code == 403
    assert "differential privacy" in answer.json()["error"]
    empty = client.get("/api/runs/begun", headers=_bearer(tokens[BOARD]))
    assert "its config cannot be read" in empty.json()["error"]


def test_a_revoked_or_replaced_token_opens_nothing_at_once(folder: Path, tmp_path: Path) -> None:
    roles = Roles(tmp_path / "roles.json")
    bern = Reader("site", "Bern")
    first, board = roles.give(bern), roles.give(BOARD)
    with (
        served([folder], OPERATOR, roles=roles) as address,
        httpx.Client(base_url=address) as client,
    ):
        assert client.get("/", params={"token": first}).status_code == 200
        second = roles.give(bern)
        assert client.get("/").status_code == 401  # the cookie has the first one
        assert client.get("/", headers=_bearer(second)).status_code == 200
        roles.revoke(bern)
        assert client.get("/", headers=_bearer(second)).status_code == 401
        assert client.get("/", headers=_bearer(board)).status_code == 200
        roles.revoke(BOARD)
        assert client.get("/", headers=_bearer(board)).status_code == 401
        assert client.get("/", headers=_bearer(OPERATOR)).status_code == 200


def test_a_revocation_is_not_undone_by_tokens_made_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "roles.json"
    sites = [Reader("site", f"site {number}") for number in range(8)]
    for site in sites:
        Roles(path).give(site)
    new = [Reader("site", f"new {number}") for number in range(8)]
    with ThreadPoolExecutor(16) as pool:
        revoked = [pool.submit(Roles(path).revoke, site) for site in sites]
        given = [pool.submit(Roles(path).give, site) for site in new]
    for done in [*revoked, *given]:
        done.result()
    assert {reader.site for reader in Roles(path).readers()} == {reader.site for reader in new}


def test_the_file_has_hashes_alone_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    roles = Roles(tmp_path / "roles.json")
    tokens = [roles.give(BOARD), roles.give(Reader("site", HOSTILE_NAME))]
    text = roles.path.read_text()
    assert not any(token in text for token in tokens)
    assert min(map(len, tokens)) >= 43  # 256 bits
    assert stat.S_IMODE(roles.path.stat().st_mode) == 0o600
    assert roles.readers() == [Reader("site", HOSTILE_NAME), BOARD]
    roles.path.chmod(0o640)
    with pytest.raises(ClientwiseError, match="chmod 600"):
        roles.reader(tokens[0])


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"board": "x"}', '{"sites": {"A": null}}', '{"a": 1}']
)
def test_a_damaged_file_opens_nothing(content: str, folder: Path, tmp_path: Path) -> None:
    roles = Roles(tmp_path / "roles.json")
    token = roles.give(BOARD)
    roles.path.write_text(content)
    with pytest.raises(ClientwiseError, match="not a roles file"):
        roles.reader(token)
    with served([folder], OPERATOR, roles=roles) as address:
        assert httpx.get(address, headers=_bearer(token)).status_code == 503
        assert httpx.get(address, headers=_bearer(OPERATOR)).status_code == 200
    refused = _command("serve", folder, "--roles", roles.path)
    assert refused.returncode == 2
    assert "not a roles file" in refused.stderr
    assert refused.stderr.count("\n") == 1


def _command(*arguments: object) -> Any:
    return processes.run(processes.COMMAND, *arguments)


def test_the_command_gives_lists_and_revokes_tokens(tmp_path: Path) -> None:
    file = tmp_path / "roles.json"
    said = _command("token", file, "--site", "[red]Basel[/]").stdout
    token = said.split()[1]
    assert Roles(file).reader(token) == Reader("site", "[red]Basel[/]")
    board = _command("token", file, "--board").stdout.split()[1]
    assert Roles(file).reader(board) == BOARD
    listed = _command("token", file).stdout
    assert "opens the statements of [red]Basel[/]" in listed
    assert "opens the reports" in listed
    assert token not in listed
    assert "Revoked" in _command("token", file, "--board", "--revoke").stdout
    assert Roles(file).reader(board) is None
    again = _command("token", file, "--board", "--revoke")
    assert (again.returncode, "has no token for board" in again.stderr) == (2, True)
    assert "not both" in _command("token", file, "--board", "--site", "A").stderr
    assert "needs --site" in _command("token", file, "--revoke").stderr
    missing = _command("serve", tmp_path, "--roles", tmp_path / "none.json")
    assert missing.returncode == 2
    assert "No such file" in missing.stderr
