"""The data set that ships: what is in it has earned its place, and nobody is tested on it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from skillmix.config.catalogs import load_catalog
from skillmix.config.experiment import load_experiment
from skillmix.config.prompt_sets import load_prompts
from skillmix.core.combinations import combination_of
from skillmix.core.rubric import sentence_limit
from skillmix.core.sentences import count_sentences
from skillmix.stages.evaluations import evaluated
from skillmix.stages.rules_grader import RulesGrader

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "data" / "self-taught"
CATALOG = load_catalog("verifiable")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return pq.read_table(SHIPPED / "rows.parquet").to_pylist()  # type: ignore[no-any-return]


def test_every_text_has_full_marks_by_todays_checkers(rows: list[dict[str, Any]]) -> None:
    grader = RulesGrader(CATALOG)

    for row in rows:
        verdict = grader.verdict(row["text"], skills=row["skills"], topic=row["topic"])
        assert all(span is not None for span in verdict.evidence.values()), row
        assert verdict.topic is not None and verdict.nonsense is None, row
        assert count_sentences(row["text"]) <= sentence_limit(row["k"]), row
    assert len(rows) == 160


def test_its_prompts_are_todays_plain_ones(rows: list[dict[str, Any]]) -> None:
    prompts = load_prompts("standard")

    for row in rows:
        asked = [message["content"] for message in row["messages"] if message["role"] == "user"]
        combination = combination_of(row["skills"], row["topic"])
        assert (combination.id, list(combination.skills)) == (row["combination"], row["skills"])
        assert tuple(asked) == prompts.student_prompts(CATALOG, combination)


def test_the_lines_are_the_rows(rows: list[dict[str, Any]]) -> None:
    lines: list[Mapping[str, Any]] = []
    for split in ("train", "validation"):
        lines += map(json.loads, (SHIPPED / f"{split}.jsonl").read_text(encoding="utf-8").splitlines())

    assert [line["messages"] for line in lines] == [row["messages"] for row in rows]


@pytest.mark.parametrize("name", ["quickstart", "self-taught"])
def test_no_evaluation_has_its_combinations(rows: list[dict[str, Any]], name: str) -> None:
    experiment = load_experiment(ROOT / "experiments" / f"{name}.yaml")

    tested = evaluated(experiment, CATALOG)

    assert len(tested) >= 40
    assert tested.keys().isdisjoint(row["combination"] for row in rows)
