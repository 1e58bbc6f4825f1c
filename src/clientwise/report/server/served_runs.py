"""The runs that are served: found by id, read at most every few seconds, and kept as documents."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from ...errors import NotBegunError, RunError
from ...record.database import time_limit
from ...record.lock import is_locked
from ...record.reading.config_view import recorded_config
from ...record.reading.folder import RunFolder
from ...record.reading.rows import LaneProgress
from ...record.schema import DATABASE
from .. import views
from ..document import (
    Cell,
    Content,
    Document,
    Section,
    counted,
    table,
    without_none,
)
from ..output.html import as_file, to_json
from ..output.page_json import as_json
from ..run_list import find_runs, run_row, runs_document
from ..statement import named_sites, statement
from .prometheus import Sample, as_text, samples_of
from .responses import Packed, hashed, pack
from .roles import Reader

MAX_CACHED = 32  # documents
# An answer holds for REST times the time it took, at most MOST_REST seconds, so that reading does
# not slow a run.
REST = 20
MOST_REST = 15.0
# Processor time to read what a page shows, and what a line of the list shows.
DOCUMENT_SECONDS = 20.0
ROW_SECONDS = 2.0

PRIVATE = (
    "this run has differential privacy, or its config cannot be read. Its report shows what the server "
    "recorded of single sites, which the noise does not cover. The board's token does not open it."
)

Names = tuple[str, ...]  # ids of runs; none: the list of all
T = TypeVar("T")


@dataclass(frozen=True)
class Standing:
    """How far a run is. A new version means that there is something new to show."""

    version: str
    state: str | None  # running, finished or stopped; None for the list of runs
    status: str  # the same in a line
    rounds: int | None = None  # done, of a single run
    total: int | None = None  # planned

    def as_json(self) -> dict[str, object]:
        """As the page reads it."""
        return {"state": self.state, **without_none(asdict(self))}


@dataclass(frozen=True)
class _Answer:
    """What is known about runs until they are read again."""

    standing: Standing
    document: Packed | None  # None: only the standing was asked for
    again: float  # the time, by the monotonic clock, from which on the runs are read again


class _PerVersion(Generic[T]):
    """What is read of a run folder, once for each version of it."""

    def __init__(self, read: Callable[[Path, str], T], seconds: float = ROW_SECONDS) -> None:
        self._read = read
        self._seconds = seconds
        self._found: dict[Path, tuple[str, T]] = {}

    def of(self, folder: Path, name: str) -> T:
        """What was read of a folder, which has this id."""
        now = _version(folder)
        known = self._found.get(folder)
        if known and known[0] == now:
            return known[1]
        with time_limit(self._seconds):
            found = self._read(folder, name)
        self._found[folder] = (now, found)
        return found


class ServedRuns:
    """RunFolder folders by id, and the documents made of them. No path ever comes from a request."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [folder.resolve() for folder in folders]
        self._answers: OrderedDict[Names, _Answer] = OrderedDict()
        self._making: dict[Names, asyncio.Task[_Answer]] = {}  # at most one of each
        self._rows: _PerVersion[list[Content]] = _PerVersion(run_row)
        self._samples: _PerVersion[list[Sample]] = _PerVersion(samples_of)
        self._sites: _PerVersion[frozenset[str]] = _PerVersion(_sites)
        self._statements: dict[str, _PerVersion[Packed]] = {}  # by site

    def find(self) -> dict[str, Path]:
        """All run folders by id: the given ones, or those inside them."""
        return find_runs(self._folders)

    def folder(self, name: str) -> Path:
        """The folder with this id."""
        try:
            return self.find()[name]
        except KeyError:
            raise no_run(name) from None

    def open(self, name: str) -> RunFolder:
        """The run with this id."""
        return RunFolder(self.folder(name), name)

    async def standing(self, names: Sequence[str]) -> tuple[Standing, float]:
        """How far runs are, and in how many seconds there may be something new."""
        answer = await self._answer(tuple(names), whole=False)
        return answer.standing, max(0.0, answer.again - time.monotonic())

    async def document(self, names: Sequence[str]) -> Packed:
        """The overview of runs, or the list of all."""
        answer = await self._answer(tuple(names), whole=True)
        assert answer.document is not None
        return answer.document

    def audit(self, kind: str, name: str, method: str, seed: int, number: int) -> Document:
        """The audit of a round or of a client, which `kind` names."""
        show = views.audit_round if kind == "round" else views.audit_client
        with time_limit(DOCUMENT_SECONDS):
            return show(self.open(name), method, seed, number)

    def one_seed(self, names: Sequence[str], seed: int) -> Document:
        """The sections of an overview that show one seed."""
        with time_limit(DOCUMENT_SECONDS):
            return views.one_seed([self.open(name) for name in names], seed)

    def metrics(self) -> str:
        """The state of all runs for a monitoring system; each version of a run is read once."""
        found: list[Sample] = []
        for name, folder in self.find().items():
            found += self._samples.of(folder, name)
        return as_text(found)

    def statement(self, name: str, site: str) -> Packed:
        """The statement for a site as an HTML file. Runs of others do not exist for a site."""
        own = self._runs_of(site)  # looked at all: the time must not tell whether others' exist
        if name not in own:
            raise no_run(name)

        def make(folder: Path, name: str) -> Packed:
            return pack(as_file(statement(RunFolder(folder, name), site)))

        return self._statements.setdefault(site, _PerVersion(make, DOCUMENT_SECONDS)).of(
            own[name], name
        )

    def opened_by(self, reader: Reader) -> Packed:
        """The list of what a site or the board can open, as an HTML file."""
        rows = [[Cell(label, label, href=href)] for label, href in self._links(reader)]
        lead = f"Your token opens {reader.opens}."
        if not rows:
            lead = f"{lead} There are none yet."
        title = f"Statements for {reader.site}" if reader.role == "site" else "Reports"
        runs = table("runs", "Runs", ["run"], rows, "")
        return pack(as_file(Document(title, [lead], [Section("runs", title, "", [runs])])))

    def _links(self, reader: Reader) -> Iterator[tuple[str, str]]:
        found = self._runs_of(reader.site) if reader.role == "site" else self.find()
        for name, folder in found.items():
            address = f"/runs/{quote(name, safe='')}"
            if reader.role == "site":
                yield name, f"{address}/statement"
            elif reader.role == "board" and not _is_private(folder):
                yield name, address

    def _runs_of(self, site: str) -> dict[str, Path]:
        """The runs in which a site takes part, by id."""
        found = self.find().items()
        return {name: folder for name, folder in found if site in self._sites.of(folder, name)}

    def refuse_private(self, name: str) -> None:
        """Refuse the board a run whose record is not to be shown."""
        if _is_private(self.folder(name)):
            raise HTTPException(403, f"{name}: {PRIVATE}")

    async def _answer(self, names: Names, whole: bool) -> _Answer:
        """An answer, with `whole` one that has a document.

        It is the last one while that holds or a new one is being made; else a new one, made once
        for all who wait.
        """
        while True:
            answer = self._answers.get(names)
            if answer and self._holds(names, answer) and (answer.document or not whole):
                return answer
            if names not in self._making:
                self._making[names] = asyncio.create_task(self._make(names, whole))
            # Shielded: that one reader disconnects must not cancel it for the others.
            answer = await asyncio.shield(self._making[names])
            if answer.document or not whole:
                return answer

    def _holds(self, names: Names, answer: _Answer) -> bool:
        return names in self._making or time.monotonic() < answer.again

    async def _make(self, names: Names, whole: bool) -> _Answer:
        try:
            answer = await run_in_threadpool(self._look, names, whole)
            self._answers[names] = answer
            self._answers.move_to_end(names)
            if len(self._answers) > MAX_CACHED:
                self._answers.popitem(last=False)
            return answer
        finally:
            del self._making[names]  # also of unknown names: anyone can ask for any

    def _look(self, names: Names, whole: bool) -> _Answer:
        """Read the runs: their standing, and a document where it is asked for or has become old."""
        began = time.thread_time()
        last = self._answers.get(names)
        document = last.document if last else None
        limit = DOCUMENT_SECONDS if names else math.inf  # each line of the list has its own limit
        with time_limit(limit):
            standing = self._standing(names)
            is_new = last is None or last.standing.version != standing.version
            # Unasked only where there was one before: then a new version is ready for all readers.
            wanted = is_new if document else whole
            if wanted:
                document = self._build(names, standing)
        rest = min(MOST_REST, REST * (time.thread_time() - began))
        return _Answer(standing, document, time.monotonic() + rest)

    def _standing(self, names: Names) -> Standing:
        folders = {name: self.folder(name) for name in names} if names else self.find()
        version = hashed([(name, _version(folder)) for name, folder in folders.items()])
        if not names:
            return Standing(version, None, counted(len(folders), "run"))
        if len(folders) == 1:
            return progress(folders[names[0]], version)
        states = {progress(folder, version).state for folder in folders.values()}
        state = "running" if "running" in states else "finished"
        return Standing(version, state, f"{len(folders)} runs compared")

    def _build(self, names: Names, standing: Standing) -> Packed:
        try:
            made = views.overview([self.open(name) for name in names]) if names else self.list_all()
        except NotBegunError:
            made = views.not_begun(", ".join(names))
        return pack(to_json({**as_json(made), **standing.as_json(), "id": " ".join(names)}))

    def list_all(self) -> Document:
        """The list of runs, the newest first."""
        folders = sorted(self.find().items(), key=lambda item: _modified(item[1]), reverse=True)
        return runs_document([self._rows.of(folder, name) for name, folder in folders])


def no_run(name: str) -> HTTPException:
    """The answer to the id of an unknown run."""
    return HTTPException(404, f"there is no run {name!r}")


def _sites(folder: Path, name: str) -> frozenset[str]:
    """The names of a run's sites; none of a folder that cannot be read."""
    try:
        return frozenset(named_sites(RunFolder(folder, name)))
    except RunError:
        return frozenset()


def _is_private(folder: Path) -> bool:
    config = recorded_config(folder)
    return not config.is_known or any(method.privacy for method in config.methods)


def progress(folder: Path, version: str) -> Standing:
    """How far a run is."""
    try:
        run = RunFolder(folder)
    except NotBegunError:
        state = "running" if is_locked(folder) else "stopped"
        return Standing(version, state, "starting", 0, 0)
    lanes = run.progress()
    done = sum(lane.rounds for lane in lanes)
    waiting = run.num_lanes - len(lanes)
    planned = [lane.rounds if lane.finished else run.rounds for lane in lanes]
    total = sum(planned) + waiting * run.rounds  # a privacy budget may have ended some early
    state = views.run_state(run)
    status = _status(run, state, lanes, f"{done / max(1, total):.0%}")
    return Standing(version, state, status, done, total)


def _status(run: RunFolder, state: str, lanes: Sequence[LaneProgress], done: str) -> str:
    """The state of a run in a line; `done` is the percentage of rounds that are done."""
    if state == "finished":
        return f"finished, {counted(max(lane.rounds for lane in lanes), 'round')}"
    if state == "stopped":
        return f"stopped after {done} of its rounds"
    now = next((lane for lane in lanes if not lane.finished), None)
    if now is None:
        return f"running, starting ({done} of all rounds)"
    where = f"{now.method}, seed {now.seed}, round {now.rounds} of {run.rounds}"
    return f"running, {where} ({done} of all rounds)"


def _version(folder: Path) -> str:
    """Changes whenever a run is written to, or its writer starts or ends."""
    marks: list[object] = []
    for name in (DATABASE, f"{DATABASE}-wal"):
        try:
            facts = (folder / name).lstat()
        except OSError:
            continue
        if facts.st_size:  # a reader leaves an empty log
            marks.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
    return hashed([*marks, is_locked(folder)])


def _modified(folder: Path) -> float:
    try:
        return (folder / DATABASE).lstat().st_mtime
    except OSError:
        return 0.0
