"""The commands `catalog`, `combinations`, `novelty` and `frequency`."""

import json
import shutil
from pathlib import Path

import pytest

from tests.commands.command_line import DATA, run
from tests.frequencies.corpora import passage, write_catalog, write_jsonl


def test_catalog_json_has_the_documented_form(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "catalog", "paper", "--json")

    shown = json.loads(out)
    assert status == 0
    assert shown.keys() == {"skills", "topics", "partitions", "entailed", "woven"}
    assert all(
        s.keys() == {"name", "category", "definition", "example", "checkable", "figure", "word"}
        for s in shown["skills"]
    )
    assert (len(shown["skills"]), len(shown["topics"])) == (104, 100)
    sizes = {n: (len(p["train"]["skills"]), len(p["held-out"]["skills"])) for n, p in shown["partitions"].items()}
    assert sizes == {"category": (54, 50), "tables": (59, 45)}


def test_catalog_for_people_names_every_skill(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "catalog")

    assert "104 skills in 8 categories, 100 topics" in out
    assert "complex question (loaded question with implicit assumption)" in out


def test_skills_that_are_never_drawn_are_on_the_page_and_in_the_hint(capsys: pytest.CaptureFixture[str]) -> None:
    _, page, _ = run(capsys, "catalog", "verifiable")
    _, _, error = run(capsys, "combinations", "verifiable", "--k", "200")

    assert "verifiable: 56 skills" in page
    start = "Never drawn, because no group of kinds contains them: "
    never = " ".join(page.split()).partition(start)[2].partition(".")[0].split(", ")
    assert len(never) == 5 and "simile" in never
    assert "setting 'all' draws from 51 skills" in error and "Choose k from 1 to 51." in error
    assert "skills in no group of the partition" in error


def test_another_catalog_folder_can_be_named_either_way(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
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

    assert "Pairs that are never drawn together:" in page
    pairs = json.loads(out)["entailed"]
    assert {"skill": "symploce", "brings": "epistrophe", "texts": 47, "with_both": 47, "source": "model texts"} in pairs
    assert "Pairs that are never drawn together" not in run(capsys, "catalog", "paper")[1]


@pytest.fixture
def corpus(in_folder: Path) -> Path:
    """Forty passages: all show the first skill, every fourth the second, none the third; and a broken line."""
    write_catalog(in_folder / "made", ["first skill", "second skill", "third skill"])
    texts = [passage(n, ["first skill", *(["second skill"] if n % 4 == 0 else [])]) for n in range(40)]
    file = write_jsonl(in_folder / "corpus.jsonl", texts)
    file.write_text(file.read_text(encoding="utf-8") + "{broken\n", encoding="utf-8")
    return file


COUNT = ("frequency", "--catalog", "made", "--corpus", "corpus.jsonl", "--words", "20", "--grader")


def test_frequency_prints_the_shares_and_names_the_exclude_list(
    capsys: pytest.CaptureFixture[str], corpus: Path
) -> None:
    status, out, err = run(capsys, *COUNT, "scripted:grader")

    assert status == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("| ")]
    assert [row[:2] + row[4:] for row in rows[1:]] == [
        ["first skill", "100.0%", "yes"],
        ["second skill", "25.0%", "yes"],
        ["third skill", "0.0%", "no, undecided"],
    ]
    assert "40 of 40 passages, from 40 of 40 documents" in out
    assert "corpus: 1 lines that are not JSON" in err
    assert "exclude: [file:runs/frequency/exclude.yaml]" in err


def test_frequency_json_has_the_documented_form_and_a_draw_takes_its_list(
    capsys: pytest.CaptureFixture[str], corpus: Path
) -> None:
    status, out, _ = run(capsys, *COUNT, "scripted:grader", "--json", "--exclude-list", "mine.yaml")
    _, drawn, _ = run(capsys, "combinations", "made", "--k", "1", "--n", "2", "--exclude", "file:mine.yaml", "--json")

    shown = json.loads(out)
    assert status == 0
    assert shown == json.loads(Path("runs/frequency/frequencies.json").read_text(encoding="utf-8"))
    assert shown["common"] == ["first skill", "second skill"]
    assert shown["skills"][0].keys() >= {"skill", "asked", "shown", "unknown", "share", "low", "high", "is_common"}
    assert {skill for c in json.loads(drawn) for skill in c["skills"]} == {"third skill"}


def test_a_frequency_estimate_makes_no_run(capsys: pytest.CaptureFixture[str], corpus: Path) -> None:
    status, out, _ = run(capsys, *COUNT, "scripted:grader", "--dry-run", "--json")

    assert status == 0
    assert json.loads(out)["calls"] == 40
    assert not Path("runs").exists()


def test_unreadable_answers_end_with_status_1(capsys: pytest.CaptureFixture[str], corpus: Path) -> None:
    status, _, err = run(capsys, *COUNT, "scripted:grader?unreadable=1")

    assert status == 1
    assert "unknown: " in err


def test_novelty_takes_the_measured_share_of_each_skill(capsys: pytest.CaptureFixture[str], corpus: Path) -> None:
    run(capsys, *COUNT, "scripted:grader")
    words = ("novelty", "--k", "2", "--tokens", "1e6", "--frequencies", "runs/frequency/frequencies.json")

    _, page, _ = run(capsys, *words)
    _, out, _ = run(capsys, *words, "--unit", "passage", "--json")
    status, _, err = run(capsys, *words, "--exclude", "common")

    shown = json.loads(out)
    upper = shown["shares"]
    pairs = [upper[a] * upper[b] for a, b in (("first skill", "second skill"), ("first skill", "third skill"))]
    pairs.append(upper["second skill"] * upper["third skill"])
    topic = 0.0022 * shown["inputs"]["sentences_per_passage"]
    assert shown["mean_occurrences"] == pytest.approx(sum(pairs) / 3 * topic * shown["units"])
    assert shown["most_occurrences"] == pytest.approx(pairs[0] * topic * shown["units"])
    assert "the sentences of a passage show a skill independently" in page
    assert status == 2
    assert "k = 2 is not possible with 1 skill." in err
