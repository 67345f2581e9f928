"""Runs of three kinds with their reports: scripted with a made-up history, really trained, and graded by code."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import yaml
from matplotlib.figure import Figure

from skillmix.calls import Subject
from skillmix.catalog.files import load_catalog
from skillmix.checkers.judge import Judge
from skillmix.checkers.sense import prompt_texts
from skillmix.commands import main
from skillmix.grading.answers import count_sentences
from skillmix.report import contents
from skillmix.report.records import ReportOptions
from skillmix.report.write import WrittenReport, report
from tests.models.reading_model import ReadingModel
from tests.report.expected_scores import Case
from tests.report.second_run import SecondRun
from tests.report.second_way import LIMIT, Points


@dataclass
class Reported:
    """A report, the figures as they were drawn, and how to work out both again."""

    made: WrittenReport
    figures: dict[str, Figure]
    case: Case

    @property
    def folder(self) -> Path:
        return self.made.page.parent

    @property
    def tables(self) -> list[str]:
        return sorted(file.stem for file in (self.folder / "tables").glob("*.csv"))


def reported(case: Case, options: ReportOptions) -> Reported:
    """Make the report of a case, and keep the drawings."""
    drawn: dict[str, Figure] = {}
    drawings = contents.drawings

    def watched(of: Any) -> Any:
        for drawing, figure in drawings(of):
            if figure is not None:
                drawn[drawing.name] = figure
            yield drawing, figure

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "drawings", watched)
        made = report([str(case.run.path)], output=case.run.path / "report", options=options)
    return Reported(made, drawn, case)


def run_document(folder: Path, document: dict[str, Any]) -> Path:
    """Run an experiment; its run folder."""
    path = folder / f"{document['name']}.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    assert main(["run", str(path)]) == 0
    return folder / "runs" / str(document["name"])


def trained_experiment(model: Path) -> dict[str, Any]:
    """A data set from a scripted writer, a few steps on a small model, and the same questions before and after."""
    evaluate = {"stage": "evaluate", "students": ["base", "step:m12"], "graders": ["judge"]}
    train = {"stage": "train", "base": "base", "data": ["d12"], "steps": 4, "batch": 2, "validation_share": 0.3}
    return {
        "name": "tune",
        "catalog": "paper",
        "students": {
            "base": {"model": f"local:{model}", "max_tokens": 8},
            "writer": {"model": "scripted:student?skill=0.95"},
        },
        "graders": {
            "clean": {"model": "scripted:grader", "rounds": 1},
            "judge": {"model": "scripted:grader?noise=0.4", "rounds": 1},
        },
        "steps": [
            {"name": "d12", "stage": "dataset", "writer": "writer", "graders": ["clean"], "k": [1, 2], "target": 6},
            {"name": "m12", **train, "learning_rate": 1e-3, "warmup_steps": 0, "validate_every": 2},
            {
                "name": "eval",
                **evaluate,
                "settings": ["train", "held-out"],
                "k": [1, 2, 3],
                "combinations": 4,
                "generations": 1,
            },
        ],
    }


class SkilledWriter(ReadingModel):
    """Writes for each skill a sentence that shows it, one that just misses it, or its example with a word changed."""

    sentences: ClassVar[dict[str, dict[str, list[str]]]] = yaml.safe_load(
        (Path(__file__).parents[1] / "checkers" / "blind.yaml").read_text(encoding="utf-8")
    )

    @staticmethod
    def changed_example(skill: str) -> str:
        first, _, *others = load_catalog("verifiable").skill(skill).example.split()
        return " ".join([first, "zebras", *others])

    def _write(self, task: Subject, chance: Any) -> str:
        names = sorted((name for name in self.sentences if name in task.combination.skills), key=len)
        which = [("shown" if chance.falls(name, self._rates.skill) else "not_shown", name) for name in names]
        text = " ".join(
            self.changed_example(name) if chance.falls(f"copy {name}", 0.2) else self.sentences[name][kind][0]
            for kind, name in which
        )
        # The two counters of sentences differ on the first of these.
        start = "and e.g. Apples, " if chance.falls("abbreviation", 0.5) else "and apples, "
        text = f"{task.combination.topic} {start}{text[0].lower()}{text[1:]}"
        return f"{'Answer: ' if chance.falls('marker', self._rates.marker) else ''}{text}\n\nExplanation: so it is."


def code_case(folder: Path, others: dict[str, dict[str, Any]] | None = None) -> Case:
    """Two students whose texts code grades; verdicts are tested elsewhere, so the judge itself is asked again."""
    graders = {"rules": {"model": "rules:"}, **(others or {})}
    step = {"name": "e", "stage": "evaluate", "students": ["s", "t"], "graders": list(graders), "settings": ["all"]}
    document = {
        "name": "code",
        "catalog": "verifiable",
        "students": {
            "s": {"model": "scripted:student?skill=0.3"},
            "t": {"model": "scripted:student?skill=0.9&marker=0.8"},
        },
        "graders": graders,
        "steps": [{**step, "k": [1, 2, 3], "combinations": 6, "generations": 2}],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skillmix.runs.calling.open_model", lambda spec, _: SkilledWriter(spec))
        run = run_document(folder, document)
    catalog = load_catalog("verifiable")
    judge = Judge(catalog.vocabulary, prompt_texts(catalog.skills))

    def second(counter: Literal["robust", "original"]) -> SecondRun:
        def points(text: Any) -> Points:
            if text.form in ("refused", "empty"):
                return [False] * (text.k + 3)
            verdict = judge.judge(text.text, skills=text.skills, topic=text.topic)
            shown: Points = [verdict.evidence[skill] is not None for skill in text.skills]
            is_short = count_sentences(text.text, counter) <= LIMIT[text.k]
            return [*shown, verdict.topic is not None, verdict.nonsense is None, is_short]

        return SecondRun(run, {"rules": points}, sentences=lambda text: count_sentences(text, counter))

    def shown(text: Any) -> tuple[list[str], list[str]]:
        verdict = judge.judge(text.text, skills=text.skills, topic=text.topic)
        return [s for s in text.skills if verdict.evidence[s] is not None], list(verdict.unrequested)

    def woven(text: Any) -> bool:
        return judge.judge(text.text, skills=text.skills, topic=text.topic).is_woven(text.skills) is True

    def masked(text: Any) -> dict[str, str]:
        verdict = judge.judge(text.text, skills=text.skills, topic=text.topic)
        forms = verdict.topic_words.forms
        return {
            skill: re.sub(
                r"[\w'-]+",
                lambda w: "_" if w[0].removesuffix("'s") in forms else w[0],
                str(verdict.quote(span)).lower(),
            )
            for skill, span in verdict.evidence.items()
        }

    by_rules = {"default": second("robust"), "paper": second("original")}
    return Case(by_rules["default"], by_rules=by_rules, shown_by_code=shown, woven_by_code=woven, masked_by_code=masked)
