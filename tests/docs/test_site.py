"""The site: every page is in its index, pages from code are current, and it builds offline without a warning."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tools.docs.__main__ import PARTS, with_part
from tools.docs.command_options import commands
from tools.docs.experiment_keys import step_classes, table_of_keys
from tools.docs.markdown import table
from tools.docs.site import listed_pages, with_contents, with_downloads

import skillmix
from tests.docs.pages import DOCS, IN_INDEX, INDEX, ROOT, text_of

SECTIONS = ["Start", "Guides", "Studies", "Reference"]


def test_every_page_is_in_the_index_once() -> None:
    pages = {path.stem for path in [*DOCS.glob("*.md"), *DOCS.glob("*.ipynb")]} - {"index"}

    assert list(listed_pages(INDEX)) == SECTIONS
    assert sorted(IN_INDEX) == sorted(pages), "list each page of docs/ in one section of docs/index.md"


def test_pages_from_code_are_current() -> None:
    for name in PARTS:
        assert text_of(name) == with_part(name), f"docs/{name} is old: run `make docs`"


def test_every_command_and_every_kind_of_step_has_its_section() -> None:
    options, keys = text_of("commands.md"), text_of("experiments.md")

    assert all(f"\n### {name}\n" in options for name in commands()) and len(commands()) >= 20
    assert all(table_of_keys(step) in keys for step in step_classes()) and len(step_classes()) >= 8


def test_every_public_name_has_its_docstring_on_the_page_of_names() -> None:
    page = text_of("python.md")

    for name in skillmix.__all__:
        assert name.startswith("__") or re.search(rf"(auto\w+:: |`skillmix\.){name}\b", page), name


def test_the_contents_come_from_the_lists_of_the_index() -> None:
    index = "# A\n\n## How to\n\n- [Run](run.md): see [more](more.md).\n- [Try](try.ipynb)\n\n## Other\n\nNo list.\n"

    assert listed_pages(index) == {"How to": {"run": "Run", "try": "Try"}}
    assert with_contents(index).endswith("```{toctree}\n:hidden:\n:caption: How to\n\nRun <run>\nTry <try>\n```\n\n")
    assert with_downloads("[a](../b/c.md) and [d](e.md)") == "{download}`a <../b/c.md>` and [d](e.md)"


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    assert table(["a"], [["x|y"]]) == "| a |\n|---|\n| x\\|y |"


class Links(HTMLParser):
    """The links, the loaded files and the ids of a page, and its visible text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.text: list[str] = []
        self._hidden = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := found.get(name))}
        if tag == "a" and (link := found.get("href")):
            self.links.append(link)
        elif loaded := found.get("src") or (found.get("href") if tag == "link" else None):
            self.loaded.append(loaded)
        self._hidden += tag in ("script", "style", "pre", "code")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style", "pre", "code")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.text.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning fails the build, as with `make docs`."""
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package, reason="the extra `docs` is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", str(folder / "cache")]
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    built = subprocess.run(
        [*command, str(DOCS), str(folder / "html")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def local(page: Path, links: list[str]) -> Iterator[tuple[Path, str]]:
    for link in links:
        parts = urlsplit(link)
        if not parts.scheme and not parts.netloc:
            yield (page.parent / unquote(parts.path)).resolve() if parts.path else page, unquote(parts.fragment)


def test_the_site_has_every_page_and_a_search(site: Path) -> None:
    assert {f"{page}.html" for page in [*IN_INDEX, "index", "search", "genindex"]} <= {
        path.name for path in site.glob("*")
    }
    search = (site / "searchindex.js").read_text(encoding="utf-8")
    assert '"leakag"' in search or '"leakage"' in search  # Sphinx stores stems
    assert "skillmix.evaluate" in search or '"evaluate"' in search


def test_links_between_pages_lead_somewhere(site: Path, pages: dict[Path, Links]) -> None:
    followed = 0
    for page, found in pages.items():
        for target, fragment in local(page, found.links):
            assert target.exists(), f"{page.name}: {target.name}"
            if fragment and target in pages:
                assert fragment in pages[target].ids or page.name == "search.html", (
                    f"{page.name}: {target.name}#{fragment}"
                )
            followed += 1
    assert followed > 1000


def test_pages_load_nothing_from_elsewhere(pages: dict[Path, Links]) -> None:
    for page, found in pages.items():
        assert not [link for link in found.loaded if urlsplit(link).scheme not in ("", "data")], page.name


def test_no_markup_is_left_in_the_text(pages: dict[Path, Links]) -> None:
    for page, found in pages.items():
        text = "".join(found.text)
        for left_over in (
            "](",
            "```",
            "{eval-rst}",
            "{toctree}",
            "{download}",
            ":members:",
            "| ---",
            "|---",
            "<!--",
            ".. auto",
        ):
            assert left_over not in text, f"{page.name}: {left_over}"
