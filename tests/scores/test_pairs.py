"""Two students of a run, compared by hand, by numpy and scipy, and by `skillmix compare`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

import skillmix
from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.report.records import Report, RunFacts
from skillmix.report.tables.scores import chosen_pairs, compared_pairs, students_compared_table
from skillmix.runs.run import open_run
from skillmix.scores.cells import Cell
from skillmix.scores.comparisons import compare_students
from skillmix.scores.scoring import scored_cells


def evaluated(folder: Path, students: dict[str, Any], **step: Any) -> str:
    """A run of scripted students under two graders."""
    graders = {
        "careful": {"model": "scripted:grader", "rounds": 1},
        "noisy": {"model": "scripted:grader?noise=0.2&unreadable=0.1", "rounds": 1, "attempts": 1},
    }
    evaluation = {"name": "e", "stage": "evaluate", "students": list(students), "graders": list(graders)}
    document = {
        "name": "two",
        "catalog": "paper",
        "students": students,
        "graders": graders,
        "steps": [
            {**evaluation, "settings": ["train", "all"], "k": [1, 3], "combinations": 20, "generations": 2, **step}
        ],
    }
    path = folder / "two.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    assert main(["run", str(path)]) in (0, 1)
    return "two"


TWO = {"a": {"model": "scripted:student?skill=0.6"}, "b": {"model": "scripted:student?skill=0.8"}}


def values_of(run: str, student: str, metric: str) -> dict[str, dict[str, float]]:
    """The best value of every complete combination, from the rows of texts, by grader."""
    rows: dict[tuple[str, str], list[float | None]] = {}
    for row in skillmix.open_run(run).texts(student=student):
        key = row.grader, "; ".join([*sorted(row.skills), row.topic])
        rows.setdefault(key, []).append(getattr(row, metric))
    whole = {key: values for key, values in rows.items() if len(values) == 2 and None not in values}
    found: dict[str, dict[str, float]] = {}
    for (grader, combination), values in whole.items():
        found.setdefault(grader, {})[combination] = max(v for v in values if v is not None)
    return found


def permutation_p(differences: np.ndarray[Any, Any]) -> float:
    """Sign flips by scipy, on which students are swapped within combinations."""
    moved = differences[differences != 0]
    if not len(moved):
        return 1.0
    test = stats.permutation_test(
        (moved,), np.mean, permutation_type="samples", n_resamples=5_000, rng=np.random.default_rng(5)
    )
    return float(test.pvalue)


@pytest.mark.parametrize("metric", ["full_marks", "skill_fraction"])
def test_two_students_without_lineage_as_numpy_and_scipy_compare_them(in_folder: Path, metric: str) -> None:
    run = evaluated(in_folder, TWO)

    comparison = compare_students(run, "a", "b", metric=metric)

    before, after = values_of(run, "a", metric), values_of(run, "b", metric)
    cells = scored_cells(run)
    assert {(row.grader, row.setting, row.k) for row in comparison.rows} == {
        (grader, setting, k) for grader in ("careful", "noisy") for setting in ("train", "all") for k in (1, 3)
    }
    for row in comparison.rows:
        (cell,) = (c for key, c in cells.items() if key[1:] == ("b", row.grader, row.setting, row.k))
        names = ["; ".join([*sorted(c.skills), c.topic]) for c in cell.combinations]
        first, second = before[row.grader], after[row.grader]
        shared = [name for name in names if name in first and name in second]
        differences = np.array([second[name] - first[name] for name in shared])
        assert row.combinations == len(shared)
        assert (row.wins, row.losses) == ((differences > 0).sum(), (differences < 0).sum())
        assert row.wins + row.ties + row.losses == row.combinations
        assert row.difference == pytest.approx(differences.mean())
        assert row.second_value - row.first_value == pytest.approx(row.difference)
        assert row.p == pytest.approx(permutation_p(differences), abs=0.03)
        if np.ptp(differences):
            half = stats.t.ppf(0.975, len(differences) - 1) * differences.std(ddof=1) / np.sqrt(len(differences))
            assert (row.low, row.high) == pytest.approx((row.difference - half, row.difference + half), abs=0.06)
    for grader in ("careful", "noisy"):
        family = [row for row in comparison.rows if row.grader == grader and row.wins + row.losses >= 6]
        order = np.argsort([row.p for row in family], kind="stable")
        steps = [min(1.0, (len(order) - i) * family[j].p) for i, j in enumerate(order)]
        assert [family[j].p_corrected for j in order] == pytest.approx(list(np.maximum.accumulate(steps)))
        assert {row.tests for row in family} <= {len(family)}


def test_as_many_combinations_as_are_still_needed_find_the_difference_in_four_of_five_worlds(in_folder: Path) -> None:
    run = evaluated(in_folder, TWO, settings=["train"], k=[2])

    row = next(row for row in compare_students(run, "a", "b").rows if row.grader == "careful")

    assert row.still_needed
    size = row.combinations + row.still_needed
    generator = np.random.default_rng(0)
    rates = np.array([row.losses, row.ties, row.wins]) / row.combinations
    worlds = generator.choice([-1.0, 0.0, 1.0], p=rates, size=(2000, size))
    found = np.mean(stats.ttest_1samp(worlds, 0.0, axis=1).pvalue < 0.05)
    assert 0.74 < found < 0.88


def test_the_texts_are_the_best_ones_of_combinations_on_which_the_students_differ(in_folder: Path) -> None:
    run = evaluated(in_folder, TWO, settings=["train"], k=[2])

    comparison = compare_students(run, "a", "b")

    by_grader = {row.grader: row for row in comparison.rows}
    for grader, row in by_grader.items():
        pairs = [pair for pair in comparison.texts if pair.grader == grader]
        assert len(pairs) == row.wins + row.losses > 0
        assert sum(pair.second.value > pair.first.value for pair in pairs) == row.wins
    written = skillmix.open_run(run).texts()
    for pair in comparison.texts:
        asked = (pair.grader, pair.skills, pair.topic)
        for best in (pair.first, pair.second):
            assert best.value == all(best.points.values())
            mine = [r for r in written if (r.student, r.grader, r.skills, r.topic) == (best.student, *asked)]
            assert best.text in {r.text for r in mine}
            assert best.value == max(r.full_marks or 0.0 for r in mine)


def test_the_command_prints_a_table_json_and_texts(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated(in_folder, TWO, settings=["train"], k=[2])
    capsys.readouterr()

    assert main(["compare", "two", "a", "b", "--texts", "1"]) == 0
    shown = capsys.readouterr().out
    assert main(["compare", "two", "a", "b", "--json", "--metric", "all_skills", "--texts", "3"]) == 0
    document = json.loads(capsys.readouterr().out)

    assert shown.startswith("Full marks: b against a (setting train):\n\n| grader  |  k |   a |   b | difference ")
    assert max(map(len, shown.splitlines())) <= 100
    assert "1 of the " in shown
    assert list(document) == ["run", "first", "second", "metric", "rows", "texts", "notes"]
    assert " ".join(document["rows"][0]) == (
        "grader setting k first_value second_value difference low high p p_corrected combinations wins ties losses "
        "still_needed verdict tests explained_by"
    )
    assert len(document["texts"]) == 3
    assert " ".join(document["texts"][0]) == "grader setting k combination skills topic first second"


def test_the_same_from_python(in_folder: Path) -> None:
    run = skillmix.open_run(evaluated(in_folder, TWO, settings=["train"], k=[2]))

    assert run.compare("a", "b") == compare_students("two", "a", "b")
    assert "still needed" in str(run.compare("a", "b"))


def test_what_cannot_be_compared_is_an_error_with_a_hint(in_folder: Path) -> None:
    run = evaluated(in_folder, TWO, settings=["train"], k=[2])

    with pytest.raises(UserError, match="no graded student 'nobody'") as unknown:
        compare_students(run, "a", "nobody")
    assert unknown.value.hint == "Students of two: a, b."
    with pytest.raises(UserError, match="with itself"):
        compare_students(run, "a", "a")
    with pytest.raises(UserError, match="no metric 'marks'") as metric:
        compare_students(run, "a", "b", metric="marks")
    assert "full_marks, all_skills, skill_fraction" in str(metric.value.hint)


def test_students_without_a_common_combination_are_an_error(in_folder: Path) -> None:
    lines = [
        {"student": s, "skills": ["metaphor"], "topic": topic, "text": "x", "gradings": {"g": ["| metaphor | 1 |"]}}
        for s, topic in (("a", "Sewing"), ("b", "Hiking"))
    ]
    Path("t.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert main(["import-texts", "t.jsonl", "--run", "apart"]) == 0

    with pytest.raises(UserError, match="no combination that both a and b have completed"):
        compare_students("apart", "a", "b")


def test_other_prompts_or_decoding_are_noted(in_folder: Path) -> None:
    hot = {**TWO["b"], "temperature": 1.2, "max_tokens": 99}
    run = evaluated(in_folder, {"a": TWO["a"], "b": hot}, settings=["train"], k=[2])

    assert compare_students(run, "a", "b").notes == (
        "a and b also differ in temperature (0.7 and 1.2), max_tokens (512 and 99).",
    )


def facts(students: dict[str, str]) -> RunFacts:
    return RunFacts("r", None, None, 0, None, "default", (), students, {}, {}, 1, 0, 0)


def report_of(specs: dict[str, str], cells: tuple[Cell, ...]) -> Report:
    return Report(runs=(facts(specs),), cells=cells)


def test_a_report_with_many_students_says_how_many_pairs_it_shows(in_folder: Path) -> None:
    specs = {f"s{i}": {"model": f"scripted:student?skill=0.{i}"} for i in range(1, 7)}
    run = open_run(evaluated(in_folder, specs, settings=["train"], k=[1], combinations=4, generations=1))
    cells = tuple(scored_cells(run).values())
    moved = tuple(Cell(c.key._replace(run="r"), c.combinations, c.points, c.statuses) for c in cells)
    alone = report_of({name: s["model"] for name, s in specs.items()}, moved)
    related = report_of(dict.fromkeys(specs, "m") | {"s1": "other"}, moved)

    assert chosen_pairs(alone, alone.runs[0])[0] == ("s1", "s2")
    assert len(chosen_pairs(alone, alone.runs[0])) == 10
    assert all("s1" not in pair for pair in chosen_pairs(related, related.runs[0]))
    (table,) = students_compared_table(replace(alone, comparisons=tuple(compared_pairs(alone))))
    assert table.note.endswith("r: the table has 10 of 15 pairs.")


def test_a_comparison_can_have_the_first_of_all_texts(in_folder: Path) -> None:
    run = open_run(evaluated(in_folder, TWO))
    whole = compare_students(run, "a", "b")

    for count in (0, 3, 10_000):
        assert compare_students(open_run("two"), "a", "b", texts=count) == replace(whole, texts=whole.texts[:count])
    assert whole.differing == len(whole.texts) > 3
