"""Run experiments one after the other, and go on where the last call was stopped.

    python lab/run_all.py RUNS p3-1a p3-1b:paper p1-mnist-shards --data-dir DATA --minutes 9 --pack PACKED

An experiment is the name of a file in a folder beside this script, with a preset after a colon. Its run folder is
RUNS/NAME or RUNS/NAME-PRESET. Called again, finished runs are left alone and the others go on from their checkpoints.
`--pack` copies what a report needs of every run, without the models, into a folder small enough to be sent;
`lab/papers/make_reproduction.py` reads either.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from functools import partial
from pathlib import Path

import clientwise as cw
from clientwise.experiment.trackers import Progress
from clientwise.record.run import is_finished

HERE = Path(__file__).parent
sys.path.append(str(HERE / "papers"))
from p1_tables import keep_best  # noqa: E402


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, help="where the run folders are")
    parser.add_argument(
        "names", nargs="*", help="experiments, NAME or NAME:PRESET; default: all, without preset"
    )
    parser.add_argument("--preset", help="for all that name none")
    parser.add_argument("--data-dir", type=Path, help="default: $CLIENTWISE_DATA")
    parser.add_argument(
        "--minutes", type=float, help="stop, with everything saved, after so many minutes"
    )
    parser.add_argument("--pack", type=Path, help="copy what a report needs to this folder")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of every config",
    )
    options = parser.parse_args()
    until = time.monotonic() + 60 * (options.minutes or float("inf"))
    files = {path.stem: path for path in sorted(HERE.glob("*/*.toml"))}
    known = [name for name, path in files.items() if "[matrix]" not in path.read_text()]
    for text in options.names or known:
        name, _, preset = text.partition(":")
        if name not in known:
            sys.exit(f"error: no experiment {name!r}; there are {', '.join(known)}")
        preset = preset or options.preset
        folder = options.runs / (f"{name}-{preset}" if preset else name)
        given = {"data_dir": str(options.data_dir.resolve())} if options.data_dir else {}
        began, interrupted = time.monotonic(), False
        if not is_finished(folder):
            experiment = cw.load(files[name], options.set, given, preset)
            try:
                resume = (folder / "config.toml").exists()
                cw.run(
                    experiment,
                    folder,
                    resume=resume,
                    on_round=partial(_on_round, until),
                )
            except KeyboardInterrupt:
                print(f"{folder.name}: stopped; call again to go on", flush=True)
                interrupted = time.monotonic() < until
        else:
            print(f"{folder.name}: finished before", flush=True)
        if options.pack and (folder / "run.sqlite").exists():
            packed = options.pack / folder.name
            shutil.rmtree(packed, ignore_errors=True)
            shutil.copytree(folder, packed, ignore=shutil.ignore_patterns("checkpoints", ".lock"))
        print(f"{folder.name}: {time.monotonic() - began:.0f} s", flush=True)
        if interrupted:
            sys.exit(130)
        if time.monotonic() >= until:
            break


def _on_round(until: float, _: cw.Run, progress: Progress) -> None:
    """Keep what P1's contingency tables need, and stop when it is time."""
    keep_best(progress)
    if time.monotonic() >= until:
        raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        main()
    except cw.ClientwiseError as error:
        sys.exit(f"error: {error}")
