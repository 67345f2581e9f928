"""A planned comparison from the file to the terminal's last lines and the first screen of the report."""

import html
import re
from pathlib import Path

import pytest
import yaml

from skillmix.commands import main
from skillmix.grading.points import FULL_MARKS, text_score
from skillmix.runs.run import open_run
from skillmix.runs.texts import run_records
from skillmix.scores.scoring import scored_cells
from skillmix.scores.sentences import scored_run


def planned(folder: Path, *, weak: float, strong: float) -> Path:
    plan = {"student": "strong", "against": "weak", "setting": "all", "k": 2, "claim": "skill helps"}
    evaluation = {"settings": ["all"], "k": [2], "combinations": 40, "generations": 2}
    document = {
        "name": "planned",
        "students": {
            "weak": {"model": f"scripted:student?skill={weak}"},
            "strong": {"model": f"scripted:student?skill={strong}"},
        },
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [
            {"name": "eval", "stage": "evaluate", "students": ["weak", "strong"], "graders": ["judge"], **evaluation},
            {"name": "report", "stage": "report", "contrasts": [plan]},
        ],
    }
    file = folder / "planned.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return file


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_a_supported_comparison_ends_with_a_text_of_each_student(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(planned(in_folder, weak=0.1, strong=0.97))]) == 0
    printed = capsys.readouterr()

    run = open_run("planned")
    sentence, evidence, about, first, second = scored_run(run).result
    page = html.unescape((run.path / "report/index.html").read_text(encoding="utf-8"))
    assert sentence.startswith("Supported: skill helps: with 2 skills in one text, strong earns full marks in ")
    assert "one partition, so the verdict holds for it alone" in evidence
    for line in (sentence, evidence, about, first, second):
        assert flat(line) in flat(printed.out)
    for line in (about, *(re.sub(r"^\w+: “(.*)” \(.*\)$", r"\1", line) for line in (first, second))):
        assert flat(line) in flat(page)
    assert "skillmix compare planned weak strong --texts 2" in printed.err

    cells = {key.student: cell for key, cell in scored_cells(run).items()}
    tries = {
        name: {c.id: text_score(p[0], FULL_MARKS) for c, p in zip(cell.combinations, cell.points, strict=True) if p[0]}
        for name, cell in cells.items()
    }
    drawn = next(c for c in cells["strong"].combinations if (tries["strong"][c.id], tries["weak"][c.id]) == (1.0, 0.0))
    texts = [t for t in run_records(run).texts if t.combination.id == drawn.id]
    own = {t.student: t.answer.text for t in texts if t.generation == min(t.generation for t in texts)}
    assert about.endswith(f"{drawn.skills[0]} and {drawn.skills[1]}, on {drawn.topic}.")
    assert first == f"strong: “{own['strong']}” (full marks)"
    assert second.startswith(f"weak: “{own['weak']}” (misses ")


def test_without_a_difference_no_text_is_chosen_to_show_one(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(planned(in_folder, weak=0.6, strong=0.6))]) == 0

    result = scored_run(open_run("planned")).result
    assert len(result) == 2
    assert result[0].startswith("Too little data to say whether skill helps")
    assert "An example" not in capsys.readouterr().out
