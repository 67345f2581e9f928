"""Texts that show more than was requested: reserved pairs, two held-out skills, and further skills in a control."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyarrow import parquet

import skillmix
from skillmix.catalog.combinations import combination_of, is_reserved
from skillmix.catalog.files import load_catalog
from skillmix.commands import main
from skillmix.datasets.dataset_plan import ShownRule, skills_shown
from skillmix.datasets.leakage import Bars
from skillmix.errors import UserError
from skillmix.experiment.recipes import ShownMode
from skillmix.steps.run import run_experiment

CATALOG = load_catalog("verifiable")
PARTITION = CATALOG.partition()
NAMES = tuple(skill.name for skill in CATALOG.skills)
TOPIC = PARTITION.train.topics[0]

PLAIN = ("parenthetical aside", "The cake (I baked it twice) was still raw in the middle.")
FURTHER = ("epistrophe", "They cheered for the goalkeeper; we wept for the goalkeeper.")
RESERVED = ("anaphora", "Some came on foot; some came by train; some came because they had heard there would be cake.")
HELD_OUT = ("asking politely", "Thank you for coming, and could you please take off your shoes?")


def line(skills: list[str], text: str) -> str:
    rows = "\n".join(f"| {name} | 1 |" for name in (*skills, "topic", "sense"))
    messages = [
        {"role": "user", "content": "write"},
        {"role": "assistant", "content": "Answer: a first try."},
        {"role": "user", "content": "better"},
        {"role": "assistant", "content": f"Answer: {text}"},
    ]
    graded = {"student": "w", "skills": skills, "topic": TOPIC, "messages": messages, "gradings": {"judge": [rows]}}
    return json.dumps(graded)


@pytest.fixture
def planted(in_folder: Path) -> Path:
    """A run with four texts of one requested skill each."""
    texts = [line([skill], text) for skill, text in (PLAIN, FURTHER, HELD_OUT, RESERVED)]
    (in_folder / "texts.jsonl").write_text("\n".join(texts), encoding="utf-8")
    assert main(["import-texts", "texts.jsonl", "--run", "data", "--catalog", "verifiable"]) == 0
    return in_folder


def made(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[dict[str, Any], set[str]]:
    capsys.readouterr()
    assert main(["dataset", "data", "--skills", "all", "--recipe", "D(1)", "--output", "set", "--json", *options]) == 0
    rows = parquet.read_table("set/rows.parquet").to_pylist()
    return json.loads(capsys.readouterr().out), {row["skills"][0] for row in rows}


def card() -> str:
    return Path("set/README.md").read_text(encoding="utf-8")


def test_the_planted_texts_show_what_they_are_planted_for() -> None:
    assert skills_shown(PLAIN[1], NAMES) == {PLAIN[0]}
    assert any(is_reserved(pair, 0.2) for pair in combinations(sorted(skills_shown(RESERVED[1], NAMES)), 2))
    assert not is_reserved(sorted(skills_shown(FURTHER[1], NAMES)), 0.2)
    assert len(skills_shown(HELD_OUT[1], NAMES) & set(PARTITION.held_out.skills)) == 2


def test_texts_that_show_a_reserved_pair_or_two_held_out_skills_are_left_out(
    planted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer, skills = made(capsys)

    assert skills == {PLAIN[0], FURTHER[0]}
    reasons = {"shows a reserved pair": 1, "shows two held-out skills": 1}
    assert answer["left_out"]["shown"] == reasons
    assert json.loads(Path("set/skillmix.json").read_text())["counts"]["left_out"] == reasons
    assert "Texts left out: 1: shows a reserved pair, 1: shows two held-out skills." in card()
    assert "56 of the 56 skills" in card()


def test_such_texts_can_be_refused_or_counted(planted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dataset", "data", "--recipe", "D(1)", "--shown", "refuse", "--output", "set"]) == 2
    error = capsys.readouterr().err
    assert "1 text shows a reserved pair; 1 text shows two held-out skills, such as" in error
    assert not Path("set").exists()

    answer, skills = made(capsys, "--shown", "count")

    assert len(skills) == 4 and answer["left_out"]["shown"] == {}
    assert "Texts of this set that show a reserved pair or two held-out skills: 1: shows a reserved pair" in card()


def test_a_control_has_only_texts_that_show_nothing_further(planted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer, skills = made(capsys, "--only-requested")

    assert skills == {PLAIN[0]}
    assert answer["left_out"]["shown"]["shows a skill that was not requested"] == 1
    assert "No text shows a skill of the partition that was not requested." in card()
    python = skillmix.build_dataset(["data"], recipe="D(1)", shown="count", only_requested=True, output="other")
    assert python.texts == 1
    with pytest.raises(UserError, match="would leak, because of skills that its texts show"):
        skillmix.build_dataset(["data"], recipe="D(1)", shown="refuse", output="third")


def rule(mode: ShownMode) -> ShownRule:
    return ShownRule(CATALOG, Bars(CATALOG.partition(), {}, 0.2), mode, only_requested=False)


def test_a_larger_set_with_a_reserved_pair_is_not_written_unless_leaks_are_only_counted() -> None:
    skills = PARTITION.train.skills
    triples = [t for t in combinations(skills, 3) if not is_reserved(t, 0.2)]
    with_pair = next(t for t in triples if any(is_reserved(pair, 0.2) for pair in combinations(t, 2)))
    without = next(t for t in triples if not any(is_reserved(pair, 0.2) for pair in combinations(t, 2)))

    assert rule("drop").forbids(combination_of(with_pair, TOPIC))
    assert rule("refuse").forbids(combination_of(with_pair, TOPIC))
    assert not rule("count").forbids(combination_of(with_pair, TOPIC))
    assert not rule("drop").forbids(combination_of(without, TOPIC))


@pytest.mark.parametrize("mode", ["drop", "count"])
def test_a_dataset_step_draws_around_reserved_pairs(in_folder: Path, mode: str) -> None:
    document = {
        "name": "waves",
        "catalog": "verifiable",
        "leakage": {"shown": mode},
        "students": {"w": {"model": "scripted:student"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [{"name": "d", "stage": "dataset", "writer": "w", "graders": ["judge"], "k": [3], "target": 12}],
    }
    (in_folder / "waves.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")

    result = run_experiment(in_folder / "waves.yaml").datasets["d"]

    drawn = [row["skills"] for row in parquet.read_table(result.folder / "rows.parquet").to_pylist()]
    assert len(drawn) == 12
    holds_pair = [any(is_reserved(pair, 0.2) for pair in combinations(skills, 2)) for skills in drawn]
    assert any(holds_pair) == (mode == "count")


def test_a_dataset_step_writes_on_until_enough_texts_show_nothing_forbidden(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third text is made to show a reserved pair; the step replaces it and counts it."""
    pair = frozenset(next(p for p in combinations(PARTITION.train.skills, 2) if is_reserved(p, 0.2)))

    def found(text: str, skills: tuple[str, ...]) -> frozenset[str]:
        return pair if sum(map(ord, text)) % 3 == 0 else frozenset()

    monkeypatch.setattr("skillmix.datasets.dataset_plan.skills_shown", found)
    step = {"name": "d", "stage": "dataset", "writer": "w", "graders": ["judge"], "k": [1], "target": 30}
    document = {
        "name": "waves",
        "catalog": "verifiable",
        "students": {"w": {"model": "scripted:student"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [step, {"name": "joined", "stage": "dataset", "of": ["d"]}],
    }
    (in_folder / "waves.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")

    result = run_experiment(in_folder / "waves.yaml")

    dataset = result.datasets["d"]
    texts = [row["text"] for row in parquet.read_table(dataset.folder / "rows.parquet").to_pylist()]
    assert len(texts) == 30
    assert not any(found(text, ()) for text in texts)
    assert dataset.left.shown["shows a reserved pair"] > 3
    assert result.datasets["joined"].texts == 30
