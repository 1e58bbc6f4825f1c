from __future__ import annotations

import csv
import gc
import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from pages import carried, write_run
from typer.testing import CliRunner

import clientwise as cw
from clientwise.cli import app
from clientwise.report import views
from clientwise.report.document import (
    Cell,
    Chart,
    Document,
    Section,
    table,
)
from clientwise.report.marks import (
    AuditLinks,
    Axis,
    BarGroup,
    Bars,
    HeatMap,
    Line,
    Lines,
    value_axis,
)
from clientwise.report.output.export import (
    _file_name,
    as_csv,
    as_latex,
    as_markdown,
    audits,
    unique_names,
    write_items,
    write_report,
)
from clientwise.report.output.figures import draw, draw_into, draw_mark
from clientwise.report.output.html import to_json, write_html
from clientwise.report.output.paper import PAGE, draw_for_print, tell_apart
from clientwise.report.output.plotly import traces_and_layout
from clientwise.report.series import DASHES
from clientwise.report.views import overview

TABLE = table(
    "t",
    "100% of a_b",
    ["method", "gain"],
    [["MW > LD | DS", Cell(4.67, "+4.7 ± 0.3")], ["x^2", None]],
    "κ & co.",
)


def test_tables_in_three_formats() -> None:
    assert list(csv.reader(as_csv(TABLE).splitlines())) == [
        ["method", "gain"],
        ["MW > LD | DS", "4.67"],
        ["x^2", ""],
    ]
    assert as_markdown(TABLE).splitlines()[2:6] == [
        "| method | gain |",
        "| :-- | --: |",
        "| MW > LD \\| DS | +4.7 ± 0.3 |",
        "| x^2 |  |",
    ]
    latex = as_latex(TABLE)
    assert latex.startswith("% \\usepackage{booktabs}\n")
    assert r"\label{tab:t}" in latex
    assert r"\begin{tabular}{lr}" in latex
    assert r"MW $\succ$ LD | DS & +4.7 $\pm$ 0.3 \tabularnewline" in latex
    assert r"\caption{100\% of a\_b}" in latex, "short: the note stands beneath the table"
    assert r"\parbox{\linewidth}{$\kappa$ \& co.}" in latex
    assert latex.count("{") == latex.count("}")


def test_the_best_of_rivals_is_bold_and_a_minus_is_a_minus() -> None:
    rows = [
        ["FedAvg", Cell(None, "baseline"), 9],
        ["other", Cell(-0.4, "-0.4 ± 1.6"), 3],
        ["a-1", Cell(2.0, "+2.0"), 3],
    ]
    shown = table(
        "t 1",
        "t",
        ["method", "gain", "rounds"],
        rows,
        "",
        lower=["rounds"],
        marked=["gain", "rounds"],
    )
    assert shown.best() == {(2, 1), (1, 2), (2, 2)}
    latex = as_latex(shown)
    assert r"other & $-$0.4 $\pm$ 1.6 & \textbf{3} \tabularnewline" in latex
    assert (
        r"a-1 & \textbf{+2.0} & \textbf{3} \tabularnewline" in latex
    )  # a hyphen in a name is none
    assert r"\label{tab:t-1}" in latex
    assert (
        as_latex(table("t", "t", ["client", "weight"], [["0", 1], ["1", 2]], "")).count("textbf")
        == 0
    )


@pytest.mark.parametrize("lower_is_better", [False, True])
@pytest.mark.parametrize("texts", [None, [["0", "0.5", "1"]]])
def test_heat_maps_have_the_same_colours_on_page_and_paper(
    texts: list[list[str]] | None, lower_is_better: bool
) -> None:
    values = [[0.0, 1.0, 2.0]]
    mark = HeatMap([1, 2, 3], ["a"], values, 2, texts=texts, lower_is_better=lower_is_better)
    figure = Figure()
    draw_into(figure, [Chart("heat", "heat", "heat", mark)])
    (image,) = figure.axes[0].images
    (trace,), _ = traces_and_layout(mark)
    scale = {2 * share: colour for share, colour in trace["colorscale"]}
    assert (trace["zmin"], trace["zmax"]) == image.get_clim() == (0, 2)
    assert image.get_alpha() is None
    for value in values[0]:
        assert to_hex(image.to_rgba(value)) == scale[value].lower()


def test_labels_of_a_picture_are_whole_and_do_not_touch() -> None:
    """A long title has two lines, and a line at zero is drawn whole."""
    ends = [0.163, 0.12, 0.0]
    links = AuditLinks("client", "run", "Recommended", 0)
    axis = value_axis(ends, percent=True, label="influence")
    mark = Bars(["0", "1", "2 hostile"], [BarGroup("rule", ends, "#009E73")], axis, 0.1, links)
    title = "Recommended: round 6, seed 0, from an equal weight to the influence"
    figure = Figure()
    draw_into(figure, [Chart("steps", title, "bars", mark)])
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert axes.get_title().split() == title.split()
    assert "\n" in axes.get_title()
    left, right = axes.get_xlim()
    assert left < 0
    shown = [label for label in axes.get_xticklabels() if left < label.get_position()[0] < right]
    assert [label.get_text() for label in shown] == ["0%", "5%", "10%", "15%"]
    boxes = [label.get_window_extent() for label in shown]
    for one, following in itertools.pairwise(boxes):
        assert one.x1 + 10 < following.x0


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    for name in ("tables/s-t.csv", "figures/s-c.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).symlink_to(precious)
    os.mkfifo(tmp_path / "tables" / "s-t.md")
    lines = Lines([Line("a", [1], [0.5], "#000000")], Axis("round"), Axis())
    line = Chart("c", "a chart", "a line", lines)
    write_items(
        Document("report", [], [Section("s", "all", "", [TABLE, line])]),
        tmp_path,
        figures=["png"],
    )
    assert precious.read_bytes() == b"precious"
    assert (tmp_path / "figures" / "s-c.png").read_bytes()[:4] == b"\x89PNG"
    assert "| method |" in (tmp_path / "tables" / "s-t.md").read_text()


def test_a_report_has_a_page_figures_and_tables(report: Path) -> None:
    names = {path.name for path in report.rglob("*")}
    assert "report.html" in names
    for stem in (
        "curves-metric",
        "clients-distribution",
        "weights-hostile",
        "weights-steps-online",
        "priority-priority-online",
    ):
        assert (report / "figures" / f"{stem}.png").read_bytes()[:4] == b"\x89PNG"
        ElementTree.parse(report / "figures" / f"{stem}.svg")
    for stem in ("result-summary", "targets-target-0.6", "cost-costs"):
        for suffix in ("csv", "md", "tex"):
            assert (report / "tables" / f"{stem}.{suffix}").stat().st_size > 50
    assert not [name for name in names if "<" in name or "&" in name or "/" in name]


def _page_width(pdf: bytes) -> float:
    """In inches."""
    box = re.search(rb"/MediaBox \[ 0 0 ([0-9.]+) ", pdf)
    assert box is not None
    return float(box[1]) / 72


def test_figures_for_papers_are_a_column_wide_with_true_type_fonts(
    shown: cw.Run, report: Path, tmp_path: Path
) -> None:
    for picture in (report / "figures").glob("*.png"):
        pdf = picture.with_suffix(".pdf").read_bytes()
        assert _page_width(pdf) == pytest.approx(3.3), picture
        assert b"/FontFile2" in pdf  # an embedded TrueType font
        assert b"/Type3" not in pdf
    curves = (report / "figures" / "curves-metric.pdf").read_bytes()
    chart = views.result_charts(shown)[0]
    draw_for_print(chart, tmp_path / "again.pdf")
    assert (tmp_path / "again.pdf").read_bytes() == curves
    draw_for_print(chart, tmp_path / "wide.pdf", PAGE)
    assert _page_width((tmp_path / "wide.pdf").read_bytes()) == pytest.approx(6.8)


def test_the_command_writes_the_figures_that_it_is_asked_for(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=2, clients=3)
    figures = folder / "report" / "figures"

    def report(*options: str) -> str:
        done = CliRunner().invoke(app, ["report", str(folder), *options])
        assert done.exit_code == 0, done.output
        return done.output

    assert "--figures pdf draws figures for a paper" in report()
    assert (folder / "report" / "tables" / "result-summary.csv").is_file()
    assert not figures.exists()
    drawn = report("--wide")
    assert "figures (PDF)" in drawn
    total = len(list(figures.iterdir()))
    assert f"Drawing figure 1 of {total}\n" in drawn  # a line, since this is no terminal
    curves = (figures / "curves-metric.pdf").read_bytes()
    assert _page_width(curves) == pytest.approx(6.8)
    assert {path.suffix for path in figures.iterdir()} == {".pdf"}
    assert "figures (PDF, SVG)" in report("--figures", "svg, PDF")
    curves = (figures / "curves-metric.pdf").read_bytes()
    assert _page_width(curves) == pytest.approx(3.3)
    assert {path.suffix for path in figures.iterdir()} == {".pdf", ".svg"}
    (figures / "curves-metric.pdf.0123456789ab.part").touch()  # of another process
    assert "Not updated" not in report("--figures", "pdf,svg")
    said = " ".join(report("--figures", "pdf").split())
    assert f"Not updated {total} files in {figures}, older than this report" in said
    assert f"Not updated {2 * total} files in {figures}" in " ".join(report().split())
    refused = CliRunner().invoke(app, ["report", str(folder), "--figures", "jpg"])
    assert refused.exit_code == 2
    assert "--figures jpg: write one or several of pdf, png, svg" in refused.output


def test_garbage_is_collected_again_after_a_report(tmp_path: Path) -> None:
    run = cw.Run(write_run(tmp_path / "run", rounds=1, clients=2))
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        write_report([run], tmp_path / "file")
    assert gc.isenabled()


def test_a_report_loads_and_opens_only_what_it_needs(tmp_path: Path) -> None:
    folders = [
        str(write_run(tmp_path / f"run{rounds}", rounds=rounds, clients=3)) for rounds in (1, 2, 9)
    ]
    program = f"""
        import sys
        opened = []
        sys.addaudithook(lambda event, _: opened.append(event) if event == "sqlite3.connect" else None)
        from clientwise.cli import app
        from clientwise.report.statistics import Contingency, paired_difference
        numbers = []
        for folder in {folders}:
            opened.clear()
            app(["report", folder], standalone_mode=False)
            numbers.append(len(opened))
        assert paired_difference([1.0, 2.0], [3.0, 5.0]).p_value
        assert Contingency(0, 1, 2, 3).p_value
        print()
        print(*numbers, *sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    _, few, many, *loaded = done.stdout.splitlines()[-1].split()
    assert int(few) == int(many) > 0  # the first report of a process opens one more
    slow = {"matplotlib", "pandas", "PIL", "scipy.stats", "sklearn", "torch"}
    assert not slow & {*loaded}


def test_printed_lines_differ_without_colours() -> None:
    lines = []
    for index in range(20):
        dash = DASHES[index % len(DASHES)]
        lines.append(Line(f"method {index}", [1, 2], [0.1, index / 20], "#000000", dash))
    mark = Lines(lines, Axis("round"), Axis(), reference=0.5)
    axes = Figure().add_subplot()
    draw_mark(axes, mark)
    tell_apart(axes, mark)
    *drawn, target = axes.get_lines()
    styles = {(line.dash, str(own.get_marker())) for line, own in zip(lines, drawn, strict=True)}
    assert len(styles) == 20
    assert target.get_marker() == "None"


def test_the_page_carries_audits_of_last_rounds_and_of_refusals(
    report: Path, shown: cw.Run
) -> None:
    page = report / "report.html"
    refusals = {
        f"{method}|{row.seed}|{row.first_round}"
        for method in shown.methods
        for row in shown.refusals(method, 100)
    }
    last = {f"{method}|{seed}|5" for _, method, seed in shown.lanes}
    assert refusals - last
    rounds = carried(page)["audits"]["round"].keys()
    assert rounds == refusals | last
    every = len(shown.lanes) * 5
    assert len(rounds) < every
    assert "<b>AdaFed" not in page.read_text(
        encoding="utf-8"
    )  # a name from a config is never markup
    assert (
        page.stat().st_size < 2_000_000
    )  # three methods with three seeds: small enough for a mail


def test_the_page_carries_every_seed(report: Path) -> None:
    seeds = carried(report / "report.html")["audits"]["seed"]
    assert list(seeds) == ["2", "3"]
    weights, *_ = seeds["3"]["sections"]
    assert weights["seed"] == 3
    first = next(item for item in weights["items"] if item["id"].startswith("map-"))
    assert "seed 3" in first["title"]
    assert first["data"][0]["meta"]["seed"] == 3


def test_file_names_do_not_collide() -> None:
    used: set[str] = set()
    assert [
        _file_name(text, used) for text in ("map-a/b", "map-a-b", "map-A b", "target-0.65")
    ] == [
        "map-a-b",
        "map-a-b-2",
        "map-A-b-3",
        "target-0.65",
    ]


@pytest.mark.parametrize("rounds", [1, 2])
def test_the_shortest_runs_and_regression_can_be_reported(tmp_path: Path, rounds: int) -> None:
    config = {
        "name": "short",
        "rounds": rounds,
        "data": "diabetes",
        "partition": {"name": "iid", "clients": 3},
        "model": "linear",
        "training": {"learning_rate": 0.01},
        "server_set": {"fraction": 0.2 if rounds == 2 else 0.0},
        "evaluation": {"target": 0.5},
        "methods": [
            {"name": "FedAvg"},
            {
                "name": "m" * 200,
                "criteria": ["dataset_size", "model_divergence"],
                "adjust": "best_order",
            },
        ],
    }
    run = cw.Run(cw.run(config, tmp_path / "run"))
    draw(views.result_charts(run)[:1], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"
    head = next(csv.reader(as_csv(overview([run]).sections[0].items[0]).splitlines()))
    assert {  # every number in a column of its own
        "method",
        *(f"rmse {part}" for part in ("mean", "deviation", "seeds")),
        *(f"against the baseline {part}" for part in ("mean", "low", "high", "seeds", "p by Holm")),
        *("worst client", "worst client name"),
        *(f"rounds to 0.5 {part}" for part in ("median", "reached", "not reached")),
    } <= set(head)
    assert not any("F1" in name or "hostile" in name for name in head)
    assert "points worse" not in views.overview([run]).lead[0]
    expected = "held-out samples" if rounds == 2 else "the honest clients' own test data"
    assert run.reported_on == expected


def test_reports_of_several_runs_carry_their_audits(tmp_path: Path) -> None:
    shown = write_run(tmp_path / "shown", ["online"])
    names = unique_names([shown, shown])
    assert list(names) == ["shown", "shown~2"]
    runs = [cw.Run(folder, name) for name, folder in names.items()]
    found = carried(write_html(overview(runs), audits(runs), tmp_path / "both.html"))
    assert "shown: online" in json.dumps(found["document"])
    assert "shown~2|online|1|5" in found["audits"]["round"]


def test_a_report_cannot_be_broken_out_of(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><!--"
    document = Document(evil, [evil], [])
    audits = {"round": {f"{evil}|1|1": document}}
    text = write_html(document, audits, tmp_path / "new" / "report.html").read_text()
    assert evil not in text
    assert text.count("<script") == 4  # document, audits, Plotly, the page itself
    written = json.loads(to_json({"a": [float("nan"), 1.5, (float("inf"),)]}))
    assert written == {"a": [None, 1.5, [None]]}
