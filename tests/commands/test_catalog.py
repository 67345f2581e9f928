"""The commands `catalog`, `combinations` and `novelty`."""

import json
import shutil
from pathlib import Path

import pytest

from tests.commands.command_line import DATA, run


def test_catalog_json_has_the_documented_form(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "catalog", "paper", "--json")

    shown = json.loads(out)
    assert status == 0
    assert shown.keys() == {"skills", "topics", "partitions", "entailed", "woven"}
    assert all(s.keys() == {"name", "category", "definition", "example", "checkable"} for s in shown["skills"])
    assert (len(shown["skills"]), len(shown["topics"])) == (104, 100)
    sizes = {n: (len(p["train"]["skills"]), len(p["held-out"]["skills"])) for n, p in shown["partitions"].items()}
    assert sizes == {"category": (54, 50), "tables": (59, 45)}


def test_catalog_for_people_names_every_skill(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "catalog")

    assert "104 skills in 8 categories, 100 topics" in out
    assert "complex question (loaded question with implicit assumption)" in out


def test_another_catalogue_folder_can_be_named_either_way(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(DATA / "paper", folder)

    _, by_name, _ = run(capsys, "combinations", str(folder), "--k", "2", "--json")
    _, by_option, _ = run(capsys, "combinations", "--catalog", str(folder), "--k", "2", "--json")

    assert by_name == by_option


def test_combinations_json_has_the_documented_form(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "combinations", "paper", "--setting", "train", "--k", "3", "--n", "5", "--json")

    drawn = json.loads(out)
    assert len(drawn) == 5
    assert all(c.keys() == {"id", "k", "skills", "topic"} and c["k"] == len(c["skills"]) == 3 for c in drawn)


def test_ladders_and_excludes_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    rungs = []
    for k in ("1", "2"):
        _, out, _ = run(
            capsys, "combinations", "--k", k, "--n", "30", "--ladder", "--exclude", "common; ad hominem", "--json"
        )
        rungs.append(json.loads(out))

    assert all(set(a["skills"]) < set(b["skills"]) for a, b in zip(*rungs, strict=True))
    assert not any({"metaphor", "ad hominem"} & set(c["skills"]) for c in rungs[1])


@pytest.mark.parametrize(
    ("k", "tokens", "shown"), [("5", "2e12", "0.11"), ("6", "1.2e12", "0.001"), ("5", "1.2e12", "0.068")]
)
def test_novelty_gives_the_papers_figures(capsys: pytest.CaptureFixture[str], k: str, tokens: str, shown: str) -> None:
    status, out, _ = run(capsys, "novelty", "--k", k, "--tokens", tokens)
    _, as_json, _ = run(capsys, "novelty", "--k", k, "--tokens", tokens, "--json")

    assert status == 0
    assert out.splitlines()[0] == shown
    assert "independent" in out
    assert json.loads(as_json)["expected_occurrences"] == pytest.approx(float(shown), rel=0.05)
    assert json.loads(as_json)["assumptions"]


def test_catalog_shows_the_pairs_that_no_draw_combines(capsys: pytest.CaptureFixture[str]) -> None:
    _, page, _ = run(capsys, "catalog", "verifiable")
    _, out, _ = run(capsys, "catalog", "verifiable", "--json")

    assert "Pairs that no draw combines:" in page
    pairs = json.loads(out)["entailed"]
    assert {"skill": "symploce", "brings": "epistrophe", "texts": 47, "with_both": 47, "source": "model texts"} in pairs
    assert "Pairs that no draw combines" not in run(capsys, "catalog", "paper")[1]
