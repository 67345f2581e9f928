"""A result file holds the findings and the data of a run, and the headline shows them."""

from pathlib import Path

from tools.headline import headline_figure, headline_table, valid_table
from tools.readme import facts
from tools.result import result_of

from skillmix.scores.cells import CellScore
from tests.report.worlds import make_world

RATES = {"base": "skill=0.2&marker=0.02", "m12": "skill=0.95"}


def test_the_headline_says_what_its_numbers_are(in_folder: Path) -> None:
    make_world(in_folder, "world", RATES, settings=["held-out"], k=[2, 3], combinations=20, generations=2)

    document = result_of("world", words={"about": "A world.", "command": "skillmix run world.yaml"})

    assert list(document) == ["about", "command", "graders", "scores", "findings", "data"]
    assert document["data"] == {"m12": {"1": 400, "2": 600}}
    scores = [CellScore(**row) for row in document["scores"]]
    lines = list(facts(document, scores))
    assert lines[0] == "Graded by judge (`scripted:grader`)."
    assert lines[1].startswith("Format failures") and "of 40; m12 0 of 40." in lines[1]
    assert lines[2] == "Texts of the training data: m12 400 with k = 1, 600 with k = 2."
    verdicts = [finding["verdict"] for finding in document["findings"]]
    claims, last = lines[3:-1], lines[-1]
    assert len(claims) == len(verdicts) > 0
    assert all(f"**{verdict}**" in line for verdict, line in zip(verdicts, claims, strict=True))
    assert last == "The result file has the numbers behind each verdict."
    assert "skill cannot be compared: base has " in document["findings"][0]["sentence"]
    assert " of 40 |" in (valid_table(scores) or "")
    assert sum(line.get_markerfacecolor() == "white" for line in headline_figure(scores).axes[0].lines) == 2


def test_graders_that_chose_the_training_texts_are_named(in_folder: Path) -> None:
    graders = {"rules": {"model": "rules:", "chose_texts": True}}
    scores: list[CellScore] = []

    assert next(facts({"graders": graders}, scores)) == (
        "Graded by code (`rules:`), the same that chose the training texts."
    )
    assert valid_table(scores) is None
    assert headline_table(scores)
