"""Grading by code: alone, beside a model, and refused where it could not decide."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.catalog.files import load_catalog
from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.experiment.experiment import experiment_of
from skillmix.experiment.plan import settings_by_model
from skillmix.grading.answers import names_skill
from skillmix.prompts.prompt_set import load_prompts
from skillmix.runs.calling import passes
from skillmix.scores.scoring import run_scores
from skillmix.scores.status import run_status
from skillmix.scores.text_rows import run_texts
from skillmix.steps.run import run_experiment
from tests.commands.command_line import give_input, run

TEXT = "Every loaf must rest, every crust must crack, every baker must wait for the bread."


def experiment(folder: Path, grader: str, *, catalog: str = "verifiable") -> Path:
    document = {
        "name": "coded",
        "catalog": catalog,
        "students": {"s": {"model": "scripted:student?skill=0.7"}},
        "graders": {"g": {"model": grader}},
        "steps": [
            {
                "name": "eval",
                "stage": "evaluate",
                "students": ["s"],
                "graders": ["g"],
                "settings": ["all"],
                "k": [1, 2],
                "combinations": 5,
                "generations": 2,
            }
        ],
    }
    path = folder / "coded.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@pytest.fixture
def graded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str, str], Any]:
    """Grade a text by code."""

    def grade(skills: str, text: str) -> Any:
        give_input(monkeypatch, text.encode())
        status, out, _ = run(
            capsys, "grade-text", "verifiable", "--skills", skills, "--topic", "Sourdough bread", "--json"
        )
        assert status == 0
        return json.loads(out)

    return grade


def test_rules_grade_without_a_call_and_show_the_words(graded: Callable[[str, str], Any]) -> None:
    result = graded("anaphora", TEXT)

    assert all(result["points"].values())
    assert result["evidence"]["anaphora"] in TEXT
    assert "isocolon" in result["unrequested"]
    assert "anaphora" not in result["unrequested"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("The baker sleeps by day, for the bread is baked at night.", 0),
        ("Every ship must rest, every mast must crack, every sailor must wait for the tide.", 1),
        ("The bread, the bread of, the bread and baker the.", 2),
        (TEXT + " It is fresh.", 3),
    ],
    ids=["skill", "topic", "sense", "length"],
)
def test_each_criterion_can_fail_alone(graded: Callable[[str, str], Any], text: str, place: int) -> None:
    assert list(graded("anaphora", text)["points"].values())[place] == 0.0


def test_a_run_graded_by_code_makes_no_grader_call(in_folder: Path) -> None:
    result = run_experiment(experiment(in_folder, "rules:"))

    assert result.is_complete
    assert result.called == 2 * 5 * 2 * 2
    status = run_status("coded")
    assert (status.done, status.missing) == (result.called, 0)
    scores = run_scores("coded")
    assert {(s.k, s.grader) for s in scores} == {(1, "g"), (2, "g")}
    assert all(s.ungraded == 0 and s.value is not None for s in scores)
    assert run_experiment(in_folder / "coded.yaml").called == 0


def test_exported_texts_say_what_code_found(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_experiment(experiment(in_folder, "rules:"))
    assert main(["export", "coded", "--what", "texts"]) == 0
    rows = [json.loads(line) for line in (in_folder / "runs/coded/texts.jsonl").read_text("utf-8").splitlines()]

    assert all(isinstance(row["unrequested"], list) for row in rows)
    assert all({entry["criterion"] for entry in row["evidence"]} == set(row["skills"]) for row in rows)
    assert len(run_texts("coded", k=2)) == 10


def test_a_mixed_grader_asks_the_model_and_lets_code_decide_skills(in_folder: Path) -> None:
    mixed = run_experiment(experiment(in_folder, "rules:scripted:grader"))

    assert mixed.called > 2 * 5 * 2 * 2
    for text in run_texts("coded"):
        shown = [text.points[skill] for skill in text.skills]
        assert shown == [skill in text.evidence and not names_skill(text.text, skill) for skill in text.skills]


def test_rules_are_refused_where_a_skill_has_no_checker(in_folder: Path) -> None:
    with pytest.raises(UserError, match=r"no checker exists for \d+ skills \('.*' is one\) of catalog 'paper'"):
        run_experiment(experiment(in_folder, "rules:", catalog="paper"))

    assert not (in_folder / "runs").exists()


@pytest.mark.parametrize("model", ["rules:rules:", "rules:nobody:x"])
def test_a_faulty_mixed_grader_is_refused(in_folder: Path, model: str) -> None:
    with pytest.raises(UserError):
        run_experiment(experiment(in_folder, model))


def test_each_local_model_is_open_alone() -> None:
    document = {
        "name": "x",
        "students": {
            "a": {"model": "local:/a"},
            "b": {"model": "bundled:smollm2-135m"},
            "c": {"model": "openai:c@http://h/v1"},
            "warm": {"model": "local:/a", "temperature": 1.0, "prompts": "worked"},
        },
        "graders": {"g": {"model": "local:/g"}, "h": {"model": "openai:h@http://h/v1"}, "r": {"model": "rules:"}},
        "steps": [{"name": "e", "stage": "evaluate", "students": ["a", "b", "c", "warm"], "graders": ["g", "h", "r"]}],
    }
    used = settings_by_model(experiment_of(document, source="x"), ["a", "b", "c", "warm"], ["g", "h", "r"])

    groups = [(group.models, group.students) for group in passes(used)]

    assert groups == [
        (("student:c", "grader:h"), None),
        (("student:c", "grader:h", "student:a", "student:warm"), {"a", "warm"}),
        (("student:c", "grader:h", "student:b"), {"b"}),
        (("grader:g",), None),
    ]


def test_worked_examples_show_only_skills_that_are_never_evaluated() -> None:
    catalog = load_catalog("verifiable")
    partition = catalog.partition()
    evaluated = {*partition.train.skills, *partition.held_out.skills}
    prompts = load_prompts("worked")

    assert len(prompts.examples) >= 3
    for example in prompts.examples:
        assert example.topic not in catalog.topics
        for skill in example.skills:
            assert skill.name not in evaluated
            known = catalog.skill(skill.name)
            assert (known.definition, known.example) == (skill.definition, skill.example)
        for answer in example.answers:
            from skillmix.checkers.passage import passage_of
            from skillmix.checkers.registry import CHECKERS
            from skillmix.checkers.sense import sense_problem

            assert sense_problem(passage_of(answer)) is None
            assert all(CHECKERS[s.name](passage_of(answer)) for s in example.skills)


def test_every_skill_of_the_catalogue_is_checkable(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "verifiable", "--json"]) == 0
    skills = json.loads(capsys.readouterr().out)["skills"]

    assert len(skills) >= 44
    assert all(skill["checkable"] for skill in skills)
    assert len({skill["category"] for skill in skills} - {"reserve"}) >= 8
    assert len(skills) - 5 == sum(skill["category"] != "reserve" for skill in skills)


def test_packages_bring_checkers_by_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    from skillmix.checkers import registry

    def bring(name: str) -> None:
        entry = EntryPoint(name, "skillmix.checkers.skills.repetition:alliteration", registry.ENTRY_POINTS)
        monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
        forget()

    def forget() -> None:
        registry._installed.cache_clear()
        registry._with_own.cache_clear()

    try:
        bring("my skill")
        assert registry.checker_of("My Skill") is not None
        bring("anaphora")
        with pytest.raises(UserError, match="second checker"):
            registry.checker_of("anaphora")
    finally:
        monkeypatch.undo()
        forget()


def test_skills_that_cannot_stand_together_are_not_drawn_together() -> None:
    from dataclasses import replace

    from skillmix.catalog.combinations import Draw, draw_combinations, draw_ladder

    side = load_catalog("verifiable").pool("train")
    pair = frozenset(draw_combinations(Draw(side, "train", 2, 0), 1)[0].skills)
    barred = replace(side, impossible=side.impossible | {pair})

    for draw in (draw_combinations, draw_ladder):
        assert all(not pair <= set(c.skills) for c in draw(Draw(barred, "train", 2, 0), 400))
    free, rest = draw_combinations(Draw(side, "train", 2, 0), 400), draw_combinations(Draw(barred, "train", 2, 0), 390)
    assert rest == [c for c in free if not pair <= set(c.skills)][:390]
