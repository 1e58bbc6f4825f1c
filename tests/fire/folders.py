"""Run folders whose database is damaged or hostile, the same ones for the same number; and all one does with them."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

import attempts
import httpx
from clientwise.report.server import served_runs as served

import clientwise as cw
from clientwise.errors import ClientwiseError, RunError
from clientwise.experiment.load import load_experiment
from clientwise.experiment.running.runner import run as run_experiment
from clientwise.record.reading import reader
from clientwise.report import server
from clientwise.report.output.export import audits
from clientwise.report.output.html import write_html
from clientwise.report.views import overview

CONFIG = {
    "name": "stopped",
    "rounds": 4,
    "device": "cpu",
    "checkpoint_seconds": 0.0,
    "data": "digits",
    "model": "linear",
    "partition": {"name": "dirichlet", "clients": 6, "concentration": 0.5},
    "hostile": [{"clients": [0], "attack": "wrong_labels"}, {"clients": [1], "attack": "broken"}],
    "methods": [
        {"name": "FedAvg"},
        {
            "name": "all of it",
            "criteria": ["server_performance", "label_diversity", "dataset_size"],
            "adjust": "first_improvement",
            "adapt_loss": "class_weights",
            "server_step": "adam",
        },
    ],
}
DEEP = "[" * 50_000 + "]" * 50_000
JSON = [
    "0",
    "-1",
    "7",
    "1e308",
    "1e999",
    "NaN",
    "null",
    "true",
    "[]",
    "{}",
    '""',
    '"x"',
    "9" * 5_000,
    DEEP,
    DEEP[:50_000],
]
JSON += [
    '"' + "x" * 200_000 + '"',
    '["a"]',
    "[1]",
    "[[]]",
    '[["a", 1]]',
    "[0.5,0.5]",
    '{"a":1}',
    str(2**70),
    "'",
    "{",
]
VALUES: list[object] = [
    None,
    0,
    -1,
    1,
    2**31,
    2**62,
    -(2**63),
    0.5,
    1e308,
    -1e308,
    5e-324,
    float("inf"),
    float("-inf"),
]
VALUES += [
    "",
    "x",
    "x" * 200_000,
    "<img src=x onerror=alert(1)>",
    "\x00",
    "\u202e\u0301",
    b"",
    b"\xff\x00",
    *JSON,
]
EXPENSIVE = "length(hex(zeroblob(3000000)))"
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"


def prepare() -> None:
    """What every case would build again, and limits as small as what is read here."""
    attempts.prepare()
    served.DOCUMENT_SECONDS, served.ROW_SECONDS, reader.MOST_SECONDS = 1.0, 1.0, 0.5


@functools.cache
def stopped() -> Path:
    """A real run that was stopped after half of its rounds."""

    def stop(progress: object) -> None:
        if progress.done == 4:
            raise KeyboardInterrupt

    folder = Path(tempfile.mkdtemp()) / "run"
    try:
        cw.run(CONFIG, folder, on_round=stop)
    except KeyboardInterrupt:
        return folder
    raise AssertionError("it did not stop")


def write_damaged(number: int, folder: Path, outside: Path) -> None:
    """A copy of that run with one thing wrong with its database; `outside` is a folder for what it may lead to."""
    shutil.copytree(stopped(), folder)
    draw = random.Random(number)
    draw.choice(_DAMAGES)(draw, folder, outside)


def _changed_bytes(draw: random.Random, folder: Path, outside: Path) -> None:
    path = folder / "run.sqlite"
    content = bytearray(path.read_bytes())
    match draw.randrange(6):
        case 0:
            del content[draw.randrange(len(content)) :]
        case 1:
            for _ in range(draw.choice((1, 5, 100, 1_000))):
                content[draw.randrange(len(content))] = draw.choice((0, 255, draw.randrange(256)))
        case 2:
            for _ in range(draw.choice((1, 3))):
                content[draw.randrange(100)] = draw.choice((0, 1, 255, draw.randrange(256)))
        case 3:
            at = 4096 * draw.randrange(len(content) // 4096)
            content[at : at + 100] = draw.randbytes(100)  # what a page says about itself
        case 4:
            one, other = (4096 * draw.randrange(len(content) // 4096) for _ in range(2))
            content[one : one + 4096] = content[other : other + 4096]
        case _:
            content = bytearray(
                draw.choice(
                    (b"", b"SQLite format 3\0", b"<html>", b"\0" * 8192, draw.randbytes(5_000))
                )
            )
    path.write_bytes(content)


def _changed_log(draw: random.Random, folder: Path, outside: Path) -> None:
    """Files beside the database that SQLite reads too."""
    name = draw.choice(("wal", "wal", "shm", "journal"))
    magic = {
        "wal": b"\x37\x7f\x06\x82",
        "shm": b"",
        "journal": b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7",
    }[name]
    (folder / f"run.sqlite-{name}").write_bytes(
        magic + draw.randbytes(draw.choice((0, 20, 500, 40_000)))
    )


def _execute(folder: Path, *statements: str, values: tuple[object, ...] = ()) -> None:
    with closing(sqlite3.connect(folder / "run.sqlite")) as database, database:
        for statement in statements:
            database.execute(statement, values)


def _columns(folder: Path, table: str) -> list[str]:
    with closing(sqlite3.connect(folder / "run.sqlite")) as database:
        return [row[1] for row in database.execute(f"PRAGMA table_info({table})")]


_TABLES = ("facts", "lanes", "clients", "rounds", "participants", "criteria", "local", "best")


def _changed_fact(draw: random.Random, folder: Path, outside: Path) -> None:
    known = [
        "name",
        "metric",
        "higher is better",
        "target",
        "client targets",
        "rounds",
        "lanes",
        "reported on",
    ]
    key = draw.choice([*known, "model_bytes", "data of seed 1", "computed"])
    if draw.random() < 0.1:
        _execute(folder, "DELETE FROM facts WHERE key = ?", values=(key,))
    else:
        _execute(
            folder, "UPDATE facts SET value = ? WHERE key = ?", values=(draw.choice(JSON), key)
        )


def _changed_values(draw: random.Random, folder: Path, outside: Path) -> None:
    table = draw.choice(_TABLES)
    columns = _columns(folder, table)[
        1 if table == "lanes" else 0 :
    ]  # the number of a row is a number
    column, value = draw.choice(columns), draw.choice(VALUES)
    some = draw.choice(("", "", "WHERE lane = 1", "WHERE round_num = 2", "WHERE client = 3"))
    some = some if some[6:].split(" ")[0] in _columns(folder, table) else ""
    _execute(folder, f"UPDATE OR IGNORE {table} SET {column} = ? {some}", values=(value,))


def _changed_tables(draw: random.Random, folder: Path, outside: Path) -> None:
    table = draw.choice(_TABLES)
    columns = _columns(folder, table)
    column, other = draw.choice(columns), draw.choice(_TABLES)
    values = ", ".join(f"x AS {name}" for name in columns)
    expensive = ", ".join(f"{name} AS ({EXPENSIVE})" for name in columns)
    endless = f"CREATE VIEW {table} AS {ENDLESS} SELECT {values} FROM c"
    odd = draw.choice((endless, "rubbish", "CREATE TABLE x (y)", ""))
    gone, unlocked = f"DROP TABLE {table}", "PRAGMA writable_schema = ON"
    changes = [
        (gone,),
        (gone, f"CREATE TABLE {table} ({column})"),
        (gone, endless),
        (
            gone,
            f"CREATE TABLE {table} (a, {expensive})",
            f"INSERT INTO {table} (a) VALUES (1), (2), (3)",
        ),
        (f"CREATE TRIGGER t AFTER INSERT ON {table} BEGIN DELETE FROM {other}; END",),
        (f"CREATE VIEW odd AS {ENDLESS} SELECT x FROM c",),
        (unlocked, f"UPDATE sqlite_master SET sql = '{odd}' WHERE name = '{table}'"),
        (
            unlocked,
            f"UPDATE sqlite_master SET rootpage = {draw.randrange(1, 14)} WHERE name = '{table}'",
        ),
        (f"PRAGMA user_version = {draw.choice((0, 1, 3, 5, -1, 2**31 - 1))}",),
    ]
    _execute(folder, *draw.choice(changes))


def _grown(draw: random.Random, folder: Path, outside: Path) -> None:
    """Far more of something than there can be, or one thing that is far too large."""
    many = draw.choice((3_000, 30_000))
    number = f"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < {many})"
    kept = ", ".join(_columns(folder, "rounds")[2:])
    rows = {
        "lanes (method, seed, finished)": "'FedAvg', x + 1, 1",
        "lanes (method, seed)": "'method ' || x, 1",
        "rounds": f"1, x + 100, {kept}",
        "clients": "1, x + 100, 'client ' || x, 1, 1, NULL",
        "participants": "1, 2, x + 100, 'reason ' || x, 1, 1, 1, 1, 1, 1, 1, 1 FROM c LIMIT 500 --",
    }
    match draw.randrange(3):
        case 0:
            large = {
                "rounds": "notes",
                "best": "bits",
                "participants": "refusal",
                "local": "metric",
            }
            table = draw.choice(list(large))
            _execute(
                folder,
                f"UPDATE {table} SET {large[table]} = zeroblob(17000000) WHERE lane = 1 AND round_num = 2",
            )
        case _:
            into = draw.choice(list(rows))
            source = "c, rounds WHERE lane = 1 AND round_num = 2" if into == "rounds" else "c"
            _execute(
                folder, f"{number} INSERT OR IGNORE INTO {into} SELECT {rows[into]} FROM {source}"
            )


def _replaced(draw: random.Random, folder: Path, outside: Path) -> None:
    """Not a file at all, or one that lies elsewhere."""
    name = draw.choice(("run.sqlite", "run.sqlite", "run.sqlite-wal", "run.sqlite-shm", ".lock"))
    path = folder / name
    elsewhere = outside / "precious"
    if path.exists():
        shutil.move(path, elsewhere)
    else:
        elsewhere.write_bytes(b"precious")
    match draw.randrange(5):
        case 0:
            path.symlink_to(elsewhere)
        case 1:
            path.symlink_to(path)
        case 2:
            os.mkfifo(path)
        case 3:
            path.mkdir()
        case _:
            path.symlink_to("/dev/zero")


_DAMAGES: list[Callable[[random.Random, Path, Path], None]] = [
    *[_changed_bytes] * 4,
    _changed_log,
    *[_changed_fact] * 2,
    *[_changed_values] * 5,
    *[_changed_tables] * 3,
    _grown,
    _replaced,
]


def read(case: str) -> None:
    """All that is done with runs, one of which is damaged: it says so, and the others do not notice."""
    number = int(case)
    with tempfile.TemporaryDirectory() as place:
        runs, outside = Path(place, "runs"), Path(place, "outside")
        outside.mkdir()
        shutil.copytree(stopped(), runs / "good")
        write_damaged(number, runs / "damaged", outside)
        before = _files(outside)
        asyncio.run(_serve(runs, thoroughly=number % 10 == 0))
        _command("show", runs / "damaged", *(("--round", 2) if number % 2 else ()))
        if number % 10 == 0:
            _report(runs / "damaged")
            _command("runs", runs)
            _command("diff", runs / "good", runs / "damaged")
            _command("export", runs / "damaged")
        _resume(runs / "damaged")
        assert _files(outside) == before, "it left its folder"


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


async def _serve(runs: Path, thoroughly: bool) -> None:
    """Every page; what the server raises comes out here."""
    transport = httpx.ASGITransport(server.make_app([runs]))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        listed = await client.get("/api/list")
        assert listed.status_code == 200, listed.text
        rows = {_text(row[0]): row for row in listed.json()["sections"][0]["items"][0]["rows"]}
        assert rows["good"][1] == "stopped", rows["good"]
        try:
            cw.Run(runs / "damaged")
        except RunError:
            assert rows["damaged"][1] == "unreadable", rows["damaged"]
            assert rows["damaged"][-1], rows["damaged"]
        asked = f"method={quote('all of it')}&seed=1"
        for path in ("", "/version", f"/round?{asked}&round=2", f"/client?{asked}&client=3"):
            assert (
                not thoroughly or (await client.get(f"/api/runs/good{path}")).status_code == 200
            ), path
            answer = await client.get(f"/api/runs/damaged{path}")
            assert answer.status_code in (200, 422), (path, answer.status_code, answer.text)
            assert answer.json().get("error", "-"), path
        if thoroughly:
            assert (await client.get("/api/compare?run=good&run=damaged")).status_code in (200, 422)


def _text(cell: object) -> object:
    return cell["text"] if isinstance(cell, dict) else cell


def _command(*arguments: object) -> None:
    """It does what it is asked, or says in a line why not."""
    code, _, complaint = attempts.command(*map(str, arguments))
    assert code in (0, 2), code
    assert code == 0 or complaint.startswith("error: "), complaint
    assert len(complaint) < attempts.LONGEST, complaint[: attempts.LONGEST]


def _report(folder: Path) -> None:
    with suppress(RunError):
        run = cw.Run(folder)
        write_html(overview([run]), audits([run]), folder / "report" / "report.html")


def _resume(folder: Path) -> None:
    """It goes on, or says in a line why not; then the checkpoints are what they were."""
    before, complaint = _files(folder / "checkpoints"), ""
    try:
        run_experiment(load_experiment(folder / "config.toml"), folder, resume=True)
    except ClientwiseError as error:
        complaint = str(error)
    assert len(complaint.splitlines()) < 2, complaint
    assert len(complaint) < attempts.LONGEST, complaint
    assert not complaint or _files(folder / "checkpoints") == before
