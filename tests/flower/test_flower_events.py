"""What happens in a federation is written down with names and times, and told to whoever has to know."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from clientwise.core.method import Method, Plan
from clientwise.core.reasons import Kept
from clientwise.core.round import first_state, run_round
from clientwise.core.types import Refusal
from clientwise.experiment.running.lanes import Progress
from clientwise.hosts.deployment.events import Events
from clientwise.hosts.flower.engine import NOT_CONNECTED
from clientwise.hosts.flower.server_app import was_asked_to_stop
from clientwise.hosts.flower.wire import RUNS_HERE


def test_events_are_written_and_some_of_them_told(
    make_engine: Any, plan: Plan, tmp_path: Path
) -> None:
    engine, method = make_engine(), Method()
    _, record = run_round(first_state(engine.initial_model, method, engine), method, plan, engine)
    names = [f"ward-{number}" for number in range(8)]
    events = Events(tmp_path / "run-events.jsonl", names, f"cat >> {tmp_path / 'told'}")
    events.begun(resumed=False)
    events.round_done(Progress("FedAvg", 1, record, 3, 1, 3))
    lost, never_there = record.client_ids[0], ({*range(8)} - {*record.client_ids}).pop()
    missing = (Refusal(lost, "went away"), Refusal(never_there, "model has NaN or Inf"))
    braked = replace(
        record,
        round_num=2,
        refusals=missing,
        notes=("a remark",),
        kept=Kept("brake", "0.1"),
    )
    events.round_done(Progress("FedAvg", 1, braked, 3, 2, 3))
    events.ended(ValueError("disk full"))
    written = [json.loads(line) for line in events.file.read_text().splitlines()]
    assert [one["event"] for one in written] == [
        "begun",
        "round",
        "round",
        "lost",
        "refused",
        "void",
        "failed",
    ]
    assert written[3]["member"] == names[lost]
    assert set(written[1]["seconds"]) == {names[client] for client in record.client_ids}
    assert all("T" in one["time"] for one in written)
    told = [json.loads(line)["event"] for line in (tmp_path / "told").read_text().splitlines()]
    assert told == ["lost", "refused", "void", "failed"]


def test_who_stays_away_is_told_once(make_engine: Any, plan: Plan, tmp_path: Path) -> None:
    engine, method = make_engine(), Method()
    _, record = run_round(first_state(engine.initial_model, method, engine), method, plan, engine)
    lost, never_there = record.client_ids[0], ({*range(8)} - {*record.client_ids}).pop()
    without = replace(
        record,
        client_ids=record.client_ids[1:],
        seconds=record.seconds[1:],
        refusals=tuple(Refusal(client, NOT_CONNECTED) for client in (lost, never_there)),
    )
    events = Events(
        tmp_path / "events",
        [f"ward-{number}" for number in range(8)],
        f"cat >> {tmp_path / 'told'}",
    )
    for one in (record, without, without, record, without):
        events.round_done(Progress("FedAvg", 1, one, 5, 1, 5))
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    wanted = [("lost", lost), ("absent", never_there), ("lost", lost)]
    assert [(one["event"], one["member"]) for one in told] == [
        (kind, f"ward-{client}") for kind, client in wanted
    ]


def test_a_planned_stop_is_no_alarm(tmp_path: Path) -> None:
    out, told = tmp_path / "run", tmp_path / "told"
    events = Events(tmp_path / "run-events.jsonl", [], f"cat >> {told}")
    assert not was_asked_to_stop(out, 7)
    (tmp_path / "run-stop").write_text("7\n")  # as stop.sh does
    assert not was_asked_to_stop(out, 8)  # a later run
    events.ended(SystemExit(0), asked=was_asked_to_stop(out, 7))
    assert not told.exists()
    events.ended(SystemExit(0), asked=was_asked_to_stop(out, 8))  # ended by something else
    written = [json.loads(line) for line in events.file.read_text().splitlines()]
    assert [one["event"] for one in written] == ["stopped", "failed"]
    assert (
        written[1]["reason"] == "the run's process was terminated; a SuperLink that ends does that"
    )
    assert json.loads(told.read_text())["event"] == "failed"


def test_what_members_run_is_recorded_and_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = Events(tmp_path / "events", ["ward-a", "ward-b"])
    for _ in range(3):  # with every update
        events.versions(0, RUNS_HERE)
        events.versions(1, RUNS_HERE | {"flwr": "1.0"})
    events.versions(0, RUNS_HERE | {"torch": "1.0"})
    written = [json.loads(line) for line in events.file.read_text().splitlines()]
    assert [(one["member"], one["differs"]) for one in written] == [
        ("ward-a", []),
        ("ward-b", [f"flwr 1.0, here {RUNS_HERE['flwr']}"]),
        ("ward-a", [f"torch 1.0, here {RUNS_HERE['torch']}"]),
    ]
    assert "ward-b runs other versions: flwr 1.0" in caplog.text


def test_what_services_say_becomes_json() -> None:
    said = '\x1b[92mINFO \x1b[0m:     Uvicorn "running"\n\nINFO :\nERROR: no\nTraceback\n'
    program = files("clientwise") / "hosts" / "deployment" / "template" / "deploy" / "log.py"
    done = subprocess.run(
        [sys.executable, str(program), "superlink"],
        input=said,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LOG": "json"},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["level"], line["message"]) for line in lines] == [
        ("INFO", 'Uvicorn "running"'),
        ("ERROR", "no"),
        ("INFO", "Traceback"),
    ]
    assert {line["service"] for line in lines} == {"superlink"}


def test_what_services_say_has_no_control_characters() -> None:
    said = b"\x1b[92mINFO \x1b[0m:\thash=\x1b[2J\x1b]0;all is well\x07\xff\nnext\n"
    program = files("clientwise") / "hosts" / "deployment" / "template" / "deploy" / "log.py"
    done = subprocess.run(
        [sys.executable, str(program), "superlink"], input=said, capture_output=True, check=True
    )
    text = done.stdout.decode()
    assert text.splitlines() == [
        "INFO :    hash=[2J]0;all is well\N{REPLACEMENT CHARACTER}",
        "next",
    ]


def test_a_broken_bell_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Events(tmp_path / "events", [], "exit 3").ended(None)
    assert "the alert command failed" in caplog.text
