"""Fill docs/reproduction.md and docs/results/reproduction.md from the recorded tables, and draw three figures.

    python lab/papers/make_findings.py

No run folder is needed: lab/results/papers/NAME.csv has the tables of run NAME, and claims.toml beside them says which
cells stand beside which claim. `make_reproduction.py` calls this after it has written the tables.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
PAGE = Path("docs", "reproduction.md")
RESULTS = Path("docs", "results", "reproduction.md")
RECORDED = Path("lab", "results", "papers")
BLOCK = re.compile(r"(<!-- run (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
BETWEEN = re.compile(r"<!-- between (\S+) (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)
TABLE = re.compile(r"^\*\*(.+)\*\*\n\n((?:\|.*\n)+)", re.MULTILINE)
TARGET = re.compile(r"reaches (\d+%)")
CELL = re.compile(r"\{([^{}]+)\}")
FINDINGS = re.compile(r"(<!-- findings (P\d) -->\n).*?(<!-- end -->)", re.DOTALL)
ANSWERS = re.compile(r"(<!-- answers -->\n).*?(<!-- end -->)", re.DOTALL)
FIGURE = re.compile(r"(<!-- figure (P\d) -->\n).*?(<!-- end -->)", re.DOTALL)
INVENTORY = re.compile(r"(<!-- inventory -->\n).*?(<!-- end -->)", re.DOTALL)
NOT_RECORDED = "Not recorded yet"
MOST_NAMED = 3  # methods of a figure that its text names one by one

Grid = Mapping[str, Mapping[str, str]]  # the cells of a table, by row and column
Drawing = Callable[[Figure, Mapping[str, "Recorded"]], str]  # returns what it shows, in words


@dataclass(frozen=True)
class Recorded:
    """The recorded tables of a run."""

    name: str
    about: Mapping[str, str]
    tables: Mapping[str, Grid]  # by title

    def table(self, part: str) -> Grid:
        """The first table whose title contains `part`."""
        for title, grid in self.tables.items():
            if part in title:
                return grid
        raise KeyError(f"no table with {part!r} in its title")


def main(root: Path = ROOT) -> None:
    """Fill both pages, and draw the figures."""
    results = root / RESULTS
    text = results.read_text(encoding="utf-8")
    recorded = read(root)
    claims = tomllib.loads((root / RECORDED / "claims.toml").read_text(encoding="utf-8"))
    page = root / PAGE

    def picture(place: re.Match[str]) -> str:
        path = Path("reproduction", f"after-{place[2].lower()}.png")
        alt = draw(FIGURES[place[2]], recorded, results.parent / path)
        return f"{place[1]}\n![{alt}]({path.as_posix()})\n\n{place[3]}"

    said = "\n".join(
        f"- **{one['question']}** {filled(one['answer'], recorded)}" for one in claims["answers"]
    )
    verdicts = ANSWERS.sub(
        lambda place: f"{place[1]}\n{said}\n\n{place[2]}", page.read_text(encoding="utf-8")
    )
    verdicts = FINDINGS.sub(
        lambda place: f"{place[1]}\n{findings(claims['claims'], place[2], recorded)}\n\n{place[3]}",
        verdicts,
    )
    page.write_text(verdicts, encoding="utf-8")
    text = FIGURE.sub(picture, text)
    shown = {name for _, names, _ in BLOCK.findall(text) for name in names.split(",")}
    elsewhere = [row for row in claims["inventory"] if row["run"].replace(":", "-") not in shown]
    rows = inventory(elsewhere, recorded)
    text = INVENTORY.sub(lambda place: f"{place[1]}\n{rows}\n\n{place[2]}", text)
    reasons = {row["run"].replace(":", "-"): row.get("why") for row in claims["inventory"]}

    def tables(place: re.Match[str]) -> str:
        one, *more = (recorded[name] for name in place[2].split(","))
        made = several([one, *more], reasons) if more else block(one, reasons.get(one.name))
        return f"{place[1]}\n{made}\n\n{place[3]}"

    text = BLOCK.sub(tables, text)
    results.write_text(text, encoding="utf-8")


def read(root: Path = ROOT) -> dict[str, Recorded]:
    """The recorded runs by name, and their comparisons as "ONE OTHER"."""
    found = {}
    for path in sorted((root / RECORDED).glob("*.csv")):
        cells = pandas.read_csv(path, dtype=str, keep_default_na=False)
        tables: dict[str, dict[str, dict[str, str]]] = {}
        for title, row, column, value in cells.itertuples(index=False):
            tables.setdefault(title, {}).setdefault(row, {})[column] = value
        about = {fact: cell["value"] for fact, cell in tables.pop("about").items()}
        found[path.stem] = Recorded(path.stem, about, tables)
    page = (root / RESULTS).read_text(encoding="utf-8")
    for one, other, text in BETWEEN.findall(page):
        if one in found:
            found[f"{one} {other}"] = replace(found[one], tables=_tables(text))
    return found


def block(run: Recorded, reason: str | None = None) -> str:
    """What the page shows of a run: its size, why it differs, and the last round or the gain to the highest target."""
    title, grid = next(iter(run.tables.items()))
    first = next(iter(grid.values()))
    last = [column for column in first if column.startswith("round ")][-1]
    shown = [last, *[column for column in first if not column.startswith("round ")]]
    columns = {column: (column, grid) for column in shown if column != "macro F1"}
    about = f"{run.about['size']}; {run.about['date']}"
    by_target = {
        found[1]: table for title, table in run.tables.items() if (found := TARGET.search(title))
    }
    if by_target:
        ends = [percent(row[last])[0] for row in grid.values()]
        span = " to ".join(sorted({f"{min(ends)}", f"{max(ends)}"}))
        about += f"; {title.partition(':')[0]} in {last}: {span}%"
        for column in (last, "vs. baseline"):
            del columns[column]
        target = max(by_target, key=lambda text: int(text.removesuffix("%")))
        for column in ("gain, published", "gain, P1's rule", "gain, both reached"):
            if any(column in row for row in by_target[target].values()):
                columns[column.replace("gain", f"gain to {target}")] = (column, by_target[target])
    baseline, *others = grid
    if by_target:
        about += f"; gains over {baseline}"
    lines = [["method", *columns]]
    for method in others if by_target else grid:
        lines.append(
            [method, *(table.get(method, {}).get(column, "") for column, table in columns.values())]
        )
    head, *rows = (f"| {' | '.join(line)} |" for line in lines)
    rule = f"|:--|{'--:|' * len(columns)}"
    files = f"[all tables](../../lab/results/papers/{run.name}.csv)"
    caption = f"*{about} ({files}){f'. Not as published: {reason}' if reason else ''}.*"
    return "\n".join([caption, "", head, rule, *rows])


def several(runs: Sequence[Recorded], reasons: Mapping[str, str | None]) -> str:
    """One table of runs that have the same baseline: the last round of each, and why they differ from the paper."""
    baseline = next(iter(runs[0].table("")))
    heads = ["run, target", "method", "last round", f"minus {baseline}", "rounds to target"]
    lines = [f"| {' | '.join(heads)} |", "|:--|:--|--:|--:|--:|"]
    for run in runs:
        grid = run.table("")
        columns = grid[baseline]
        last = [column for column in columns if column.startswith("round ")][-1]
        (until,) = (column for column in columns if column.startswith("rounds to "))
        target = until.removeprefix("rounds to ")
        about = f"[{run.name}](../../lab/results/papers/{run.name}.csv) {size_of(run)}, {target}"
        for method, row in grid.items():
            against = row["vs. baseline"].replace("baseline", "–")
            lines.append(f"| {about} | {method} | {row[last]} | {against} | {row[until]} |")
            about = ""
    differ = [f"{run.name}: {why}" for run in runs if (why := reasons.get(run.name))]
    return "\n".join([*lines, "", f"*Not as published: {'. '.join(differ)}.*"])


def size_of(run: Recorded) -> str:
    """Seeds × rounds."""
    return "×".join(re.findall(r"\d+", run.about["size"]))


def _tables(block: str) -> dict[str, Grid]:
    return {title: _grid(lines) for title, lines in TABLE.findall(block)}


def _grid(lines: str) -> dict[str, dict[str, str]]:
    head, _, *rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines.splitlines()
    ]
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def filled(template: str, recorded: Mapping[str, Recorded]) -> str:
    """A text with its {RUN | TABLE | ROW | COLUMN} replaced by the recorded cells."""

    def cell(place: re.Match[str]) -> str:
        run, table, row, column = (part.strip() for part in place[1].split("|"))
        try:
            return recorded[run].table(table)[row][column]
        except KeyError as error:
            raise LookupError(
                f"lab/results/papers/claims.toml: {{{place[1]}}}: there is no {error}"
            ) from None

    return re.sub(r"(?<![\w.])-(?=\d)", "−", CELL.sub(cell, template))


def findings(
    claims: Sequence[Mapping[str, str]], paper: str, recorded: Mapping[str, Recorded]
) -> str:
    """The table of a paper: what it claims, what it printed, what is recorded here."""
    lines = [
        "| table | claim | published | here | seeds | verdict |",
        "|:--|:--|:--|:--|--:|:--|",
    ]
    for claim in claims:
        if claim["where"].startswith(paper):
            (run, *_) = runs_of(claim["here"])
            seeds = recorded[run].about["size"].partition(" ")[0]
            keys = ("claim", "published", "here", "verdict")
            what, published, here, verdict = (filled(claim[key], recorded) for key in keys)
            where = claim["where"].removeprefix(f"{paper} ")
            lines.append(f"| {where} | {what} | {published} | {here} | {seeds} | {verdict} |")
    return "\n".join(lines)


def runs_of(template: str) -> list[str]:
    """The runs that a text quotes.

    >>> runs_of("{p3-1a | accuracy | AdaFed | round 2} in round 2")
    ['p3-1a']
    """
    return [cell.partition("|")[0].strip() for cell in CELL.findall(template)]


def inventory(rows: Sequence[Mapping[str, str]], recorded: Mapping[str, Recorded]) -> str:
    """The papers' experiments whose tables the page does not show: command, recorded size, and what is missing."""
    lines = []
    missing = []
    for row in rows:
        name = row["run"].partition(":")[0]
        run = recorded.get(row["run"].replace(":", "-"))
        link = f"[{row['run']}](../../lab/papers/{name}.toml)"
        if run is None:
            missing.append(link)
            continue
        size = f"[{size_of(run)}](../../lab/results/papers/{run.name}.csv)"
        lines.append(f"- {link}, {size}: {row.get('why', 'complete')}")
    if missing:
        lines += ["", f"{NOT_RECORDED}: {', '.join(missing)}."]
    return "\n".join(lines)


# Figures in the style of the papers' own ----------------------------------------------------------------------------


def curves(axes: Axes, grid: Grid, methods: Sequence[str]) -> str:
    """Draw the recorded rounds of methods with their intervals; what they show, in words."""
    said = []
    ends = []
    for method in methods:
        label = method.replace(">", " ≻ ")
        cells = {
            int(column.removeprefix("round ")): percent(text)
            for column, text in grid[method].items()
            if column.startswith("round ")
        }
        means = [mean for mean, _ in cells.values()]
        margins = [margin for _, margin in cells.values()]
        axes.errorbar([*cells], means, margins, label=label, marker="o", markersize=3, capsize=2)
        said.append(f"{label} {means[-1]:.1f}%")
        ends.append(means[-1])
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    if len(methods) > MOST_NAMED:
        span = " to ".join(sorted({f"{min(ends):.1f}", f"{max(ends):.1f}"}, key=float))
        return f"all {len(methods)} methods end at {span}%"
    return "; ".join(said)


def percent(text: str) -> tuple[float, float]:
    """Mean and half-width of the interval, in percent.

    >>> percent("97.2% ± 0.3"), percent("9.9%")
    ((97.2, 0.3), (9.9, 0.0))
    """
    mean, _, margin = text.partition(" ± ")
    return float(mean.removesuffix("%")), float(margin or 0)


def like_p1(figure: Figure, recorded: Mapping[str, Recorded]) -> str:
    """P1's Figure 2: the clients' test accuracy over the rounds of communication, by method."""
    figure.set_size_inches(9.6, 3.6)
    said = []
    shown = {"p1-mnist-iid-long": "(a) MNIST, IID", "p1-mnist-shards": "(b) MNIST, Non-IID"}
    for place, (name, title) in enumerate(shown.items(), start=1):
        axes = figure.add_subplot(1, 2, place)
        grid = recorded[name].table("accuracy")
        said.append(f"{title}: {curves(axes, grid, [*grid])}")
        axes.set(title=title, xlabel="round of communication", ylabel="test global accuracy, %")
    return f"After Figure 2 of P1, accuracy over the rounds. {'. '.join(said)}."


def like_p2(figure: Figure, recorded: Mapping[str, Recorded]) -> str:
    """P2's Table 1 as lines: rounds until a share of the devices reaches 75%, published and here."""
    figure.set_size_inches(9.6, 3.6)
    grid = recorded["p2-digits-by-writer"].table("75% accuracy")
    shares = ("20%", "30%", "40%", "50%", "70%", "75%")
    methods = ("DS", "MD>DS>LD", "online from MD>DS>LD")
    said = []
    for place, (suffix, title) in enumerate(((", published", "published"), ("", "here")), start=1):
        axes = figure.add_subplot(1, 2, place)
        lines = []
        for method in methods:
            row = grid[f"{method}{suffix}"]
            rounds = [float(row[share]) for share in shares]
            label = method.replace(">", "≻")
            axes.plot(shares, rounds, label=label, marker="o", markersize=3)
            lines.append(f"{label} {rounds[0]:g} to {rounds[-1]:g}")
        said.append(f"{title}: {', '.join(lines)}")
        data = "FEMNIST, 62 classes" if suffix else "digits by writer"
        axes.set(title=f"{title} ({data})", xlabel="devices", ylabel="rounds to 75% accuracy")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return f"After Table 1 of P2, rounds of 20 to 75% of the devices; {'; '.join(said)}."


def like_p3(figure: Figure, recorded: Mapping[str, Recorded]) -> str:
    """P3's Figures 2, 3 and 6: the server model's accuracy over communication rounds."""
    figure.set_size_inches(12.8, 3.6)
    shown = {
        "p3-1a": "Simulation 1.A",
        "p3-1b": "Simulation 1.B",
        "p3-1c": "Simulation 1.C",
    }
    said = []
    for place, (name, title) in enumerate(shown.items(), start=1):
        axes = figure.add_subplot(1, 3, place)
        grid = recorded[name].table("accuracy")
        said.append(f"{title.split()[-1]}: {curves(axes, grid, ('AdaFed', 'FedAvg'))}")
        axes.set(title=title, xlabel="Communication rounds", ylabel="Accuracy, %")
    return f"After Figures 2, 3 and 6 of P3, accuracy over the rounds, which ends at: {'. '.join(said)}."


def draw(like: Drawing, recorded: Mapping[str, Recorded], path: Path) -> str:
    """Draw a figure, which carries what it shows as text."""
    figure = Figure(layout="constrained")
    alt = like(figure, recorded)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Description": alt})
    return alt


FIGURES: dict[str, Drawing] = {"P1": like_p1, "P2": like_p2, "P3": like_p3}


if __name__ == "__main__":
    main()
