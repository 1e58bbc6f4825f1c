"""Fill docs/results/performance.md from what the benchmarks measured, and draw how a round grows with its clients.

python lab/speed/make_speed.py

A table stands between `<!-- make_speed: NAME -->` and `<!-- end -->`; NAME is that of a file in lab/results/speed.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nodes import NODES
from round_profile import PARTS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "performance.md"
CHART = PAGE.parent / "growth.png"
SHOWN = 10  # percent of a round of any work, from which a part has a row
MARKER = re.compile(r"<!-- make_speed: (\w+) -->\n.*?<!-- end -->", re.DOTALL)

Found = Mapping[str, Any]


def main() -> None:
    """Write the tables and the chart."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw(read("scale")["results"], CHART)


def read(name: str) -> Found:
    """What a benchmark measured."""
    found: Found = json.loads((ROOT / "lab" / "results" / "speed" / f"{name}.json").read_text())
    return found


def filled(text: str) -> str:
    """A page with its tables made anew."""

    def fill(place: re.Match[str]) -> str:
        name = place[1]
        return f"<!-- make_speed: {name} -->\n{TABLES[name](read(name))}\n<!-- end -->"

    return MARKER.sub(fill, text)


def scale(found: Found) -> str:
    """Medians of the rounds with so many clients, and the chart."""
    rows = [["clients per round", "processor time", "peak memory"]]
    for one in found["results"]:
        seconds = processor_seconds(one)
        memory = f"{one['peak_mib'] / 1024:.1f} GiB"
        rows.append([f"{one['cohort']:,}", f"{seconds:.2g} s", memory])
    return f"{table(rows)}\n\n![{alt(found['results'])}]({CHART.name})"


def processor_seconds(one: Found) -> float:
    """The median of the rounds."""
    return statistics.median(one["processor_seconds"])


def alt(results: Sequence[Found]) -> str:
    """What the chart shows, in words."""
    first, last = (processor_seconds(one) for one in (results[0], results[-1]))
    more = results[-1]["cohort"] // results[0]["cohort"]
    return (
        f"With {more:,} times as many clients in a round, its processor time is "
        f"{last / first:,.0f} times as long"
    )


def draw(results: Sequence[Found], path: Path) -> None:
    """Processor time by clients in a round, beside growth in proportion."""
    clients = [one["cohort"] for one in results]
    processor = [processor_seconds(one) for one in results]
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    axes.loglog(clients, processor, "o-", label="measured")
    proportional = [processor[-1] * one / clients[-1] for one in clients]
    axes.loglog(clients, proportional, ":", color="grey", label="in proportion to the clients")
    axes.set_xlabel("clients in a round, of 1,000,000")
    axes.set_ylabel("processor time of a round, s")
    axes.legend()
    figure.savefig(path, dpi=100, metadata={"Description": alt(results), "Software": None})


def nodes(found: Found) -> str:
    """Each way of spreading a run, beside one process."""
    ways = found["ways"]
    alone = ways["one process"]["seconds"]
    names = {"Ray": f"Ray, {NODES} nodes", "Flower": "Flower's simulation"}
    rows = [["", "seconds per round", "× one process"]]
    for name in ("one process", "Ray", "Flower"):
        seconds = ways[name]["seconds"]
        rows.append([names.get(name, name), f"{seconds:.2g}", f"{seconds / alone:.1f}"])
    seconds = ways["Ray, one node killed"]["with_death"]
    killed = ["the round in which a node is killed", f"{seconds:.2g}", f"{seconds / alone:.1f}"]
    return table([*rows[:3], killed, rows[3]])


def round_profile(found: Found) -> str:
    """The share of every part in a round's processor time."""
    works = found["works"]
    heads = [name if one["cohort"] > 1 else f"{name}, one client" for name, one in works.items()]
    rows = [["", *heads], ["whole round", *(f"{one['total']:.2g} s" for one in works.values())]]
    rest = [100.0] * len(works)
    for part in PARTS:
        shares = [100 * one[part] / one["total"] for one in works.values()]
        if max(shares) >= SHOWN:
            rows.append([part, *(f"{share:.1f}%" for share in shares)])
            rest = [left - share for left, share in zip(rest, shares, strict=True)]
    return table([*rows, ["other", *(f"{left:.1f}%" for left in rest)]])


def table(rows: Sequence[Sequence[str]]) -> str:
    """In Markdown; the first column has words."""
    rule = [":--", *["--:"] * (len(rows[0]) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))


TABLES: Mapping[str, Callable[[Found], str]] = {
    "scale": scale,
    "nodes": nodes,
    "round_profile": round_profile,
}


if __name__ == "__main__":
    main()
