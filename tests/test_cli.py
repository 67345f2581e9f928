"""The command line as a user meets it: output, exit status, one clear line for every mistake."""

import io
import json
import shutil
import sys
from pathlib import Path

import pytest

from skillmix.commands import main

EXAMPLE = Path(__file__).parents[1] / "src/skillmix/data/examples/demo.jsonl"
NAMED = ["--skills", "metaphor; complex question", "--topic", "Sewing"]
REPLY = "| metaphor | 1 |\n| complex question | 0 |\n| Pertains to Sewing | 1 |\n| Makes sense | ½ |"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    try:
        status = main(list(words))
    except SystemExit as stop:
        status = int(stop.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


def give_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_catalog_json_has_the_documented_form(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "catalog", "paper", "--json")

    shown = json.loads(out)
    assert status == 0
    assert shown.keys() == {"skills", "topics", "partitions"}
    assert all(s.keys() == {"name", "category", "definition", "example", "checkable"} for s in shown["skills"])
    assert (len(shown["skills"]), len(shown["topics"])) == (104, 100)
    sizes = {n: (len(p["train"]["skills"]), len(p["held-out"]["skills"])) for n, p in shown["partitions"].items()}
    assert sizes == {"category": (54, 50), "tables": (59, 45)}


def test_catalog_for_people_names_every_skill(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "catalog")

    assert "104 skills in 8 categories, 100 topics" in out
    assert "complex question (loaded question with implicit assumption)" in out


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


def test_parse_reply_json_has_the_documented_form(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_input(monkeypatch, REPLY.encode())

    status, out, _ = run(capsys, "parse-reply", "paper", *NAMED, "--json")

    assert status == 0
    assert json.loads(out) == {
        "points": {
            "metaphor": 1.0,
            "complex question (loaded question with implicit assumption)": 0.0,
            "topic": 1.0,
            "sense": 0.5,
            "length": None,
        },
        "problem": None,
        "notes": [],
    }


def test_an_unreadable_reply_is_a_result_not_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_input(monkeypatch, b"I would rather not.")

    status, out, _ = run(capsys, "parse-reply", *NAMED, "--json")

    assert status == 0
    assert json.loads(out)["points"] is None
    assert json.loads(out)["problem"] == "no table and no point lines were found"


def test_parse_reply_knows_the_students_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text(REPLY, encoding="utf-8")
    give_input(monkeypatch, REPLY.encode())

    _, out, _ = run(capsys, "parse-reply", *NAMED, "--text", str(tmp_path / "text.txt"), "--json")

    assert json.loads(out)["points"] is None


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


def test_prompts_are_shown_as_sent(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "prompts", *NAMED, "--answer", "My text", "--json")

    rendered = json.loads(out)
    assert set(rendered) == {
        "generate-1.txt",
        "generate-2.txt",
        "grade-gpt.txt",
        "grade-claude.txt",
        "grade-llama2.txt",
    }
    assert "My text" in rendered["grade-gpt.txt"]


def test_grade_text_asks_one_grader(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from skillmix.models.scripted import code

    give_input(monkeypatch, f"Scripted words {code('metaphor')} {code('Sewing')}.".encode())

    status, out, _ = run(capsys, "grade-text", *NAMED, "--grader", "scripted:grader", "--json")

    complex_question = "complex question (loaded question with implicit assumption)"
    graded = json.loads(out)
    assert status == 0
    assert graded["points"] == {"metaphor": 1.0, complex_question: 0.0, "topic": 1.0, "sense": 1.0, "length": 1.0}
    assert graded["scores"] == {"full_marks": 0.0, "all_skills": 0.0, "skill_fraction": 0.5}
    assert graded["evidence"] == {"metaphor": None, complex_question: None}


@pytest.mark.parametrize("variant", ["gpt", "claude", "llama2"])
def test_every_variant_of_the_graders_prompt_is_answered_readably(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    give_input(monkeypatch, b"Nothing of it.")

    _, out, _ = run(capsys, "grade-text", *NAMED, "--grader", "scripted:grader", "--variant", variant, "--json")

    assert json.loads(out)["problem"] is None


def test_a_variant_of_the_graders_prompt_is_one_more_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    shutil.copytree(Path(__file__).parents[1] / "src/skillmix/data/prompts/standard", folder)
    shutil.copy(folder / "grade-claude.txt", folder / "grade-mine.txt")
    mine = [*NAMED, "--prompts", str(folder), "--variant", "mine", "--grader", "scripted:grader", "--json"]
    give_input(monkeypatch, b"Nothing of it.")

    status, out, _ = run(capsys, "grade-text", *mine)

    assert status == 0
    assert json.loads(out)["problem"] is None


@pytest.mark.parametrize("grader", ["scripted:grader", "rules:"])
def test_an_unknown_variant_is_an_error_with_the_known_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, grader: str
) -> None:
    give_input(monkeypatch, b"Nothing of it.")

    status, _, err = run(capsys, "grade-text", *NAMED, "--variant", "gtp", "--grader", grader)

    assert status == 2
    assert err.splitlines() == [
        "error: Prompt set 'standard' has no grader prompt 'gtp'.",
        "hint: Its grader prompts: gpt, claude, llama2. To add one, write grade-gtp.txt.",
    ]


def test_the_example_run_from_import_to_export(capsys: pytest.CaptureFixture[str], in_folder: Path) -> None:
    status, out, _ = run(capsys, "import-texts", str(EXAMPLE), "--run", "demo")
    assert status == 0
    assert "32 conversations and 93 gradings" in out

    _, as_json, _ = run(capsys, "scores", "demo", "--json")
    full = {(s["student"], s["k"]): s for s in json.loads(as_json) if s["metric"] == "full_marks"}
    # By hand, one try: small 3 of 6, 0 of 6, 0 of 4; tuned 5 of 6, 5 of 6, 2 of 4.
    tries = {place: round(score["one_try"], 4) for place, score in full.items()}
    assert tries == {
        ("small", 1): 0.5,
        ("small", 2): 0.0,
        ("small", 3): 0.0,
        ("tuned", 1): 0.8333,
        ("tuned", 2): 0.8333,
        ("tuned", 3): 0.5,
    }
    assert sum(score["format_failures"] for score in full.values()) == 4

    _, table, _ = run(capsys, "scores", "demo", "--rules", "paper")
    assert "| tuned   | careful | imported |  3 | 1.00 [.34, 1.00] |" in table

    status, path, _ = run(capsys, "export", "demo", "--what", "votes")
    assert status == 0
    assert len(Path(path.strip()).read_text(encoding="utf-8").splitlines()) == 93


def test_scores_json_has_the_documented_form(capsys: pytest.CaptureFixture[str], in_folder: Path) -> None:
    run(capsys, "import-texts", str(EXAMPLE), "--run", "demo")

    _, out, _ = run(capsys, "scores", "demo", "--json")

    assert " ".join(json.loads(out)[0]) == (
        "run student grader catalog partition prompts seed setting k metric value low high bound_low bound_high "
        "combinations complete ungraded format_failures one_try one_try_low one_try_high"
    )


def test_a_run_without_gradings_says_so(capsys: pytest.CaptureFixture[str], in_folder: Path) -> None:
    line = {"skills": ["metaphor"], "topic": "Sewing", "student": "s", "text": "A stitch."}
    (in_folder / "t.jsonl").write_text(json.dumps(line), encoding="utf-8")
    run(capsys, "import-texts", "t.jsonl", "--run", "r")

    status, out, err = run(capsys, "scores", "r", "--json")

    assert (status, json.loads(out)) == (0, [])
    assert "the texts of s have no gradings yet" in err


BAD = {
    "unknown skill": ["parse-reply", "--skills", "nonsense", "--topic", "Sewing"],
    "unknown topic": ["parse-reply", "--skills", "metaphor", "--topic", "Nonsense"],
    "no skill": ["parse-reply", "--skills", " ; ", "--topic", "Sewing"],
    "skill twice": ["parse-reply", "--skills", "metaphor; metaphor", "--topic", "Sewing"],
    "binary input": ["parse-reply", "--skills", "metaphor", "--topic", "Sewing"],
    "unknown catalogue": ["catalog", "nowhere"],
    "two catalogues": ["catalog", "paper", "--catalog", "other"],
    "unknown prompts": ["prompts", "--skills", "metaphor", "--topic", "Sewing", "--prompts", "nowhere"],
    "k of zero": ["combinations", "--k", "0"],
    "k too large": ["combinations", "--k", "105"],
    "n too large": ["combinations", "--k", "1", "--n", "10401"],
    "n negative": ["combinations", "--k", "1", "--n", "-1"],
    "unknown partition": ["combinations", "--k", "1", "--partition", "nope"],
    "unknown exclude": ["combinations", "--k", "1", "--exclude", "nope"],
    "wrong k": ["combinations", "--k", "two"],
    "wrong setting": ["combinations", "--k", "2", "--setting", "test"],
    "grader without a provider": ["grade-text", "--skills", "metaphor", "--topic", "Sewing", "--grader", "gpt-4"],
    "grader that is not scripted": [
        "grade-text",
        "--skills",
        "metaphor",
        "--topic",
        "Sewing",
        "--grader",
        "scripted:nobody",
    ],
    "novelty without skills": ["novelty", "--k", "0", "--tokens", "1e12"],
    "novelty of no corpus": ["novelty", "--k", "2", "--tokens", "0"],
    "novelty of nan": ["novelty", "--k", "2", "--tokens", "nan"],
    "novelty of inf": ["novelty", "--k", "2", "--tokens", "inf"],
    "share above one": ["novelty", "--k", "2", "--tokens", "1e9", "--skill-frequency", "2"],
    "missing file": ["import-texts", "nowhere.jsonl", "--run", "r"],
    "empty file": ["import-texts", "empty.jsonl", "--run", "r"],
    "missing folder": ["import-reference", "nowhere", "--run", "r"],
    "folder without records": ["import-reference", ".", "--run", "r"],
    "missing run": ["scores", "nowhere"],
    "unknown rules": ["scores", "demo", "--rules", "kind"],
    "torn journal": ["scores", "torn"],
    "binary experiment": ["scores", "binary"],
    "no command": [],
    "unknown command": ["frobnicate"],
    "run below a file": ["import-texts", str(EXAMPLE), "--run", "empty.jsonl/x"],
    "run in the parent": ["import-texts", str(EXAMPLE), "--run", ".."],
    "output of another kind": ["export", "demo", "--what", "texts", "--output", "runs/demo/journal/calls.sqlite"],
    "no output": ["export", "demo", "--what", "texts", "--output", ""],
    "export by unknown rules": ["export", "demo", "--what", "calls", "--rules", "kind"],
    "novelty beyond numbers": ["novelty", "--k", "1" + "0" * 400, "--tokens", "1e12"],
    "novelty beyond floats": ["novelty", "--k", "1", "--tokens", "1e308", "--sentences-per-token", "1e10"],
    "seed beyond numbers": ["combinations", "--k", "1", "--partition", "random-skills:" + "1" * 5000],
    "a negative number of texts": ["texts", "demo", "--n", "-1"],
    "no texts": ["texts", "demo", "--n", "0"],
    "texts of no skill": ["texts", "demo", "--k", "0"],
    "a negative number of masks": ["train", "x.yaml", "--show-mask", "--n", "-1"],
    "a data set of k = 0": ["dataset", "demo", "--k", "0"],
    "a data set of k = -1": ["dataset", "demo", "--k", "1", "-1"],
    "a data set of no texts": ["dataset", "demo", "--size", "0"],
    "a report on no corpus": ["report", "demo", "--tokens", "0"],
    "a report on nan": ["report", "demo", "--tokens", "nan"],
    "a report on a negative corpus": ["report", "demo", "--tokens", "-1"],
    "a data set in the current folder": ["dataset", "demo", "--output", "."],
    "a report in the current folder": ["report", "demo", "--output", "."],
    "bad run name": ["import-texts", str(EXAMPLE), "--run", "Bad Name"],
}


@pytest.fixture
def bad_places(in_folder: Path) -> Path:
    """A good run, a torn one, one with a damaged experiment, an empty file."""
    (in_folder / "empty.jsonl").touch()
    for name in ("demo", "torn", "binary"):
        main(["import-texts", str(EXAMPLE), "--run", name])
    journal = in_folder / "runs/torn/journal/calls.sqlite"
    journal.write_bytes(journal.read_bytes()[: journal.stat().st_size // 2])
    (in_folder / "runs/binary/experiment.yaml").write_bytes(b"\xff\xfe\x00")
    return in_folder


@pytest.mark.parametrize("words", BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line_and_a_hint(
    capsys: pytest.CaptureFixture[str], bad_places: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    give_input(monkeypatch, b"\xff\xfe\x00\x01")
    capsys.readouterr()
    before = {path: path.read_bytes() for path in bad_places.rglob("*") if path.is_file()}

    status, out, err = run(capsys, *words)

    assert status == 2
    assert out == ""
    assert "Traceback" not in err
    assert ("error: " in err and "\nhint: " in err) or err.startswith("usage:")
    assert {path: path.read_bytes() for path in bad_places.rglob("*") if path.is_file()} == before


def test_a_closed_pipe_ends_quietly(in_folder: Path) -> None:
    import subprocess

    command = f"{sys.executable} -m skillmix catalog paper --json | head -1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)

    assert result.stdout.strip() == "{"
    assert result.stderr == ""


def test_output_survives_a_plain_c_locale(in_folder: Path) -> None:
    import subprocess

    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PYTHONUTF8": "0"}
    result = subprocess.run(
        [sys.executable, "-m", "skillmix", "catalog", "--json"], capture_output=True, env=environment, check=False
    )

    assert result.returncode == 0
    assert "cliché" in result.stdout.decode("utf-8")


def test_a_path_with_a_dot_is_taken_as_it_is(capsys: pytest.CaptureFixture[str], in_folder: Path) -> None:
    run(capsys, "import-texts", str(EXAMPLE), "--run", "./here")

    assert (in_folder / "here/experiment.yaml").exists()
    assert run(capsys, "scores", "./here")[0] == 0


def test_another_catalogue_folder_can_be_named_either_way(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "src/skillmix/data/paper"
    folder = tmp_path / "mine"
    shutil.copytree(source, folder)

    _, by_name, _ = run(capsys, "combinations", str(folder), "--k", "2", "--json")
    _, by_option, _ = run(capsys, "combinations", "--catalog", str(folder), "--k", "2", "--json")

    assert by_name == by_option


def test_an_error_cannot_steer_the_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text('name: "\\e[2J\\u202e"\n"\\e]0;title\\a": 1\n', encoding="utf-8")

    status, _, err = run(capsys, "run", "bad.yaml")

    assert status == 2
    assert "\\x1b]0;title\\x07" in err
    assert not set("\x1b\x07\u202e") & set(err)
