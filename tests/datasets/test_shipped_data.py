"""The data set and the adapter that ship: their texts have earned their place, and nobody is tested on them."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from skillmix.catalog.combinations import combination_of
from skillmix.catalog.files import load_catalog
from skillmix.datasets.copies import FOLLOWS, example_shares
from skillmix.datasets.corpus import corpus_of
from skillmix.datasets.leakage import bars_of, evaluated
from skillmix.datasets.shown import skills_shown
from skillmix.experiment.experiment import load_experiment
from skillmix.grading.sentences import count_sentences
from skillmix.models.bundled import bundled_models
from skillmix.models.checkpoints import checkpoint_of
from skillmix.models.specs import parse_spec
from skillmix.prompts.files import load_prompts
from skillmix.prompts.rubric import sentence_limit
from skillmix.runs.rules_grader import RulesGrader

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "data" / "self-taught"
ADAPTER = ROOT / "data" / "self-taught-adapter"
CATALOG = load_catalog("verifiable")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return pq.read_table(SHIPPED / "rows.parquet").to_pylist()  # type: ignore[no-any-return]


DENIED_LATER = 4
"""Texts that earned full marks when the data set was made, and do not today."""


def test_nearly_every_text_has_full_marks_by_todays_checkers(rows: list[dict[str, Any]]) -> None:
    grader = RulesGrader(CATALOG)
    verdicts = [grader.verdict(row["text"], skills=row["skills"], topic=row["topic"]) for row in rows]

    assert sum(bool(verdict.reasons) for verdict in verdicts) == DENIED_LATER
    for row in rows:
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


def test_no_text_shows_a_reserved_pair_or_follows_an_example(rows: list[dict[str, Any]]) -> None:
    bars = bars_of(CATALOG, partition=None, evaluations={}, reserved=0.2)
    names = tuple(skill.name for skill in CATALOG.skills)
    leaks = Counter(leak for row in rows if (leak := bars.leak_shown(skills_shown(row["text"], names))))
    shares = example_shares(corpus_of(row["text"] for row in rows), [skill.example for skill in CATALOG.skills])

    assert leaks == {}
    assert (shares >= FOLLOWS).sum() == 0


@pytest.mark.parametrize("name", ["quickstart", "self-taught"])
def test_no_evaluation_has_its_combinations(rows: list[dict[str, Any]], name: str) -> None:
    experiment = load_experiment(ROOT / "experiments" / f"{name}.yaml")

    tested = evaluated(experiment, CATALOG)

    assert len(tested) >= 16
    assert tested.keys().isdisjoint(row["combination"] for row in rows)


@pytest.mark.parametrize("name", ["quickstart", "self-taught"])
def test_no_evaluation_has_a_combination_that_the_adapter_was_trained_on(name: str) -> None:
    trained = json.loads((ADAPTER / "skillmix.json").read_text(encoding="utf-8"))["combinations"]

    tested = evaluated(load_experiment(ROOT / "experiments" / f"{name}.yaml"), CATALOG)

    assert len(trained) > 1000
    assert tested.keys().isdisjoint(trained)


def test_the_adapter_is_small_and_names_no_folder_of_the_machine_that_made_it() -> None:
    about = json.loads((ADAPTER / "adapter_config.json").read_text(encoding="utf-8"))

    assert about["r"] <= 8
    assert about["base_model_name_or_path"] == "bundled:smollm2-135m"
    assert sum(file.stat().st_size for file in ADAPTER.iterdir()) < 6_000_000
    assert {file.suffix for file in ADAPTER.iterdir()} == {".json", ".safetensors", ".md"}


def test_the_adapter_belongs_to_the_bundled_model() -> None:
    if bundled_models()[0].folder is None:
        pytest.skip("the bundled model is not in the cache: `skillmix models --fetch` brings it")

    checkpoint_of(parse_spec(f"bundled:smollm2-135m+{ADAPTER}")).check_adapters()
