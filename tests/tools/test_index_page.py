"""The README as the index shows it: no link leads into a folder that the index does not have."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from tools.index_page import index_page

import skillmix

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def targets(page: str) -> list[str]:
    outside_code = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", outside_code)


def test_without_an_address_no_link_is_relative_and_every_file_is_named() -> None:
    page = index_page(README, repository=None, version="1.0.0")

    assert all(target.startswith("https://") for target in targets(page))
    assert "![" not in page
    for file in {target.partition("#")[0] for target in targets(README) if not target.startswith("https://")}:
        assert file in page


def test_with_an_address_every_link_leads_to_a_file_of_this_version_there() -> None:
    page = index_page(README, repository="https://example.org/skillmix", version="1.0.0")

    assert len(targets(page)) == len(targets(README)) > 20
    for target in targets(page):
        if target in targets(README):
            assert target.startswith("https://arxiv.org/abs/")
            continue
        file = re.fullmatch(r"https://example.org/skillmix/(?:blob|raw)/v1\.0\.0/([^#]+)(?:#.*)?", target)
        assert file and (ROOT / file[1]).exists(), target
    assert "](https://example.org/skillmix/raw/v1.0.0/docs/figures/quickstart-report.png)" in page


def test_commands_and_tables_stay_as_they_are() -> None:
    page = index_page(README, repository=None, version="1.0.0")

    assert re.findall(r"```.*?```", page, re.DOTALL) == re.findall(r"```.*?```", README, re.DOTALL)
    assert "<!--" not in page


@pytest.mark.parametrize("text", ["see https://example.org", "[a](https://example.org/b)", "[a](#limits)"])
def test_other_links_are_left_alone(text: str) -> None:
    assert index_page(text, repository=None, version="1.0.0") == text


def test_the_version_has_one_source_and_the_citation_repeats_it() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))

    assert "version" not in PROJECT["project"]
    assert "version" in PROJECT["project"]["dynamic"]
    assert citation["version"] == skillmix.__version__


def test_the_citation_has_the_fields_that_its_format_requires() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))

    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["license"] == PROJECT["project"]["license"]
    for reference in citation["references"]:
        assert {"type", "title", "authors"} <= reference.keys()
        assert reference["url"] in PROJECT["project"]["urls"].values()


def test_the_classifiers_leave_no_version_out_after_the_oldest_allowed_one() -> None:
    classifiers = PROJECT["project"]["classifiers"]
    versions = [c.rpartition(" ")[2] for c in classifiers if re.search(r":: 3\.\d+$", c)]

    assert versions == [f"3.{11 + place}" for place in range(len(versions))]
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"
