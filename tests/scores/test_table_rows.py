"""A smaller experiment file hides nothing that the run holds."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import skillmix
from skillmix.commands import main
from skillmix.report.records import ReportOptions
from skillmix.report.write import report
from skillmix.runs.run import open_run
from skillmix.scores.scoring import run_scores
from skillmix.scores.sentences import scored_run
from skillmix.scores.status import run_status
from skillmix.steps.run import run_experiment
from tests.runs.databases import forget_earlier

STUDENTS = {
    "a": {"model": "scripted:student?skill=0.5&empty=0.1"},
    "b": {"model": "scripted:student?skill=0.9"},
}
GRADERS = {
    "judge": {"model": "scripted:grader", "rounds": 1},
    "strict": {"model": "scripted:grader?noise=0.3", "rounds": 1},
}
WHOLE: dict[str, Any] = {
    "students": ["a", "b"],
    "graders": ["judge", "strict"],
    "settings": ["train", "all"],
    "k": [1, 2],
    "combinations": 5,
    "generations": 2,
}


def written(folder: Path, *, top: dict[str, Any] | None = None, **step: Any) -> Path:
    evaluation = {"name": "e", "stage": "evaluate", **WHOLE, **step}
    document = {
        "name": "r",
        "catalog": "paper",
        "students": {name: STUDENTS[name] for name in evaluation["students"]},
        "graders": {name: GRADERS[name] for name in evaluation["graders"]},
        "steps": [evaluation],
    }
    path = folder / "r.yaml"
    path.write_text(yaml.safe_dump(document | (top or {})), encoding="utf-8")
    return path


def rows(run: str = "r") -> dict[Any, Any]:
    return {(s.student, s.grader, s.setting, s.k, s.metric): (s.value, s.complete, s.ungraded) for s in run_scores(run)}


SMALLER: dict[str, dict[str, Any]] = {
    "a grader less": {"graders": ["judge"]},
    "a student less": {"students": ["b"]},
    "fewer combinations": {"combinations": 3},
    "fewer k and settings": {"k": [2], "settings": ["train"]},
    "less of everything": {"graders": ["strict"], "students": ["a"], "combinations": 2, "k": [1], "settings": ["all"]},
}


@pytest.mark.parametrize("smaller", SMALLER.values(), ids=SMALLER.keys())
def test_a_smaller_file_leaves_all_scores_as_they_were(in_folder: Path, smaller: dict[str, Any]) -> None:
    run_experiment(written(in_folder))
    before = rows()

    result = run_experiment(written(in_folder, **smaller))

    assert result.called == 0
    assert rows() == before
    assert run_status("r").missing == 0
    assert scored_run("r").notes


def test_the_commands_say_what_the_file_does_not_name(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_experiment(written(in_folder))
    run_experiment(written(in_folder, graders=["judge"], combinations=3, settings=["train"], k=[1]))
    capsys.readouterr()

    assert main(["scores", "r"]) == 0
    note = capsys.readouterr().err

    assert (
        "note: the experiment file does not include a under strict; the run contains train, k = 1; train, k = 2; all, "
        "k = 1; all, k = 2\n" in note
    )
    assert "the rows also count 2 of 5 (train, k = 1)\n" in note
    assert "does not include b under strict" in note


def test_a_file_that_names_everything_again_leaves_no_note(in_folder: Path) -> None:
    run_experiment(written(in_folder))
    run_experiment(written(in_folder, graders=["judge"]))
    assert open_run("r").earlier

    run_experiment(written(in_folder, combinations=6))

    assert scored_run("r").notes == []
    assert not open_run("r").earlier


def test_several_smaller_files_one_after_the_other(in_folder: Path) -> None:
    run_experiment(written(in_folder))
    before = rows()
    for smaller in (SMALLER["a grader less"], SMALLER["a student less"], SMALLER["less of everything"]):
        run_experiment(written(in_folder, **smaller))

    assert rows() == before
    assert len(open_run("r").earlier) == 1


def test_a_grader_added_to_fewer_combinations_is_not_given_those_of_others(in_folder: Path) -> None:
    run_experiment(written(in_folder, graders=["judge"]))
    run_experiment(written(in_folder, graders=["judge", "strict"], combinations=3))

    complete = {(s.grader, s.complete, s.combinations) for s in run_scores("r")}

    assert complete == {("judge", 5, 5), ("strict", 3, 3)}


def test_what_an_earlier_file_planned_and_never_made_is_not_shown(in_folder: Path) -> None:
    run_experiment(written(in_folder, top={"budget": {"max_calls": 20}}))
    run_experiment(written(in_folder, combinations=2, generations=1, top={"budget": {}}))

    assert all(s.complete == s.combinations for s in run_scores("r") if (s.student, s.setting) == ("b", "all"))
    assert all(s.combinations <= 5 for s in run_scores("r"))


def test_a_refused_file_changes_nothing(in_folder: Path) -> None:
    run_experiment(written(in_folder))
    run_experiment(written(in_folder, graders=["judge"]))
    before = {path: path.read_bytes() for path in Path("runs/r").glob("*.yaml")}
    changed = {**STUDENTS, "a": {**STUDENTS["a"], "temperature": 0.1}}

    assert main(["run", str(written(in_folder, top={"students": changed}))]) == 2

    assert {path: path.read_bytes() for path in Path("runs/r").glob("*.yaml")} == before


def test_a_run_that_does_not_keep_earlier_files_shows_their_texts_in_a_setting_of_their_own(in_folder: Path) -> None:
    run_experiment(written(in_folder, settings=["train"]))
    before = rows()
    run_experiment(written(in_folder, settings=["train"], graders=["judge"], combinations=3, students=["a"]))
    forget_earlier("r")

    after = rows()

    assert after["a", "judge", "train", 1, "full_marks"][1] == 3
    assert after["a", "judge", "not-in-file", 1, "full_marks"][1] == 2
    for student in ("a", "b"):
        for k in (1, 2):
            for metric in ("full_marks", "skill_fraction"):
                held = after[student, "strict", "not-in-file", k, metric]
                assert held == before[student, "strict", "train", k, metric]
    assert after["b", "judge", "not-in-file", 2, "full_marks"] == before["b", "judge", "train", 2, "full_marks"]
    assert any("does not include b under strict" in note for note in scored_run("r").notes)


def test_texts_that_were_written_for_a_data_set_are_in_no_row(in_folder: Path) -> None:
    data = {"name": "d", "stage": "dataset", "writer": "b", "graders": ["judge"], "k": [1], "target": 4}
    evaluation = {"name": "e", "stage": "evaluate", **WHOLE}
    run_experiment(written(in_folder, top={"steps": [data, evaluation]}))
    before = rows()
    assert {key[2] for key in before} == {"train", "all"}

    run_experiment(written(in_folder, combinations=2))

    assert rows() == before


def test_code_that_graded_for_an_earlier_file_grades_again(in_folder: Path) -> None:
    step = {"settings": ["all"], "k": [1]}
    run_experiment(with_code(in_folder, {**step, "graders": ["rules"]}, {"rules": {"model": "rules:"}}))
    before = rows()

    run_experiment(with_code(in_folder, {**step, "graders": ["judge"]}, {"judge": GRADERS["judge"]}))

    assert before
    assert {key: value for key, value in rows().items() if key[1] == "rules"} == before


def with_code(folder: Path, step: dict[str, Any], graders: dict[str, Any]) -> Path:
    document = {
        "name": "r",
        "catalog": "verifiable",
        "students": STUDENTS,
        "graders": graders,
        "steps": [{"name": "e", "stage": "evaluate", **WHOLE, **step}],
    }
    path = folder / "code.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def test_the_report_and_comparisons_hold_what_the_file_does_not_name(in_folder: Path) -> None:
    run_experiment(written(in_folder))
    compared = skillmix.open_run("r").compare("a", "b").rows
    whole = report(["r"], output=Path("whole"), options=ReportOptions(figures=False))
    run_experiment(written(in_folder, graders=["judge"], students=["b"], combinations=3))

    less = report(["r"], output=Path("less"), options=ReportOptions(figures=False))

    assert sorted(skillmix.open_run("r").compare("a", "b").rows, key=str) == sorted(compared, key=str)
    names = {file.name for file in Path("whole/tables").glob("scores-*.csv")}
    assert names
    for name in names:
        one, other = (sorted(Path(f, "tables", name).read_text("utf-8").splitlines()) for f in ("whole", "less"))
        assert one == other
    assert not any("does not include" in gap for gap in whole.gaps)
    assert any("r: the experiment file does not include a under judge" in gap for gap in less.gaps)
