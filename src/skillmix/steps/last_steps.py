"""Steps that read a whole run: people answer (annotate), graders get cards (graders), a report.

A step that people answer waits for nobody; it says what they have not answered yet.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any, Final

from skillmix.calls import PEOPLE, is_human
from skillmix.catalog.catalog import Catalog
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.steps import AnnotateStep, GradersStep, ReportStep
from skillmix.hashing import short_id
from skillmix.prompts.prompt_set import load_prompts
from skillmix.render import plural, wrapped
from skillmix.runs.calling import StepContext
from skillmix.runs.folder_replacement import REPORT, Kind, require_replaceable, write_whole
from skillmix.runs.people import raters_of, require_same_rater, stored_answers
from skillmix.runs.progress import Work, say
from skillmix.runs.run import Run, open_run
from skillmix.runs.students import lineage_of_student, with_trained
from skillmix.runs.verdicts import PERSON, code_version
from skillmix.steps.step_kind import Inputs, RunResult, StepInputs, StepKind, StepT, of_settings
from skillmix.training.log import TRAINING_LOG

if TYPE_CHECKING:
    from skillmix.validation.task import AnnotationTask, RaterProgress

_JSON_FILE: Final = "cards.json"
_TEXT_FILE: Final = "cards.txt"
_CARDS: Final = Kind(
    "a folder of grader cards", lambda folder: (folder / _JSON_FILE).is_file(), (_JSON_FILE, _TEXT_FILE, "*.partial")
)


def of_run(run: Run, *, with_people: bool = True) -> Inputs | None:
    """Everything that scores, cards and reports are read from; None for an import, or if something cannot be read.

    A row of a call is changed only after an attempt, so that the numbers of rows stand for all of them.
    """
    if run.is_imported:
        return None
    try:
        experiment, catalog = with_trained(run.known_experiment, run), run.catalog
        used = {experiment.prompts, *(s.prompts for s in experiment.students.values() if s.prompts)}
        lineages = {name: lineage_of_student(experiment, name) for name in experiment.students}
        with run.read() as journal:
            calls = journal.extent()
    except UserError:
        return None
    made = {step.name: run.finished(step.name) for step in experiment.steps if not step.reads_whole_run}
    logs = [run.step(name) / TRAINING_LOG for name in made]
    people = {rater: len(stored_answers(run.people, rater)) for rater in raters_of(run.people)} if with_people else {}
    return {
        "its experiment": short_id(run.document, [e.model_dump(mode="json") for e in run.earlier]),
        "what its draws skip": short_id({step: sorted(ids) for step, ids in run.excluded.items()}),
        "its calls": calls,
        "the answers of people": people,
        "its data sets and models": short_id({name: record and [record.result] for name, record in made.items()}),
        "the seconds of its steps": run.step_seconds,
        "its training logs": short_id([log.read_text(encoding="utf-8") for log in logs if log.is_file()]),
        "the lineages of its students": {name: one.identity for name, one in lineages.items() if one is not None},
        "its catalog": catalog.content_hash(),
        "the words of the topics": short_id({t: list(map(list, words)) for t, words in catalog.vocabulary.items()}),
        "its prompt sets": {name: load_prompts(name).content_hash() for name in sorted(used)},
        "the code that reads replies and checks texts": [code_version(), catalog.code.hash if catalog.code else None],
    }


class LastKind(StepKind[StepT]):
    """A step without calls, after those that make calls; it runs even if one of those stopped before its end."""

    def work(self, step: StepT, experiment: Experiment, catalog: Catalog, run: Run) -> Work:
        """One unit, as no part of the step is measured."""
        return Work(step.name, step.stage, total=1)


class AnnotateKind(LastKind[AnnotateStep]):
    """Choose texts for people, count their answers, and let simulated raters answer."""

    def check(self, step: AnnotateStep, experiment: Experiment, catalog: Catalog, run: Run) -> None:
        """Refuse a name that means another rater in the run, and a file in place of the step's folder."""
        for rater in step.raters:
            require_same_rater(run.people, rater, step.simulated.get(rater, PERSON))
        folder = run.step(step.name)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file.", hint="The step writes a folder there. Move the file.")

    def inputs(self, step: AnnotateStep, source: StepInputs) -> Inputs | None:
        """The step's settings, and the run without the answers of people."""
        state = of_run(source.run, with_people=False)
        return None if state is None else of_settings(step) | {"the texts of the run": state}

    def made(self, step: AnnotateStep, run: Run, result: RunResult) -> dict[str, Any]:
        """The number of answers of each rater."""
        return {"answers": {rater: len(stored_answers(run.people, rater)) for rater in step.raters}}

    def take(self, step: AnnotateStep, made: Mapping[str, Any], run: Run, result: RunResult) -> str | None:
        """All texts are answered, if no answer is gone."""
        is_same = made["answers"] == self.made(step, run, result)["answers"]
        return f"{plural(len(step.raters), 'rater')} answered all texts" if is_same else None

    def run(self, step: AnnotateStep, context: StepContext, result: RunResult) -> bool:
        """Count the answers, store those of simulated raters, and write spreadsheets for people with texts left."""
        context.progress.go_on(step.name)
        if result.stopped is None:
            missing = _missing_answers(step, context.run)
        else:  # a sample of fewer texts would be another sample
            missing = ["people read when all texts are written"]
        if missing:
            result.waiting[step.name] = missing
        context.progress.end(step.name)
        return True


def _missing_answers(step: AnnotateStep, run: Run) -> list[str]:
    """Let simulated raters answer, write the spreadsheets of people, and return what the step waits for, in words."""
    from skillmix.validation.task import NothingToRead, answer_by_script, step_progress, step_task

    try:
        task = step_task(step, run)
    except NothingToRead as error:
        return [error.message]
    if answer_by_script(step, task):
        task = step_task(step, run)
    progress = step_progress(step, task)
    for one in progress:
        say(f"{step.name}: {one.in_words}")
    return [_what_to_do(step, task, one) for one in progress if one.left]


def _what_to_do(step: AnnotateStep, task: "AnnotationTask", one: "RaterProgress") -> str:
    """Write the spreadsheet of a person with texts left, and say how the person can answer."""
    from skillmix.validation.spreadsheet import refresh_spreadsheet

    run = task.run
    name = run.name if run.path == Path("runs") / run.name else str(run.path)
    command = ["skillmix", "annotate", name, "--step", step.name, "--rater", one.rater]
    file = run.step(step.name) / f"{one.rater}.csv"
    left = f"{one.rater} has {plural(one.left, 'text')} left of {one.texts}"
    if refresh_spreadsheet(task, one.rater, file):
        return f"{left}: {join(command)} serves the page; or fill {file} and import it"
    return f"{left}: {file} has votes that are not stored: {join([*command, '--import', str(file)])}"


class GradersKind(LastKind[GradersStep]):
    """Write the cards of all graders, as JSON and as text, into the folder of the step."""

    def check(self, step: GradersStep, experiment: Experiment, catalog: Catalog, run: Run) -> None:
        """Refuse to write into a folder that holds anything else."""
        require_replaceable(run.step(step.name), _CARDS)

    def inputs(self, step: GradersStep, source: StepInputs) -> Inputs | None:
        """The step's settings, and all of the run that cards are read from."""
        state = of_run(source.run)
        return None if state is None else of_settings(step) | {"the run": state}

    def take(self, step: GradersStep, made: Mapping[str, Any], run: Run, result: RunResult) -> str | None:
        """The cards, if they are there."""
        is_there = all((run.step(step.name) / name).is_file() for name in (_JSON_FILE, _TEXT_FILE))
        return f"the cards in {run.step(step.name)} show this state of the run" if is_there else None

    def run(self, step: GradersStep, context: StepContext, result: RunResult) -> bool:
        """Read the journal and write the cards; without a truth, say what is missing."""
        context.progress.go_on(step.name)
        missing = _write_cards(step, context.run)
        if missing is not None:
            result.waiting[step.name] = [missing]
        context.progress.end(step.name)
        return True


def _write_cards(step: GradersStep, run: Run) -> str | None:
    """Write the cards of a run to the folder of the step; what is missing, in words, if there are none."""
    from skillmix.scores import cards as texts
    from skillmix.scores.cards import run_cards

    try:
        cards = run_cards([run], truth=step.truth, rules=step.rules)
    except UserError as error:  # the truth has not decided about a text yet
        if step.truth == PEOPLE:
            return "nobody has answered a question about a text yet"
        is_person = step.truth and is_human(step.truth)
        return f"{step.truth} has not answered a question about a text yet" if is_person else error.message
    if not cards:
        return "there are no graded texts"
    folder = run.step(step.name)
    folder.mkdir(parents=True, exist_ok=True)
    parts = [texts.card_text(card, wide=True) for card in cards]
    parts += [wrapped(texts.NOTE), wrapped(texts.CORRECTED_NOTE)]
    write_whole(folder / _TEXT_FILE, "\n\n".join(parts) + "\n")
    as_json = json.dumps(texts.cards_as_json(cards), ensure_ascii=False, indent=1)
    write_whole(folder / _JSON_FILE, as_json + "\n")
    for card in cards:
        say(f"{step.name}: {texts.card_title(card)}")
    say(texts.short_table(cards))
    say(f"{step.name}: {folder / _TEXT_FILE} has the cards")
    return None


class ReportKind(LastKind[ReportStep]):
    """Write tables, figures and pages on all earlier steps."""

    def check(self, step: ReportStep, experiment: Experiment, catalog: Catalog, run: Run) -> None:
        """Refuse to replace a folder that is not a report, and find runs that do not exist."""
        require_replaceable(run.path / "report", REPORT)
        for name in step.runs:
            open_run(name)

    def inputs(self, step: ReportStep, source: StepInputs) -> Inputs | None:
        """The step's settings, and all of the runs that the report shows."""
        states = {run.name: of_run(run) for run in (source.run, *map(open_run, step.runs))}
        if None in states.values():
            return None
        return of_settings(step) | {f"the run {name}": state for name, state in states.items()}

    def take(self, step: ReportStep, made: Mapping[str, Any], run: Run, result: RunResult) -> str | None:
        """The page, if it is there."""
        if not (run.path / "report" / "index.html").is_file():
            return None
        result.reports.append(run.path / "report" / "index.html")
        return f"the report in {run.path / 'report'} shows this state of the run"

    def run(self, step: ReportStep, context: StepContext, result: RunResult) -> bool:
        """Read the journal and write the report."""
        from skillmix.report.write import report_step

        context.progress.go_on(step.name)
        result.reports.append(report_step(context.experiment, step, context.run).page)
        context.progress.end(step.name)
        return True
