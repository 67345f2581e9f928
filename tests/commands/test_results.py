"""The commands that read a run, and those that import one."""

import json
from pathlib import Path

import pytest

from tests.commands.command_line import EXAMPLE, run
from tests.report.worlds import make_world


def test_the_example_run_from_import_to_export(capsys: pytest.CaptureFixture[str], in_folder: Path) -> None:
    status, out, _ = run(capsys, "import-texts", str(EXAMPLE), "--run", "demo")
    assert status == 0
    assert "32 conversations and 93 gradings" in out

    _, as_json, _ = run(capsys, "scores", "demo", "--json")
    full = {(s["student"], s["k"]): s for s in json.loads(as_json) if s["metric"] == "full_marks"}
    # By hand, one try: small 3 of 6, 0 of 6, 0 of 4; tuned 5 of 6, 5 of 6, 2 of 4.
    tries = {key: round(score["one_try"], 4) for key, score in full.items()}
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
    assert "| tuned   | 1.00 [.44, 1.00] | 1.00 [.44, 1.00] | 1.00 [.34, 1.00] |" in table

    status, path, _ = run(capsys, "export", "demo", "--what", "votes")
    assert status == 0
    assert len(Path(path.strip()).read_text(encoding="utf-8").splitlines()) == 93


def test_cut_replies_are_a_warning_of_scores_and_a_column_of_exports(
    capsys: pytest.CaptureFixture[str], in_folder: Path
) -> None:
    rates = {"base": "skill=0.9&cut=0.5&marker=0.5&refusal=0.1", "m1": "skill=0.9"}
    make_world(in_folder, "world", rates, settings=["all"], k=[1], combinations=20, generations=1)
    capsys.readouterr()

    _, table, warnings = run(capsys, "scores", "world", "--wide")
    _, as_json, also = run(capsys, "scores", "world", "--json")
    run(capsys, "export", "world", "--what", "texts")
    run(capsys, "export", "world", "--what", "calls")

    full = {s["student"]: s for s in json.loads(as_json) if s["metric"] == "full_marks"}
    texts, calls = (
        [json.loads(line) for line in Path(f"runs/world/{what}.jsonl").read_text(encoding="utf-8").splitlines()]
        for what in ("texts", "calls")
    )
    assert warnings == also
    assert f"({full['base']['cut']} of {full['base']['written']}); raise its max_tokens" in warnings
    assert (full["m1"]["cut"], warnings.count("cut: ")) == (0, 1)
    assert "full marks among valid" in table and "| cut |" in table
    own = [text for text in texts if text["student"] == "base"]
    assert full["base"]["cut"] == sum(text["cut"] is True for text in own) > 0
    assert {(text["status"], text["format_valid"]) for text in own} == {
        ("fine", True),
        ("no marker", False),
        ("refused", None),
    }
    valid = [text["full_marks"] for text in own if text["format_valid"]]
    assert full["base"]["among_valid"] == pytest.approx(sum(valid) / len(valid))
    assert full["base"]["valid_texts"] == len(valid)
    assert all(call["cut"] == (None if call["finish"] is None else call["finish"] == "length") for call in calls)


def test_scores_json_has_the_documented_form(capsys: pytest.CaptureFixture[str], in_folder: Path) -> None:
    run(capsys, "import-texts", str(EXAMPLE), "--run", "demo")

    _, out, _ = run(capsys, "scores", "demo", "--json")

    assert " ".join(json.loads(out)[0]) == (
        "run student grader catalog partition prompts seed setting k metric value low high bound_low bound_high "
        "combinations complete ungraded format_failures one_try one_try_low one_try_high "
        "valid_texts among_valid among_valid_low among_valid_high cut woven woven_low woven_high written"
    )


def test_a_score_below_a_floor_fails_and_is_named(capsys: pytest.CaptureFixture[str], in_folder: Path) -> None:
    run(capsys, "import-texts", str(EXAMPLE), "--run", "demo")

    assert run(capsys, "scores", "demo", "--fail-below", "tuned=.9")[0] == 0
    status, out, err = run(capsys, "scores", "demo", "--json", "--fail-below", "tuned=.9", "--fail-below", "small=.5")

    assert status == 1
    values = {
        row["k"]: row["value"] for row in json.loads(out) if row["student"] == "small" and row["metric"] == "full_marks"
    }
    assert values[1] > 0.5 > max(values[2], values[3])
    assert [line.partition(", k = ")[2][:1] for line in err.splitlines() if line.startswith("failed: ")] == ["2", "3"]
    assert run(capsys, "scores", "demo", "--fail-below", "other=.5")[0] == 2
    assert run(capsys, "scores", "demo", "--fail-below", "1.5")[0] == 2


def test_a_quiet_command_prints_warnings_and_no_hints(capsys: pytest.CaptureFixture[str], in_folder: Path) -> None:
    assert "next: " in run(capsys, "init", "data")[2]
    assert run(capsys, "init", "evaluate", "--quiet")[2] == ""
    run(capsys, "import-texts", str(EXAMPLE), "--run", "demo")

    status, _, err = run(capsys, "scores", "demo", "--quiet", "--fail-below", "1")

    assert status == 1 and "failed: full_marks of small" in err


def test_a_run_without_gradings_says_so(capsys: pytest.CaptureFixture[str], in_folder: Path) -> None:
    line = {"skills": ["metaphor"], "topic": "Sewing", "student": "s", "text": "A stitch."}
    (in_folder / "t.jsonl").write_text(json.dumps(line), encoding="utf-8")
    run(capsys, "import-texts", "t.jsonl", "--run", "r")

    status, out, err = run(capsys, "scores", "r", "--json")

    assert (status, json.loads(out)) == (0, [])
    assert "s is omitted, because its texts have no grades yet" in err


def test_a_path_with_a_dot_is_taken_as_it_is(capsys: pytest.CaptureFixture[str], in_folder: Path) -> None:
    run(capsys, "import-texts", str(EXAMPLE), "--run", "./here")

    assert (in_folder / "here/experiment.yaml").exists()
    assert run(capsys, "scores", "./here")[0] == 0
