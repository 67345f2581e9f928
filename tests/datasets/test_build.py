"""Data sets from scripted runs: exactly the expected members, no leak, the same bytes after any kill."""

import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from pyarrow import parquet

from skillmix.catalog.combinations import is_reserved
from skillmix.catalog.files import load_catalog
from skillmix.commands import main
from skillmix.datasets import window
from skillmix.datasets.build import WrittenDataset
from skillmix.datasets.corpus import corpus_of
from skillmix.datasets.dataset_plan import DatasetPlan
from skillmix.datasets.decisions import Decisions
from skillmix.datasets.from_runs import FromRuns, dataset_of_runs
from skillmix.datasets.leakage import Bars, evaluated
from skillmix.errors import UserError
from skillmix.experiment.experiment import experiment_of, load_experiment
from skillmix.experiment.recipes import DataRecipe, plain_recipe, recipe_named
from skillmix.grading.answers import RULES, count_sentences
from skillmix.grading.points import text_score
from skillmix.runs.run import open_run
from skillmix.runs.scheduler import StopReason
from skillmix.runs.texts import run_records
from skillmix.scores.scoring import run_scores
from skillmix.steps.run import run_checked, run_experiment
from skillmix.steps.step_kind import RunResult

FILES = ("train.jsonl", "validation.jsonl", "dataset_info.json", "rows.parquet", "README.md", "skillmix.json")
KILLS = 20 if os.environ.get("SKILLMIX_LONG") else 8
WRITER = "scripted:student?skill=0.8&marker=0.9"


def written(folder: Path, steps: list[dict[str, Any]], **more: Any) -> Path:
    document = {
        "name": "data",
        "students": {"w": {"model": WRITER}, "other": {"model": "scripted:student?skill=0.9"}},
        "graders": {"judge": {"model": "scripted:grader?noise=0.02&unreadable=0.1", "rounds": 3}},
        "steps": steps,
    } | more
    path = folder / f"{document['name']}.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def step(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "stage": "dataset", "writer": "w", "graders": ["judge"]} | more


def run(folder: Path, *steps: dict[str, Any], **more: Any) -> RunResult:
    return run_experiment(written(folder, list(steps), **more))


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parquet.read_table(folder / "rows.parquet").to_pylist()
    return found


def keys(folder: Path) -> set[str]:
    return {row["key"] for row in rows(folder)}


def of_run(recipe: DataRecipe, **more: Any) -> WrittenDataset:
    return dataset_of_runs(FromRuns(runs=["data"], recipe=recipe, near_duplicates=None, **more))


def graded_run(folder: Path, **more: Any) -> None:
    """Texts of k = 1 to 3 from both sides, graded."""
    steps: list[dict[str, Any]] = [
        {
            "name": "texts",
            "stage": "generate",
            "purpose": "training",
            "students": ["w"],
            "settings": ["train", "all"],
            "k": [1, 2, 3],
            "combinations": 60,
            "generations": 1,
        },
        {"name": "grades", "stage": "grade", "of": ["texts"], "graders": ["judge"]},
    ]
    run(folder, *steps, **more)


def expected(ks: set[int], *, skills: str = "all") -> set[str]:
    """Members of D(ks) by the plain way: every ballot counted on its own, every rule read off the catalog."""
    catalog = load_catalog("paper")
    train, held_out = catalog.partition().train, catalog.partition().held_out
    records = run_records(open_run("data"))
    found = set()
    for ballot in records.ballots:
        c = ballot.text.combination
        is_full = text_score(ballot.points(RULES["default"], records.run.phrases), "full_marks") == 1.0
        sides = c.topic in train.topics and (
            set(c.skills) <= set(train.skills) or (c.k == 1 and skills == "all" and c.skills[0] in held_out.skills)
        )
        if is_full and sides and c.k in ks and not is_reserved(c.skills, 0.2):
            found.add((f"generate/w/{c.id}/{ballot.text.generation}", ballot.text.id))
    texts: dict[str, str] = {}
    for key, text in sorted(found):
        texts.setdefault(text, key)  # the same words twice are one text
    return set(texts.values())


def test_recipes_of_one_run_have_exactly_the_expected_members(in_folder: Path) -> None:
    graded_run(in_folder)

    for ks in ({1}, {2}, {1, 2}, {1, 2, 3}):
        made = of_run(recipe_named(f"D({','.join(map(str, sorted(ks)))})"))

        members = keys(made.folder)
        assert members == expected(ks), ks
        assert made.texts == len(members) > 10
    assert keys(of_run(recipe_named("D(1)", skills="train")).folder) == expected({1}, skills="train")
    assert expected({1}, skills="train") < expected({1})


def test_sizes_are_nested_and_the_ablation_keeps_its_constraint(in_folder: Path) -> None:
    graded_run(in_folder)
    whole = expected({1, 2, 3})
    by_k = Counter(row["k"] for row in rows(of_run(recipe_named("D(1,2,3)")).folder))

    ladder = [keys(of_run(recipe_named("D(1,2,3)", size=size)).folder) for size in (10, 20, 40)]
    ablation = rows(of_run(recipe_named("ablation", size=30)).folder)

    assert ladder[0] < ladder[1] < ladder[2] < whole
    assert [len(part) for part in ladder] == [10, 20, 40]
    compound = sum(row["k"] > 1 for row in ablation)
    assert len(ablation) == 30
    assert compound < by_k[2]
    assert {row["key"] for row in ablation} <= whole
    with pytest.raises(UserError, match=f"there are {by_k[1]} of k = 1, {by_k[2]} of k = 2"):
        of_run(recipe_named("D(1,2,3)", size=1000))


def test_a_target_is_reached_and_rows_say_where_texts_are_from(in_folder: Path) -> None:
    result = run(in_folder, step("d", k=[1, 2], skills="all", target={1: 30, 2: 20}))

    made = result.datasets["d"]
    found = rows(made.folder)
    assert result.is_complete
    assert Counter(row["k"] for row in found) == {1: 30, 2: 20}
    assert [(y.k, y.taken, y.target) for y in made.yields] == [(1, 30, 30), (2, 20, 20)]
    for y in made.yields:
        assert y.full_marks >= y.taken
        # The window had begun a few more when the last text was taken.
        begun = sum(1 for text in run_records(result.run).texts if text.combination.k == y.k)
        assert y.written <= begun < 2 * y.written
    lines = [
        json.loads(line)
        for name in ("train.jsonl", "validation.jsonl")
        for line in (made.folder / name).read_text(encoding="utf-8").splitlines()
    ]
    assert [line["messages"] for line in lines] == [row["messages"] for row in found]
    assert all(row["run"] == "data" and row["model"] == WRITER and row["graders"] == ["judge"] for row in found)
    votes = [json.loads(vote) for row in found for vote in row["votes"]]
    assert all(len(vote) == 3 for vote in votes)
    with open_run("data").read() as journal:
        stored = {str(call.key): call for call in journal.calls("generate")}
    for row in found:
        calls = [stored[f"{row['key']}/{turn}"] for turn in (1, 2)]
        assert [call.request_hash for call in calls] == row["request_hashes"]
        assert [call.outcome.text for call in calls] == [row["messages"][n]["content"] for n in (1, 3)]  # type: ignore[union-attr]


def test_kept_texts_are_the_first_of_the_draw(in_folder: Path) -> None:
    small = {row["key"] for row in rows(run(in_folder, step("d", k=[2], target=10)).datasets["d"].folder)}
    large = {row["key"] for row in rows(run(in_folder, step("d", k=[2], target=25)).datasets["d"].folder)}

    assert small < large


def test_joined_sets_are_unions_and_remember_every_writer(in_folder: Path) -> None:
    steps = [
        step("d1", k=[1], target=20),
        step("d2", k=[2], target=15),
        step("d2b", k=[2], target=15, writer="other"),
        {"name": "both", "stage": "dataset", "of": ["d1", "d2", "d2b"], "near_duplicates": None},
        {"name": "half", "stage": "dataset", "of": ["both"], "size": 20, "shares": {1: 1, 2: 1}},
    ]

    result = run(in_folder, *steps)

    folders = {name: made.folder for name, made in result.datasets.items()}
    texts = {name: {row["text"] for row in rows(folder)} for name, folder in folders.items()}
    assert texts["both"] == texts["d1"] | texts["d2"] | texts["d2b"]
    assert Counter(row["k"] for row in rows(folders["half"])) == {1: 10, 2: 10}
    assert keys(folders["half"]) < keys(folders["both"])
    told = json.loads((folders["both"] / "skillmix.json").read_text(encoding="utf-8"))
    assert {writer["student"] for writer in told["written_by"]} == {"w", "other"}
    assert told["kind"] == "dataset"
    assert told["k"] == [1, 2]
    assert set(told["combinations"]) == {row["combination"] for row in rows(folders["both"])}


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def test_killed_at_random_moments_it_makes_the_same_bytes(in_folder: Path) -> None:
    steps = [step("d", k=[1, 2], target={1: 40, 2: 60}), {"name": "all", "stage": "dataset", "of": ["d"], "size": 80}]
    alone = in_folder / "alone"
    alone.mkdir()
    os.chdir(alone)
    started = time.monotonic()
    run(alone, *steps)
    seconds = time.monotonic() - started
    wanted = {name: bytes_of(alone / f"runs/data/{name}/dataset") for name in ("d", "all")}

    os.chdir(in_folder)
    path = written(in_folder, steps)
    chance = random.Random(20)
    kills = 0
    for number in range(5 * KILLS):
        kills += was_killed(path, after=chance.uniform(0.02, 0.3) * seconds)
        if kills == KILLS:
            break
        if (in_folder / "runs/data/all").exists():
            (in_folder / "runs/data").rename(in_folder / f"old-{number}")  # begin anew
    result = run_experiment(path)

    assert kills == KILLS
    assert result.is_complete
    assert {name: bytes_of(in_folder / f"runs/data/{name}/dataset") for name in ("d", "all")} == wanted


def was_killed(path: Path, *, after: float) -> bool:
    """Run an experiment in a child that the kernel ends, wherever it is, after so many seconds."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, after)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            run_experiment(path)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def test_a_spread_that_cannot_be_had_is_told(in_folder: Path) -> None:
    made = run(in_folder, step("d", k=[1], target=60, per_skill={"floor": 1, "ceiling": 2})).datasets["d"]

    counts = Counter(skill for row in rows(made.folder) for skill in row["skills"])
    assert max(counts.values()) <= 2
    assert len(counts) == 54
    assert made.yields[0].below_floor == {}

    short = run(in_folder, step("d", k=[1], target=200, per_skill={"ceiling": 2}))
    assert not short.is_complete
    assert [(y.taken, y.target) for y in short.datasets["d"].short] == [(108, 200)]


def test_a_target_out_of_reach_stops_what_depends_on_it(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(
        in_folder,
        [step("d", k=[3], target=50, most=40), {"name": "j", "stage": "dataset", "of": ["d"]}],
    )

    assert main(["run", str(path)]) == 1

    told = capsys.readouterr().err
    assert "of 50 texts of k = 3 after 40 conversations" in told
    assert not (in_folder / "runs/data/j").exists()
    assert (in_folder / "runs/data/d/dataset/train.jsonl").exists()


def test_less_than_the_target_may_be_enough(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(
        in_folder,
        [step("d", k=[3], target=50, most=40, least=1), {"name": "j", "stage": "dataset", "of": ["d"]}],
    )

    assert main(["run", str(path)]) == 0

    told = capsys.readouterr().err
    assert "of 50 texts of k = 3 after 40 conversations" in told
    assert "enough for later steps" in told
    assert (in_folder / "runs/data/j/dataset/train.jsonl").exists()


def test_no_text_at_all_may_be_enough(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = step("none", k=[6], target=5, most=1, least=0)
    some = step("some", k=[1], target=5)
    path = written(in_folder, [nothing, some, {"name": "both", "stage": "dataset", "of": ["none", "some"]}])

    assert main(["run", str(path)]) == 0

    assert "only 0 of 5 texts of k = 6" in capsys.readouterr().err
    assert (in_folder / "runs/data/none/dataset/train.jsonl").read_text(encoding="utf-8") == ""
    assert pq.read_table(in_folder / "runs/data/both/dataset/rows.parquet").num_rows == 5


def test_a_spent_budget_leaves_what_there_is_and_goes_on_later(in_folder: Path) -> None:
    short = run(in_folder, step("d", k=[1], target=40), budget={"max_calls": 100})

    assert short.stopped == StopReason.BUDGET
    assert 0 < short.datasets["d"].texts < 40
    whole = run(in_folder, step("d", k=[1], target=40), budget={"max_calls": 10_000})
    assert whole.is_complete
    assert whole.datasets["d"].texts == 40


def test_writing_again_makes_no_call_and_the_same_bytes(in_folder: Path) -> None:
    first = run(in_folder, step("d", k=[1], target=20))
    before = bytes_of(first.datasets["d"].folder)

    again = run(in_folder, step("d", k=[1], target=20))

    assert (again.called, again.found) == (0, first.called)
    assert bytes_of(again.datasets["d"].folder) == before


def test_prompts_in_the_data_may_differ_from_those_that_were_seen(in_folder: Path) -> None:
    students = {"w": {"model": WRITER, "prompts": "worked"}}

    made = run(in_folder, step("d", k=[1], target=10), students=students).datasets["d"]

    card = (made.folder / "README.md").read_text(encoding="utf-8")
    assert "not those that the writers saw" in card
    for row in rows(made.folder):
        assert row["written_with"].startswith("worked (")
        assert row["prompts"].startswith("standard (")
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"] * 2
        assert row["messages"][0]["content"].startswith("Hello!")


def test_validation_is_split_by_combination(in_folder: Path) -> None:
    made = run(in_folder, step("d", k=[2], target=60, generations=3, near_duplicates=None, validation=0.3)).datasets[
        "d"
    ]

    split: dict[str, set[str]] = {}
    for row in rows(made.folder):
        split.setdefault(row["combination"], set()).add(row["split"])
    assert all(len(parts) == 1 for parts in split.values())
    assert min(made.written.train, made.written.validation) > 5


def test_a_run_without_grades_is_refused_with_counts(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate = {
        "name": "g",
        "stage": "generate",
        "purpose": "training",
        "students": ["w"],
        "k": [1],
        "combinations": 7,
        "generations": 1,
    }
    run(in_folder, generate)

    assert main(["dataset", "data"]) == 2

    assert "judge decided 0 of 7 texts" in capsys.readouterr().err
    assert not (in_folder / "runs/data/dataset").exists()


def test_a_grader_that_graded_half_is_told_and_exits_1(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graded_run(in_folder)
    whole = json.loads(out(capsys, 0, "dataset", "data", "--recipe", "D(1)", "--json"))
    graded_run(in_folder, graders={"judge": {"model": "scripted:grader?noise=0.02&unreadable=0.1", "rounds": 7}})
    import sqlite3

    with closing(sqlite3.connect(in_folder / "runs/data/run.sqlite")) as journal, journal:
        journal.execute("DELETE FROM call WHERE stage = 'grade' AND round > 2 AND generation = 0 AND id % 2 = 0")

    half = json.loads(out(capsys, 1, "dataset", "data", "--recipe", "D(1)", "--json"))

    assert half["left_out"]["undecided"] > 0
    assert whole["left_out"]["undecided"] == 0


def out(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    capsys.readouterr()
    assert main(arguments) == status
    return capsys.readouterr().out


def test_an_empty_result_is_refused_with_counts(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graded_run(in_folder)

    assert main(["dataset", "data", "--recipe", "D(5)"]) == 2

    assert "another k" in capsys.readouterr().err


# Each rule against leaks, with one planted leak.


def import_line(skills: list[str], topic: str, number: int, extra: str = "") -> str:
    said = f"Sentence number {number} says {' '.join(f'word{number}{c}' for c in 'abcdefgh')} of its own{extra}."
    rows = "\n".join(f"| {name} | 1 |" for name in (*skills, "topic", "sense"))
    messages = [
        {"role": "user", "content": "write"},
        {"role": "assistant", "content": f"Answer: first {said}"},
        {"role": "user", "content": "better"},
        {"role": "assistant", "content": f"Answer: {said}\n\nExplanation: so."},
    ]
    line = {"student": "w", "skills": skills, "topic": topic, "messages": messages, "gradings": {"judge": [rows]}}
    return json.dumps(line)


def imported(folder: Path, capsys: pytest.CaptureFixture[str], *leaks: str) -> None:
    good = [import_line(["metaphor"], topic, n) for n, topic in enumerate(sides()[0].topics[:3])]
    (folder / "texts.jsonl").write_text("\n".join([*good, *leaks]), encoding="utf-8")
    assert main(["import-texts", str(folder / "texts.jsonl"), "--run", "data"]) == 0
    capsys.readouterr()


def sides() -> tuple[Any, Any]:
    partition = load_catalog("paper").partition()
    return partition.train, partition.held_out


def unreserved_pair(skills: tuple[str, ...], *, reserved: bool = False) -> list[str]:
    pairs = ([a, b] for a in skills for b in skills if a < b)
    return next(pair for pair in pairs if is_reserved(pair, 0.2) == reserved)


def test_without_a_leak_an_import_becomes_a_data_set(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, _ = sides()
    imported(in_folder, capsys, import_line(unreserved_pair(train.skills), train.topics[0], 9))

    assert main(["dataset", "data"]) == 0

    assert len(rows(in_folder / "runs/data/dataset")) == 4


def test_a_reserved_set_of_a_training_draw_is_left_out_and_counted(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, _ = sides()
    reserved = import_line(unreserved_pair(train.skills, reserved=True), train.topics[0], 9)
    imported(in_folder, capsys, reserved)

    for options in ([], ["--k", "1", "2"], ["--recipe", "D(1,2)"]):
        assert main(["dataset", "data", *options]) == 0
        printed = capsys.readouterr().err
        assert "1 text outside " in printed and "a reserved skill set" in printed
        assert len(rows(in_folder / "runs/data/dataset")) == 3


def test_pairs_come_from_the_draw_that_the_tool_made_for_training(in_folder: Path) -> None:
    document = {
        "name": "made",
        "students": {"w": {"model": "scripted:student?skill=0.7"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [
            {"name": "write", "stage": "generate", "students": ["w"], "settings": ["train"], "k": [1, 2],
             "combinations": 60, "generations": 4, "purpose": "training"},
            {"name": "grade", "stage": "grade", "of": ["write"], "graders": ["judge"]},
        ],
    }  # fmt: skip
    run_checked(experiment_of(document, source="test"))

    assert main(["dataset", "made", "--preferences", "pairs.jsonl"]) == 0

    pairs = Path("pairs.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(pairs) > 10


@pytest.mark.parametrize("rule", ["a held-out topic", "a held-out skill at k > 1"])
def test_a_planted_leak_stops_the_export(rule: str, in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, held_out = sides()
    mixed = next([a, b] for a in train.skills for b in held_out.skills if not is_reserved([a, b], 0.2))
    leaks = {
        "a held-out topic": (["metaphor"], held_out.topics[0]),
        "a held-out skill at k > 1": (mixed, train.topics[0]),
    }
    imported(in_folder, capsys, import_line(*leaks[rule], 9))

    assert main(["dataset", "data"]) == 2

    assert f"1 with {rule}" in capsys.readouterr().err
    assert not (in_folder / "runs/data/dataset").exists()
    assert main(["dataset", "data", "--recipe", "D(1,2)"]) == 0
    assert f"1 text outside D(1,2): {rule}" in capsys.readouterr().err


def test_a_held_out_skill_alone_is_no_leak(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, held_out = sides()
    imported(in_folder, capsys, import_line([held_out.skills[0]], train.topics[0], 9))

    assert main(["dataset", "data"]) == 0


def test_a_combination_of_a_named_evaluation_stops_the_export(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    imported(in_folder, capsys)
    topics = sides()[0].topics
    (in_folder / "eval.json").write_text(json.dumps([{"skills": ["metaphor"], "topic": topics[0]}]), encoding="utf-8")
    (in_folder / "eval.jsonl").write_text(json.dumps({"skills": ["metaphor"], "topic": topics[1]}), encoding="utf-8")

    for file in ("eval.json", "eval.jsonl"):
        assert main(["dataset", "data", "--evaluations", file]) == 2
        assert "1 with a combination of an evaluation" in capsys.readouterr().err
    assert main(["dataset", "data", "--evaluations", "nowhere.json"]) == 2


def test_a_combination_of_an_evaluation_of_the_same_run_stops_the_export(in_folder: Path) -> None:
    evaluate = {"name": "eval", "stage": "evaluate", "students": ["w"], "graders": ["judge"], "settings": ["train"]}
    run(in_folder, evaluate | {"k": [1], "combinations": 20, "generations": 1})

    with pytest.raises(UserError, match=r"with a combination of an evaluation .* in evaluate step eval of data"):
        of_run(plain_recipe(()))


def test_an_evaluation_run_gives_no_data_set_and_says_why(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate = {"name": "eval", "stage": "evaluate", "students": ["w"], "graders": ["judge"], "settings": ["train"]}
    run(in_folder, evaluate | {"k": [1], "combinations": 20, "generations": 1})

    for option in (["--recipe", "D(1)"], ["--k", "1"]):
        assert main(["dataset", "data", *option]) == 2
        error = capsys.readouterr().err
        assert "with a combination of an evaluation" in error
        assert "evaluate step eval of data" in error
        assert "purpose: training" in error


def generated(folder: Path, purpose: str, **more: Any) -> None:
    """A run that only writes and grades, as one that another run evaluates at the same seed."""
    texts = {"name": "texts", "stage": "generate", "students": ["w"], "settings": ["train"], "k": [1, 2]}
    size = {"combinations": 60, "generations": 1, "purpose": purpose}
    grades = {"name": "grades", "stage": "grade", "of": ["texts"], "graders": ["judge"]}
    run(folder, texts | size, grades, **more)


def evaluation_elsewhere(folder: Path) -> tuple[Path, set[str]]:
    evaluate = {
        "name": "eval",
        "stage": "evaluate",
        "students": ["w"],
        "graders": ["judge"],
        "settings": ["train", "all"],
    }
    path = written(folder, [evaluate | {"k": [1, 2], "combinations": 100}], name="elsewhere")
    return path, set(evaluated(load_experiment(path), load_catalog("paper")))


def test_texts_of_a_generate_step_beside_an_evaluation_are_no_training_data(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, tested = evaluation_elsewhere(in_folder)
    generated(in_folder, "evaluation")
    with open_run("data").read() as journal:
        assert len(tested & journal.combinations().keys()) == 120

    assert main(["dataset", "data", "--recipe", "D(1,2)"]) == 2

    error = capsys.readouterr().err
    assert "generate step texts of data must not be trained on" in error
    assert "purpose: training" in error


def test_a_generate_step_for_training_has_no_combination_of_an_evaluation_that_nobody_named(in_folder: Path) -> None:
    _, tested = evaluation_elsewhere(in_folder)
    generated(in_folder, "training")

    made = of_run(recipe_named("D(1,2)"))

    assert made.texts > 30
    assert tested.isdisjoint(row["combination"] for row in rows(made.folder))
    card = (made.folder / "README.md").read_text(encoding="utf-8")
    assert "**No evaluation was given**" in card
    assert "no combination of an evaluation" not in card.lower()


def test_the_card_names_the_evaluations_that_rows_were_checked_against(in_folder: Path) -> None:
    path, tested = evaluation_elsewhere(in_folder)
    generated(in_folder, "training", leakage={"evaluations": [str(path)]})

    card = (of_run(recipe_named("D(1,2)")).folder / "README.md").read_text(encoding="utf-8")

    assert f"checked on every row against the combinations of {path} ({len(tested)})." in card


def test_texts_for_training_do_not_stand_in_the_table_of_an_evaluation(in_folder: Path) -> None:
    """The generate step is the larger cell, which would otherwise replace the evaluation's."""
    texts = {"name": "texts", "stage": "generate", "students": ["w"], "settings": ["train"], "k": [1]}
    grades = {"name": "grades", "stage": "grade", "of": ["texts"], "graders": ["judge"]}
    evaluate = {"name": "eval", "stage": "evaluate", "students": ["w"], "graders": ["judge"], "settings": ["train"]}
    size = {"combinations": 30, "generations": 1, "purpose": "training"}
    run(in_folder, texts | size, grades, evaluate | {"k": [1], "combinations": 10, "generations": 1})

    scores = run_scores("data")

    assert {score.combinations for score in scores} == {10}
    generated(in_folder, "training", name="alone")
    assert {score.combinations for score in run_scores("alone")} == {60}


def test_writing_passes_over_what_is_evaluated_or_reserved(in_folder: Path) -> None:
    evaluate = {"name": "eval", "stage": "evaluate", "students": ["w"], "graders": ["judge"], "settings": ["train"]}
    result = run(
        in_folder,
        evaluate | {"k": [1], "combinations": 2000, "generations": 1},
        step("d", k=[1, 2], target=30),
        graders={"judge": {"model": "scripted:grader", "rounds": 1}},
    )

    found = rows(result.datasets["d"].folder)
    with open_run("data").read() as journal:
        known = journal.combinations()
    tested = {c.id for c in list(known.values())[:2000]}
    assert not tested & {row["combination"] for row in found}
    assert not any(is_reserved(row["skills"], 0.2) for row in found)


def test_names_of_held_out_skills_are_listed_and_stop_a_strict_export(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, held_out = sides()
    name = next(skill for skill in held_out.skills if "(" not in skill)
    imported(in_folder, capsys, import_line(["metaphor"], sides()[0].topics[5], 9, extra=f" with a {name} inside"))

    assert main(["dataset", "data"]) == 0
    card = (in_folder / "runs/data/dataset/README.md").read_text(encoding="utf-8")
    assert any(name in line and "answers" in line and line.rstrip(" |").endswith("1") for line in card.splitlines())
    capsys.readouterr()
    assert main(["dataset", "data", "--names", "strict"]) == 2
    assert f"{name} in the answers (1 text)" in capsys.readouterr().err


def test_copies_are_left_out_and_told(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = [skill.example for skill in load_catalog("paper").skills]
    example = next(e for e in examples if count_sentences(e, "robust") == 1 and 8 < len(e.split()) < 14)
    copy = json.loads(import_line(["metaphor"], sides()[0].topics[5], 1))
    stolen = json.loads(import_line(["metaphor"], sides()[0].topics[6], 9))
    stolen["messages"][3]["content"] = f"Answer: {example}"
    words = example.split()
    changed, near = (json.loads(import_line(["metaphor"], sides()[0].topics[n], n)) for n in (7, 8))
    changed["messages"][3]["content"] = "Answer: " + " ".join([*words[:4], "Zanzibar", *words[5:]])
    near["messages"][3]["content"] = "Answer: " + " ".join([*words[:5], "but nobody came."])
    imported(in_folder, capsys, *map(json.dumps, (copy, stolen, changed, near)))

    told = json.loads(out(capsys, 0, "dataset", "data", "--json"))

    assert told["left_out"]["removed"] == {"exact copy": 1, "repeats an example": 2}
    card = (in_folder / "runs/data/dataset/README.md").read_text(encoding="utf-8")
    assert "a quarter or more of the 3-grams of an example: 1 of 4." in card
    assert "exact copy" in card
    assert "Sentence number 1 says" in card


def test_texts_without_two_turns_are_counted(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    single = {
        "student": "w",
        "skills": ["metaphor"],
        "topic": sides()[0].topics[5],
        "text": "Alone.",
        "gradings": {"judge": ["| metaphor | 1 |\n| topic | 1 |\n| sense | 1 |"]},
    }
    imported(in_folder, capsys, json.dumps(single))

    assert json.loads(out(capsys, 0, "dataset", "data", "--json"))["left_out"]["not_conversations"] == 1


def test_several_runs_become_one_set_with_their_names(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graded_run(in_folder)
    graded_run(in_folder, name="more", seed=1)

    made = json.loads(out(capsys, 0, "dataset", "data", "more", "--recipe", "D(1,2)", "--output", "both", "--json"))

    assert {row["run"] for row in rows(in_folder / "both")} == {"data", "more"}
    assert made["folder"] == "both"


def test_the_filters_of_copies_and_examples_can_be_switched_off(in_folder: Path) -> None:
    catalog = load_catalog("paper")
    own = "A quiet harbour waits for boats that nobody has built."
    texts = corpus_of([own, own, own.replace("built", "seen"), catalog.skills[0].example])
    bars = Bars(catalog.partition(), {}, 0.0)
    usual = DatasetPlan("d", plain_recipe([1]), catalog, bars, "list", "standard", 0.6, 0.0)
    examples_kept = replace(usual, keeps_example_copies=True)
    all_kept = replace(examples_kept, near_duplicates=None, keeps_exact_duplicates=True)

    assert [r.why for r in usual.removals(texts)] == ["exact copy", "near copy", "repeats an example"]
    assert [r.why for r in examples_kept.removals(texts)] == ["exact copy", "near copy"]
    assert all_kept.removals(texts) == []


def test_the_card_says_which_filters_were_switched_off(in_folder: Path) -> None:
    off = {"near_duplicates": None, "exact_duplicates": "keep", "example_copies": "keep", "validation": 0}

    made = run(in_folder, step("d1", k=[1], target=12), dataset=off).datasets["d1"]

    assert (made.written.train, made.written.validation) == (12, 0)
    card = (made.folder / "README.md").read_text(encoding="utf-8")
    assert "Near copies and exact copies were kept." in card
    assert "eight consecutive words of an example, were kept." in card


def test_a_step_keeps_texts_by_its_own_rules(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters: Counter[str] = Counter()

    class Counted(Decisions):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            counters[self.rules.counter] += 1

    monkeypatch.setattr(window, "Decisions", Counted)

    assert run(in_folder, step("one", k=[1], target=5, generations=2)).is_complete
    assert set(counters) == {"robust"}
    assert run(in_folder, step("two", k=[1], target=5, rules="paper"), name="strict").is_complete
    assert set(counters) == {"robust", "original"}
