"""The documentation is true: its reference is current, its examples run, its links lead somewhere."""

from __future__ import annotations

import inspect
import json
import os
import re
import runpy
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import nbformat
import numpy
import pytest
import tomli_w
import torch
from nbclient import NotebookClient
from PIL import Image
from typer.testing import CliRunner

import clientwise as cw
from clientwise.cli import app
from clientwise.experiment.config_file import METHODS
from clientwise.experiment.reference import KINDS
from clientwise.testing import check_rule

ROOT = Path(__file__).parents[1]
LAB = ROOT / "lab" / "README.md"
PAGES = [*sorted(ROOT.glob("*.md")), LAB, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(
        rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL
    )


def test_the_config_reference_is_current() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_config.py"))
    files = {"PAGE": "markdown", "PARTS_PAGE": "parts_page", "LISTED": "parts_json"}
    for file, text in ((made[key], made[name]()) for key, name in files.items()):
        assert file.read_text("utf-8").strip() == text.strip(), "run `make docs`"


def test_the_page_on_data_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for config in blocks("data.md", "toml"):
        cw.load(tomllib.loads(config) | {"name": "page", "rounds": 1, "model": "linear"})
    *_, drawn, own = blocks("data.md", "python")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(f"{drawn}\nassert len(set(run.facts.data.values())) == 3 and run.finished", scope)
    exec(f"{own}\nassert run.finished and data.num_clients == 2", scope)


def test_the_page_on_comparisons_has_configs_that_load(tmp_path: Path) -> None:
    tuned, matrix, columns = blocks("compare.md", "toml")
    start, _, cells = matrix.partition("[matrix]")
    digits = 'data = "digits"\npartition = { name = "iid", clients = 5 }\n'
    without_methods = re.sub(r"methods = .*", "", start)
    configs = {
        "tuned": start.replace("FedAvg", "FedYogi") + digits + tuned,
        "matrix": matrix,
        "columns": f"{without_methods}{columns}[matrix]{cells}",
    }
    for name, config in configs.items():
        (tmp_path / f"{name}.toml").write_text(config, encoding="utf-8")
        done = CliRunner().invoke(app, ["check", str(tmp_path / f"{name}.toml")])
        assert done.exit_code == 0, done.output


def test_the_script_for_a_cluster_runs_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As SLURM calls it: with the number of the task and of its cores.

    The script's command prints its words, and they run here: a process would import PyTorch each time.
    """
    script = blocks("performance.md", "bash")[0]
    (program,) = blocks("performance.md", "python")
    config = {"name": "mine", "rounds": 2, "data": "digits", "model": "linear"}
    config |= {"partition": {"name": "iid", "clients": 4}, "methods": ["FedAvg"]}
    (tmp_path / "mine.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    command = tmp_path / "clientwise"
    command.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n", encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    monkeypatch.chdir(tmp_path)
    for task in ("1", "2", "2"):  # the last one finds a finished run
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
        words = subprocess.check_output(["bash", "-c", script], text=True).splitlines()
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    exec(program, {})
    assert "FedAvg" in capsys.readouterr().out
    assert [cw.Run(f"runs/mine-seed{seed}").lanes["seed"].tolist() for seed in (1, 2)] == [[1], [2]]


@pytest.mark.slow  # a kernel that imports PyTorch; test_results.py shows runs as a notebook does
@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.name
)
def test_notebooks_run(path: Path, tmp_path: Path) -> None:
    """In a kernel, as Jupyter runs them. A failing cell raises."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = "".join(output.get("data", {}).get("text/html", "") for output in outputs)
    assert "Recommended has the highest accuracy" in shown
    assert "With 2 seeds, no significance is claimed" in shown


def test_the_page_on_models_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, several_inputs, plugin, options, trained, elsewhere = blocks("models.md", "python")
    monkeypatch.chdir(tmp_path)
    exec(
        f"import clientwise as cw\nfrom torch import nn\n{several_inputs}\nassert run.finished",
        {},
    )
    Path("my_net.py").write_text(plugin, encoding="utf-8")
    exported = 'run.export("FedAvg", 1, "runs/own/models")\nmodule = network((1, 8, 8), 10)'
    exec(
        "\n".join(
            [own, trained, exported, elsewhere, "assert module[1].weight.equal(trained[1].weight)"]
        ),
        {},
    )
    of_training = [own.replace("runs/own", "runs/before"), "import torch", options]
    exec("\n".join([*of_training, "assert run.finished"]), {})
    config, training = blocks("models.md", "toml")
    rest = {
        "name": "page",
        "rounds": 1,
        "data": "digits",
        "partition": "by_id",
        "plugin_dir": str(tmp_path),
    }
    assert cw.load(tomllib.loads(config) | rest).model_name == "my_net"
    found = cw.load(tomllib.loads(training) | rest | {"model": "linear", "methods": ["FedAvg"]})
    assert found.keep == "best"


@pytest.mark.slow
def test_the_page_on_hugging_face_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft", reason="peft is not installed: clientwise[huggingface]")
    program, saved, sharing = blocks("huggingface.md", "python")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec("\n".join([program, saved, sharing]), scope)
    assert scope["run"].frame("rounds")["residual"].notna().tolist() == [True] * 2
    inputs, _ = scope["texts"](3)
    expected = cw.load(scope["run"].folder, module=scope["network"]).module(**inputs).logits
    assert numpy.allclose(
        scope["trained"].eval()(**inputs).logits.detach(), expected.detach(), atol=1e-6
    )
    (method,) = tomllib.loads(*blocks("huggingface.md", "toml"))["methods"]
    methods = [method, {"name": "median", "rule": "median"}]
    folder = cw.run(
        scope["config"] | {"methods": methods},
        data=scope["samples"],
        model=scope["sharing_a"],
    ).folder
    assert cw.Run(folder).finished


def test_the_page_on_parts_shows_the_example() -> None:
    code, *_ = blocks("parts.md", "python")
    body = code.split("@cw.criterion")[1].strip()
    assert body in (ROOT / "examples" / "my_criteria.py").read_text(encoding="utf-8")


def test_the_page_on_parts_has_a_score_that_runs() -> None:
    page = (ROOT / "docs" / "parts.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^ {4}(def weaker\(.*?)\n\n", page, re.DOTALL | re.MULTILINE)
    scope: dict[str, Any] = {"torch": torch}
    exec(textwrap.dedent(" " * 4 + code), scope)
    weights = cw.weigh({"size": [1, 3], "accuracy": [0.5, 0.5]}, score=scope["weaker"])
    assert weights.tolist() == pytest.approx([1 / 3, 2 / 3])


def test_the_page_on_parts_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    criterion, criterion_test, rule, data, others = blocks("parts.md", "python")
    plugins = {"my_criteria": criterion, "my_rules": rule, "my_data": data, "my_parts": others}
    for name, code in plugins.items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    scope: dict[str, Any] = {}
    exec(criterion_test, scope)
    scope["test_battery"]()
    random = numpy.random.default_rng(1)
    sensors = {"readings": random.normal(size=(60, 4)), "labels": random.integers(0, 3, 60)}
    numpy.savez(tmp_path / "sensors.npz", **sensors, sites=numpy.repeat([0, 1], 30))

    rest = {"name": "page", "rounds": 1, "model": "linear", "plugin_dir": str(tmp_path)}
    digits = {"data": "digits", "partition": {"name": "iid", "clients": 6}}
    by_battery, by_facts, by_site, mine = map(tomllib.loads, blocks("parts.md", "toml"))
    nearer = {"name": "nearer", "rule": {"name": "near_mean", "power": 2.0}}
    by_rule = {"plugins": ["my_rules"], "methods": [nearer]}
    for number, config in enumerate([by_battery, by_facts, by_rule, mine]):
        assert cw.Run(cw.run(rest | digits | config, tmp_path / f"run-{number}")).finished
    check_rule("near_mean")
    found = cw.load(rest | by_site)
    assert cw.Run(cw.run(found, tmp_path / "sites")).finished


def test_the_page_on_parts_names_every_kind() -> None:
    page = (ROOT / "docs" / "parts.md").read_text(encoding="utf-8")
    for registry in KINDS.values():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {registry.kind} |")]
        parts = [registry.get(name) for name in registry]
        functions = [part for part in parts if not inspect.isclass(part)]
        for part in functions:
            given = inspect.signature(part).parameters.values()
            passed = [one.name for one in given if one.kind is not one.KEYWORD_ONLY]
            assert all(name in row or name in ("scores", "targets") for name in passed), passed


def test_the_pages_on_methods_and_attacks_name_all_of_them() -> None:
    for page, names in {"methods.md": METHODS, "rules.md": KINDS["attacks"]}.items():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert [name for name in names if f"`{name}`" not in text] == [], page


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.name
)
def test_example_configs_run(path: Path, tmp_path: Path) -> None:
    run = cw.Run(cw.run(cw.load(path, ["rounds=2"]), tmp_path / "run"))
    assert run.finished


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_targets_of_make_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    code = "\n".join(
        [*re.findall(r"```\w*\n(.*?)```", text, re.DOTALL), *re.findall(r"`([^`\n]+)`", text)]
    )
    targets = re.findall(
        r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert set(re.findall(r"(?:^|[:;] )make ([a-z-]+)", code, re.MULTILINE)) <= set(targets)


@pytest.mark.slow  # builds the site; links between pages are followed above
def test_the_site_is_whole_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "docs/make_site.py", "--out", tmp_path]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True
    )  # strict: no link or anchor leads nowhere
    assert built.returncode == 0, built.stdout + built.stderr
    assert 'url=dev/index.html"' in (tmp_path / "index.html").read_text(encoding="utf-8")
    site = tmp_path / "dev"
    pages = {page.name: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    assert {
        "index.html",
        *(f"{page.stem}.html" for page in (ROOT / "docs").rglob("*.md")),
    } <= pages.keys()
    for name, page in pages.items():
        assert not re.findall(
            r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"?https?:[^>]*", page
        ), name
    for page in site.rglob("*.html"):
        for target in re.findall(r"(?:href|src)=\"?([^\"\s>#]+)", page.read_text("utf-8")):
            if not re.match(r"[a-z]+:", target):
                assert (page.parent / target).exists(), f"{page}: {target}"
    assert "I want to" in pages["index.html"]
    assert 'id="clientwise.core.weights.weighting.weigh"' in pages["api.html"]
    assert "label_diversity" in (site / "search.js").read_text(encoding="utf-8")


def test_the_site_opens_at_the_newest_release(tmp_path: Path) -> None:
    for name in ("dev", "0.9.0", "0.10.0"):
        (tmp_path / name).mkdir()
    runpy.run_path(str(ROOT / "docs" / "make_site.py"))["list_versions"](tmp_path)
    versions = json.loads((tmp_path / "versions.json").read_text(encoding="utf-8"))
    assert [one["version"] for one in versions] == ["0.10.0", "0.9.0", "dev"]
    assert "url=0.10.0/index.html" in (tmp_path / "index.html").read_text(encoding="utf-8")


PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+\.png)\)")
# Made by `make docs`: the demo's picture, and the pages in a browser.
BY_MAKE_DOCS = {"demo.png", "shares.png", "page-overview.png"}


def test_every_picture_is_made_with_the_numbers_of_its_page() -> None:
    """A figure carries what it shows as text. Its page must say the same, or a test compare it."""
    made = runpy.run_path(str(ROOT / "lab" / "default" / "make_default.py"))["FIGURES"]
    compared = {path.resolve() for path in made}  # tests/test_claim.py
    used = set()
    for page in PAGES:
        for alt, target in PICTURE.findall(page.read_text(encoding="utf-8")):
            path = (page.parent / target).resolve()
            used.add(path)
            if path in compared or path.name in BY_MAKE_DOCS:
                continue
            with Image.open(path) as image:
                shown = image.info.get("Description")
            assert shown == alt, f"{page.name}: {target} was made by other runs than its text"
    pictures = {path.resolve() for path in (ROOT / "docs").rglob("*.png")}
    unused = {str(path.relative_to(ROOT / "docs")) for path in pictures - used}
    assert unused <= BY_MAKE_DOCS


RESULTS = sorted((ROOT / "docs" / "results").glob("*.md"))
# Pages of results: a table is filled by a script of lab/, or its section says what made it.
OF_RESULTS = ("performance.md", "reproduction.md", *(f"results/{page.name}" for page in RESULTS))
FILLED = re.compile(
    r"<!-- (run \S+|quick|inventory|findings P\d|make_\w+(: .+)?|select_federations) -->.*?<!-- end -->",
    re.DOTALL,
)
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
ORIGIN = re.compile(
    r"`lab/\w+/\w+\.py|lab/\w+/[\w-]+\.toml|run_all\.py|no command makes th"
    r"|in these tables|from the runs `|according to its documentation"
)
MEASURED = re.compile(
    r"\| *[*−-]*\d[\d.,]*(?:%| ms| s)?[*]* *(?= ±| \||\|)"
)  # a number alone in its cell


@pytest.mark.parametrize("name", OF_RESULTS)
def test_every_table_of_results_says_where_it_comes_from(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    sections = re.split(r"^(?=#{2,} )", FILLED.sub("", text), flags=re.MULTILINE)
    chapter = ""
    for section in sections:
        if section.startswith("## "):
            chapter = section
        tables = [one for one in TABLE.findall(section) if len(MEASURED.findall(one)) > 2]
        if tables:
            assert ORIGIN.search(section) or ORIGIN.search(chapter), section[:60]


def test_the_page_of_the_laboratory_names_every_experiment_and_script() -> None:
    text = LAB.read_text(encoding="utf-8")
    rows = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    files = [*LAB.parent.glob("*.py"), *LAB.parent.glob("*/*.py"), *LAB.parent.glob("*/*.toml")]
    for path in files:
        assert re.search(rf"\b{re.escape(path.stem)}\b", rows), path
    assert sum(bool(re.search(r"\w", word)) for word in text.split()) <= 700


MOST_WORDS = 40_000  # of the manual; protocols, tables and raw results are in docs/results


def test_the_manual_is_short_enough_to_read() -> None:
    manual = (ROOT / "docs").glob("*.md")
    words = [word for page in manual for word in page.read_text(encoding="utf-8").split()]
    assert sum(bool(re.search(r"\w", word)) for word in words) <= MOST_WORDS
