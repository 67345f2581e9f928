"""Checks before a run is changed: a run that is refused stays as it was."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import combination_of
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.plan import PlannedCell, cells_of
from skillmix.experiment.sections import Step
from skillmix.prompts.files import load_prompts
from skillmix.runs.calling import StepContext
from skillmix.runs.conversations import Conversations
from skillmix.runs.run import RunFolder
from skillmix.runs.students import require_trained, with_trained
from skillmix.steps.kinds import kind_of


def check_plan(experiment: Experiment, catalog: Catalog, steps: Sequence[Step], run: RunFolder) -> None:
    """Find the faults of an experiment that show without its journal and without a call.

    Prompts and draws are checked for all steps, because every reader of the run needs them; files and folders are
    checked for the steps that will run.
    """
    _check_prompts(experiment, catalog)
    cells_of(experiment, catalog)
    for step in steps:
        kind_of(step).check(step, experiment, catalog, run)


def _check_prompts(experiment: Experiment, catalog: Catalog) -> None:
    own = [settings.prompts for settings in experiment.students.values() if settings.prompts]
    own += [name for step in experiment.steps for name in step.prompt_sets]
    for name in sorted({experiment.prompts, *own}):
        load_prompts(name)
    any_combination = combination_of([catalog.skills[0].name], catalog.topics[0])
    prompts = load_prompts(experiment.prompts)
    for settings in experiment.graders.values():
        if settings.asked is not None:
            prompts.grader_prompt(catalog, any_combination, answer="", variant=settings.prompts)


def check_journal(context: StepContext, steps: Sequence[Step]) -> None:
    """Find contradictions to the journal: another model, prompt or decoding under a name that the journal has.

    The first conversation of every cell is followed as far as the journal has it.
    """
    now = replace(context, experiment=with_trained(context.experiment, context.run))
    for step in now.experiment.steps:
        for conversations, cell in kind_of(step).first_cells(step, now):
            if cell.student in now.experiment.students and cell.combinations:
                _follow_in_journal(conversations, cell, now)
    _check_students(now, steps)


def _check_students(context: StepContext, steps: Sequence[Step]) -> None:
    """Find students without a model, unless one of these steps trains it, and students that a step must not ask."""
    will_be_trained: set[str] = set()
    for step in steps:
        for name in step.student_names:
            if name not in will_be_trained:
                require_trained(context.experiment, name)
        kind_of(step).check_students(step, context)
        if step.trains_model:
            will_be_trained.add(step.name)


def _follow_in_journal(conversations: Conversations, cell: PlannedCell, context: StepContext) -> None:
    """Look up the first conversation of a cell; a request that differs from the stored one is an error."""
    waiting = deque([conversations.first(cell.student, cell.combinations[0], cell.numbers[0])])
    while waiting:
        request = waiting.popleft().request
        outcome = context.journal.find(request)
        if outcome is not None:
            waiting.extend(conversations.follow(request, outcome))
