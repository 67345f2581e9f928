"""A run is opened once; what it holds is read once, and an imported run has the same interface."""

import json
from pathlib import Path

import pytest
import yaml

from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.exchange.import_texts import import_texts
from skillmix.experiment.experiment import Experiment, experiment_of
from skillmix.runs.run import Run, new_run, open_run
from skillmix.runs.verdicts import RunGrader
from tests.runs.databases import rewrite_experiment


def experiment(**more: object) -> Experiment:
    document = {
        "name": "own",
        "catalog": "verifiable",
        "students": {"s": {"model": "scripted:student"}},
        "graders": {
            "judge": {"model": "scripted:grader"},
            "code": {"model": "rules:"},
            "mixed": {"model": "rules:scripted:grader", "rounds": 1},
        },
        "steps": [],
        **more,
    }
    return experiment_of(document, source="test")


def own_run(**more: object) -> Run:
    run = new_run("own")
    with run.write():
        run.continue_with(experiment(**more), load_catalog("verifiable"))
    return run


def imported_run(folder: Path) -> Run:
    line = {"skills": ["metaphor"], "topic": "Sewing", "student": "ann", "text": "A loom is a river."}
    (folder / "texts.jsonl").write_text(json.dumps(line | {"gradings": {"gpt": ["no"]}}), encoding="utf-8")
    import_texts(folder / "texts.jsonl", "imported", catalog="paper")
    return open_run("imported")


def test_a_run_knows_which_of_its_graders_have_code(in_folder: Path) -> None:
    own_run()

    run = open_run("own")

    assert run.graders == {
        "judge": RunGrader("judge", "scripted:grader", votes=3),
        "code": RunGrader("code", "rules:", votes=1, has_code=True, asks_model=False),
        "mixed": RunGrader("mixed", "rules:scripted:grader", votes=1, has_code=True),
    }
    assert [grader.is_code_alone for grader in run.graders.values()] == [False, True, False]
    assert run.code is not None


def test_an_imported_run_has_an_experiment_without_steps(in_folder: Path) -> None:
    run = imported_run(in_folder)

    assert run.is_imported
    assert (run.experiment.steps, run.experiment.students, run.experiment.graders) == ([], {}, {})
    assert run.graders == {"gpt": RunGrader("gpt", "imported")}
    assert (run.cells, run.code, run.turns, run.seed, run.makes_data) == ([], None, None, None, False)
    assert run.rules().name == "default"
    assert run.catalog.name == "paper"


def test_a_run_without_a_catalogue_says_so(in_folder: Path) -> None:
    run = new_run("bare")
    with run.write():
        run.begin_import({"name": "bare"})

    assert run.unchanged_catalog is None
    with pytest.raises(UserError, match="does not record its catalog"):
        run.catalog  # noqa: B018


def test_the_catalogue_of_a_run_is_unchanged_only_if_its_hash_is(in_folder: Path) -> None:
    run = own_run()
    assert run.unchanged_catalog is not None

    changed = rewrite_experiment("own", yaml.safe_load(run.yaml) | {"catalog_hash": "another"})

    assert changed.unchanged_catalog is None


def test_a_continued_run_holds_the_new_experiment_and_a_refused_one_the_former(in_folder: Path) -> None:
    run = own_run()
    catalog = load_catalog("verifiable")

    with (
        run.write(),
        pytest.raises(UserError, match="refused"),
        run.continued(experiment(rules="paper"), catalog, has_made=lambda: False),
    ):
        assert run.rules().name == open_run("own").rules().name == "paper"
        raise UserError("refused")

    assert run.rules().name == open_run("own").rules().name == "default"


def test_the_rules_of_a_run_have_its_missing_marker(in_folder: Path) -> None:
    run = own_run(answer={"missing_marker": "zero"})

    assert run.rules("paper").missing_marker == "zero"
    with pytest.raises(UserError, match="no rules 'lenient'"):
        run.rules("lenient")


def test_a_value_from_the_journal_is_kept_until_the_run_changes(in_folder: Path) -> None:
    run = own_run()
    numbers = iter(range(9))

    def number() -> int:
        return run.remember("number", lambda: next(numbers))

    assert (number(), number()) == (0, 0)
    with run.write():
        assert (number(), number()) == (1, 1)
        run.exclude("eval", frozenset({"c"}))
        assert (number(), number()) == (2, 2)
    assert number() == 2
