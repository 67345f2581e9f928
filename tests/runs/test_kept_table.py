"""The grades of a finished run are kept, and parsed again as soon as something that they follow from has changed."""

from pathlib import Path

import pytest
import yaml

from skillmix.commands import main
from skillmix.grading import reader
from skillmix.runs import texts
from skillmix.runs.run import open_run
from skillmix.scores.scoring import run_scores
from tests.runs.databases import execute


@pytest.fixture
def file(in_folder: Path) -> str:
    """A finished run called `kept`, and its experiment file."""
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["all"], "k": [1]}
    document = {
        "name": "kept",
        "students": {"s": {"model": "scripted:student?skill=0.5"}},
        "graders": {"g": {"model": "scripted:grader", "rounds": 1}},
        "steps": [step | {"combinations": 6, "generations": 1}],
    }
    Path("kept.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    assert main(["run", "kept.yaml"]) == 0
    return "kept.yaml"


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The replies that are parsed from now on."""
    parsed: list[str] = []

    def counted(rubric: object, reply: str, *, text: str | None = None) -> object:
        parsed.append(reply)
        return reader.read_grades(rubric, reply, text=text)  # type: ignore[arg-type]

    monkeypatch.setattr(texts, "read_grades", counted)
    return parsed


def test_a_finished_run_shows_its_scores_without_parsing_a_reply(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, parsed = run_scores("kept"), reads(monkeypatch)

    assert main(["run", file]) == 0
    assert run_scores("kept") == before
    assert parsed == []
    execute("kept", "DELETE FROM graded")
    assert run_scores("kept") == before
    assert len(parsed) == 6


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM call WHERE id = (SELECT max(id) FROM call)",
        "INSERT INTO attempt (call, outcome, reason, seconds, at) VALUES ('x', 'reply', '', 0, '')",
        "UPDATE experiment SET yaml = yaml || '\n# changed'",
    ],
)
def test_a_change_of_what_grades_follow_from_has_them_parsed_again(
    file: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = reads(monkeypatch)
    execute("kept", change)

    run_scores("kept")

    assert len(parsed) >= 5


def test_other_rules_are_not_answered_from_the_kept_grades(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = reads(monkeypatch)

    run_scores("kept", rules="paper")

    assert len(parsed) == 6
    with open_run("kept").read() as journal:
        assert [name for (name,) in journal.rows("SELECT name FROM graded")] == [
            texts.table_name(open_run("kept").rules())
        ]
