"""The page about Python: every line runs, every public name is on it, and importing stays light."""

import asyncio
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pandas
import pytest
import yaml

import skillmix

PAGE = (Path(__file__).parents[1] / "docs/python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory, small_model: Path) -> dict[str, Any]:
    """The variables of the page after all its blocks have run, in order."""
    variables: dict[str, Any] = {"BASE": f"local:{small_model}"}
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("python")
        patch.chdir(folder)
        for block in BLOCKS:
            exec(block, variables)
        variables["frames"] = {what: variables["run"].to_pandas(what) for what in ("scores", "texts", "votes")}
        variables["html"], variables["markdown"] = variables["run"]._repr_html_(), variables["run"]._repr_markdown_()
        variables["table"] = str(variables["run"])
    return variables | {"folder": folder}


def test_the_page_runs_from_top_to_bottom(names: dict[str, Any]) -> None:
    assert len(names["combinations"]) == 5
    assert names["reading"].points == (1.0,) * 5
    assert names["verdict"].reasons
    assert (names["folder"] / names["page"]).is_file()
    assert names["dataset"].texts > 0
    assert (names["folder"] / names["checkpoint"].folder / "adapter_model.safetensors").is_file()
    assert names["checkpoint"].spec == f"local:{names['checkpoint'].folder}"


def test_a_run_is_a_table_in_a_notebook_and_short_in_a_list(names: dict[str, Any]) -> None:
    run = names["run"]

    assert repr(run) == "Run('runs/two-students')"
    assert names["markdown"] == names["table"] and names["table"].startswith("| student")
    assert names["html"].startswith("<table>") and names["html"].count("<tr>") == 1 + 2 * 2


def test_data_frames_hold_the_records(names: dict[str, Any]) -> None:
    run, frames = names["run"], names["frames"]

    assert isinstance(frames["scores"], pandas.DataFrame)
    assert list(frames["scores"].value) == [score.value for score in run.scores]
    assert len(frames["texts"]) == 2 * 2 * 10 * 3 + 4
    assert set(frames["votes"]["grader"]) == {"judge", "human:ann"}
    with pytest.raises(skillmix.UserError, match="no table 'calls'"):
        run.to_pandas("calls")


def test_every_public_name_is_on_the_page_and_loads() -> None:
    for name in skillmix.__all__:
        assert getattr(skillmix, name) is not None
        assert name.startswith("__") or re.search(rf"\b{name}\b", PAGE), f"docs/python.md does not mention {name}"
    assert dir(skillmix) == sorted(skillmix.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = skillmix.nonsense


def test_public_functions_have_docstrings_and_types() -> None:
    for name in skillmix.__all__:
        value = getattr(skillmix, name)
        if callable(value):
            assert value.__doc__
        if hasattr(value, "__annotations__") and not isinstance(value, type):
            assert "return" in value.__annotations__, name


def test_the_import_is_light() -> None:
    program = (
        "import sys, skillmix; heavy = 'torch transformers numpy pydantic yaml aiohttp matplotlib jinja2'.split()\n"
        "print([name for name in heavy if name in sys.modules])"
    )

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"


def test_it_works_inside_a_running_event_loop(in_folder: Path) -> None:
    async def notebook() -> skillmix.Run:
        return skillmix.evaluate(
            name="note",
            student="scripted:student?skill=0.9",
            grader={"model": "scripted:grader"},
            k=[1, 2],
            settings=["held-out"],
            combinations=5,
        )

    run = asyncio.run(notebook())

    assert {(score.setting, score.k) for score in run.scores} == {("held-out", 1), ("held-out", 2)}
    assert run.name == "note" and run.is_complete


def test_scores_of_one_text_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    catalog = skillmix.load_catalog("verifiable")
    combination = skillmix.draw(catalog, k=1, n=1)[0]

    verdict = skillmix.check("Nothing here.", combination, catalog)

    assert skillmix.score("Nothing here.", combination, [verdict])["full_marks"] == 0.0
    assert skillmix.score("Nothing here.", combination, [])["full_marks"] is None


def evaluated(name: str, **changes: Any) -> skillmix.Run:
    student = "scripted:student?skill=0.9"
    wanted: dict[str, Any] = {"student": student, "k": [1], "settings": ["all"], "combinations": 2, "generations": 1}
    return skillmix.evaluate(name=name, grader="scripted:grader", rounds=1, **wanted | changes)


def test_an_evaluation_does_not_join_the_run_of_another_experiment(in_folder: Path) -> None:
    step = {"name": "e", "stage": "evaluate", "students": ["a"], "graders": ["g"], "settings": ["all"], "k": [1]}
    models = {"students": {"a": {"model": "scripted:student"}}, "graders": {"g": {"model": "scripted:grader"}}}
    skillmix.run({"name": "first", **models, "steps": [{**step, "combinations": 2, "generations": 1}]})
    before = skillmix.open_run("first").scores

    with pytest.raises(skillmix.UserError, match="belongs to another experiment, with a, g") as caught:
        evaluated("first")

    assert "Choose another name" in (caught.value.hint or "")
    assert skillmix.open_run("first").scores == before


def test_an_evaluation_continues_its_own_run_after_an_experiment_added_a_grader(in_folder: Path) -> None:
    evaluated("own")
    document = yaml.safe_load((in_folder / "runs/own/experiment.yaml").read_text(encoding="utf-8"))
    wanted = {name: document[name] for name in ("name", "students", "graders", "steps")}
    wanted["graders"]["second"] = {"model": "scripted:grader?noise=0.1", "rounds": 1}
    wanted["steps"][0]["graders"] = ["grader", "second"]
    skillmix.run(wanted)

    assert {score.grader for score in evaluated("own", k=[1, 2]).scores} >= {"grader"}


def test_an_evaluation_continues_its_own_run_and_refuses_another_model(in_folder: Path) -> None:
    evaluated("own")
    assert {score.k for score in evaluated("own", k=[1, 2]).scores} == {1, 2}

    with pytest.raises(skillmix.UserError) as caught:
        evaluated("own", student="scripted:student?skill=0.1")

    change = "model (scripted:student?skill=0.9 → scripted:student?skill=0.1)"
    assert f"calls of the student 'student' with another {change}" in caught.value.message


def test_a_traceback_shows_the_hint_of_an_error() -> None:
    error = skillmix.UserError("It is wrong.", hint="Mend it.")

    assert "hint: Mend it." in "".join(traceback.format_exception(error))
    assert pickle.loads(pickle.dumps(error)).hint == "Mend it."


def test_bad_arguments_are_errors_with_hints(in_folder: Path) -> None:
    catalog = skillmix.load_catalog("paper")
    combination = skillmix.draw(catalog, k=1, n=1)[0]

    for call in (
        lambda: skillmix.draw(catalog, k=200, n=1),
        lambda: skillmix.check("A text.", combination, catalog),
        lambda: skillmix.open_run("nowhere"),
        lambda: skillmix.run({"name": "x", "steps": []}, set={"seed": 1}),
        lambda: skillmix.build_dataset(["nowhere"], recipe="D(1)", k=[1]),
        lambda: skillmix.evaluate(name="x", student="nonsense:model", grader="rules:"),
    ):
        with pytest.raises(skillmix.UserError) as caught:
            call()
        assert caught.value.hint
