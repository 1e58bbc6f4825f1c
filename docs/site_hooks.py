"""What the site has beside docs/: pages of the repository's root, an API reference, the files that pages link to."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import clientwise.api

ROOT = Path(__file__).parents[1]
FROM_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#\s]+)\)")  # [words](../file)
SHIM = "https://unpkg.com/iframe-worker/shim"  # what Material fetches to search in a site on disk


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what does not lie in docs/."""
    pages = {target: _from_root(ROOT / source) for source, target in FROM_ROOT.items()}
    for name, text in {**pages, "api.md": api_reference()}.items():
        files.append(File.generated(config, name, content=text))
    linked = (OUTSIDE.findall(page.content_string) for page in list(files.documentation_pages()))
    for target in sorted(
        {target for found in linked for _, target in found if (ROOT / target).is_file()}
    ):
        files.append(
            File.generated(
                config, f"files/{target}.txt", content=(ROOT / target).read_text("utf-8")
            )
        )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links out of docs/ lead to a copy of the file; a folder has none, and stays a name."""
    return OUTSIDE.sub(
        lambda link: link[1] if (ROOT / link[2]).is_dir() else f"[{link[1]}](files/{link[2]}.txt)",
        markdown,
    )


def on_post_page(output: str, **about: object) -> str:
    """The site fetches nothing."""
    return output.replace(SHIM, "assets/iframe-worker.js")


def on_post_template(output_content: str, **about: object) -> str:
    """Nor does the page for what is not found."""
    return on_post_page(output_content)


def _from_root(path: Path) -> str:
    """A page of the root, its links as seen from docs/."""
    return re.sub(
        r"\]\((docs/)?(?!http|#)",
        lambda link: "](" if link[1] else "](../",
        path.read_text("utf-8"),
    )


def api_reference() -> str:
    """Every public function and class, with its docstring."""
    public = {
        name: value for name, value in vars(clientwise.api).items() if not name.startswith("_")
    }
    entries = [
        f"::: {value.__module__}.{value.__qualname__}\n    options: {{heading: cw.{name}, toc_label: {name}}}"
        for kind in (inspect.isfunction, inspect.isclass)
        for name, value in public.items()
        if kind(value)
    ]
    lead = (
        "# Python reference\n\nEverything here is in `import clientwise as cw`. The registries (`cw.CRITERIA`, "
        "`cw.RULES` ...) hold the parts of the [config reference](config.md)."
    )
    testing = "::: clientwise.testing\n    options: {heading: clientwise.testing, toc_label: clientwise.testing}"
    return "\n\n".join([lead, *entries, testing])


class Doctests(griffe.Extension):
    """Shows the examples in docstrings as code."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Fence them."""
        if obj.docstring:
            obj.docstring.value = re.sub(
                r"(?m)^((?:>>> .*\n?)(?:.+\n?)*)", r"```pycon\n\1\n```\n", obj.docstring.value
            )
