"""Build the documentation as a site: the working tree as version `dev`, and every tag that is named.

python docs/make_site.py [TAG ...]

Zensical reads pages from disk only. Pages that are not in docs/ (those of the repository's root, the API
reference, the files that pages link to) are therefore written to a folder together with docs/ first.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import griffe
from packaging.version import Version

ROOT = Path(__file__).parents[1]
DEV = "dev"
FROM_ROOT = {
    "README.md": "about.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    ".github/SECURITY.md": "SECURITY.md",
    "lab/README.md": "lab.md",
}
NOT_PAGES = shutil.ignore_patterns("*.py", "*.yml", "__pycache__")
SHIM = "https://unpkg.com/iframe-worker/shim"  # what the theme fetches to search in a site on disk
REDIRECT = '<!doctype html><meta http-equiv="refresh" content="0; url={}/index.html">\n'


def main() -> None:
    """Build what is missing in the site, then its list of versions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tags", nargs="*", help="releases to build, unless the site has them")
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="folder of the site")
    parser.add_argument("--version", default=DEV, help="name of the working tree's version")
    chosen = parser.parse_args()
    out = chosen.out.resolve()
    build(out / chosen.version)
    for tag in chosen.tags:
        if not (out / tag.removeprefix("v")).exists():
            build_tag(tag, out)
    list_versions(out)


def build(target: Path) -> None:
    """Build the site of this tree."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_pages(folder / "docs")
        shutil.copy(ROOT / "docs" / "mkdocs.yml", folder)
        (folder / "src").symlink_to(ROOT / "src")
        (folder / "make_site.py").symlink_to(__file__)
        zensical = [sys.executable, "-m", "zensical", "build", "--strict"]
        subprocess.run(zensical, cwd=folder, check=True)
        site = folder / "site"
        (
            site / "404.html"
        ).unlink()  # its links start from the top of a server, the pages are below it
        for page in site.rglob("*.html"):
            shim = os.path.relpath(site / "assets" / "iframe-worker.js", page.parent)
            text = page.read_text("utf-8")
            page.write_text(text.replace(SHIM, shim), "utf-8")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(site, target)


def build_tag(tag: str, out: Path) -> None:
    """Build a release with its own pages, code and copy of this script."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        archive = subprocess.run(
            ["git", "archive", tag], cwd=ROOT, check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "--extract"], cwd=folder, check=True, input=archive.stdout)
        subprocess.run(
            [sys.executable, "docs/make_site.py", "--version", tag.removeprefix("v"), "--out", out],
            cwd=folder,
            check=True,
            env=os.environ | {"PYTHONPATH": str(folder / "src")},
        )


def list_versions(out: Path) -> None:
    """Write the versions for the theme's menu, and a first page that leads to the newest release."""
    names = [path.name for path in out.iterdir() if path.is_dir()]
    releases = sorted((name for name in names if name != DEV), key=Version, reverse=True)
    ordered = [*releases, *(name for name in names if name == DEV)]
    entries = [{"version": name, "title": name, "aliases": []} for name in ordered]
    (out / "versions.json").write_text(json.dumps(entries), "utf-8")
    (out / "index.html").write_text(REDIRECT.format(ordered[0]), "utf-8")


def write_pages(folder: Path) -> None:
    """Write everything that the site is made of."""
    shutil.copytree(ROOT / "docs", folder, ignore=NOT_PAGES)
    for source, target in FROM_ROOT.items():
        (folder / target).write_text(_from_root(ROOT / source), "utf-8")
    (folder / "api.md").write_text(api_reference(), "utf-8")
    for page in list(folder.rglob("*.md")):
        _copy_linked_files(page, folder)


def _copy_linked_files(page: Path, folder: Path) -> None:
    """A link out of docs/ leads to a page of the site, or to a copy of the file. A folder stays a name."""
    above = "../" * (len(page.relative_to(folder).parts) - 1)  # from the page to docs/
    outside = re.compile(rf"\[([^\]]+)\]\({re.escape(above)}\.\./([^.)#\s][^)#\s]*)\)")

    def to_copy(link: re.Match[str]) -> str:
        words, target = link.groups()
        if (ROOT / target).is_dir():
            return words
        copy = folder / "files" / f"{target}.txt"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / target, copy)
        return f"[{words}]({above}files/{target}.txt)"

    text = page.read_text("utf-8")
    for source, target in FROM_ROOT.items():
        text = text.replace(f"]({above}../{source}", f"]({above}{target}")
    page.write_text(outside.sub(to_copy, text), "utf-8")


def _from_root(path: Path) -> str:
    """A page of the root or a folder of it, its links as seen from docs/."""
    return re.sub(
        r"\]\((?:\.\./)?(docs/)?(?!http|#)",
        lambda link: "](" if link[1] else "](../",
        path.read_text("utf-8"),
    )


def api_reference() -> str:
    """Every public function and class, with its docstring."""
    import clientwise.api  # takes seconds, and the extension below does not need it

    entries = [
        f"::: {value.__module__}.{value.__qualname__}\n    options: {{heading: {place}.{name}, toc_label: {name}}}"
        for place, module in (("cw", clientwise.api), ("cw.parts", clientwise.parts))
        for kind in (inspect.isfunction, inspect.isclass)
        for name, value in vars(module).items()
        if kind(value) and not name.startswith("_")
    ]
    lead = (
        "# Python reference\n\nEverything here is in `import clientwise as cw`. The registries (`cw.parts.CRITERIA`, "
        "`cw.parts.RULES` ...) hold the [parts](parts-list.md)."
    )
    testing = "::: clientwise.testing\n    options: {heading: clientwise.testing, toc_label: clientwise.testing}"
    return "\n\n".join([lead, *entries, testing])


class Doctests(griffe.Extension):
    """Shows the examples in docstrings as code."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Fence them."""
        if obj.docstring:
            obj.docstring.value = re.sub(
                r"(?m)^( *)(>>> .*(?:\n\1.+)*)", r"\1```pycon\n\1\2\n\1```", obj.docstring.value
            )


if __name__ == "__main__":
    main()
