"""The work of an annotate step: store the answers of simulated raters, and tell people what they have left."""

from pathlib import Path
from shlex import join

from skillmix.experiment.steps import AnnotateStep
from skillmix.render import plural
from skillmix.runs.progress.terminal import say
from skillmix.runs.run import Run
from skillmix.validation.spreadsheet import refresh_spreadsheet
from skillmix.validation.task import (
    AnnotationTask,
    NothingToRead,
    RaterProgress,
    answer_by_script,
    step_progress,
    step_task,
)


def missing_answers(step: AnnotateStep, run: Run) -> list[str]:
    """Let simulated raters answer, write the spreadsheets of people, and return what the step waits for, in words."""
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


def _what_to_do(step: AnnotateStep, task: AnnotationTask, one: RaterProgress) -> str:
    """Write the spreadsheet of a person with texts left, and say how the person can answer."""
    run = task.run
    name = run.name if run.path == Path("runs") / run.name else str(run.path)
    command = ["skillmix", "annotate", name, "--step", step.name, "--rater", one.rater]
    file = run.step(step.name) / f"{one.rater}.csv"
    left = f"{one.rater} has {plural(one.left, 'text')} left of {one.texts}"
    if refresh_spreadsheet(task, one.rater, file):
        return f"{left}: {join(command)} serves the page; or fill {file} and import it"
    return f"{left}: {file} has votes that are not stored: {join([*command, '--import', str(file)])}"
