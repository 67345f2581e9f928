"""Steps whose calls are known in advance: evaluate, generate and grade share what is here."""

import asyncio
from collections.abc import Iterable, Sequence

from skillmix.catalog.combinations import Combination
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.plan import PlannedCell, step_cells
from skillmix.runs.calling import StepContext, calls_of, conversations_of, make_calls
from skillmix.runs.conversations import Conversations
from skillmix.runs.planned_work import calls_a_conversation
from skillmix.runs.scheduler import CallCounts
from skillmix.steps.estimates import (
    CallEstimate,
    EstimateBasis,
    EstimatedStep,
    Role,
    grader_estimates,
    student_estimate,
)
from skillmix.steps.step_kind import RunResult, StepKind, StepT


class CallKind(StepKind[StepT]):
    """A kind of step that fills cells of the score table with calls."""

    def first_cells(self, step: StepT, context: StepContext) -> Iterable[tuple[Conversations, PlannedCell]]:
        """Every cell of the step."""
        conversations = conversations_of(calls_of(step), context)
        return ((conversations, cell) for cell in step_cells(step, context.experiment, context.catalog))

    def estimates(self, step: StepT, basis: EstimateBasis) -> list[CallEstimate]:
        """One estimate for each student and each grader; settings share the conversations they have in common."""
        by_student: dict[str, dict[str, tuple[Combination, int]]] = {}
        for cell in step_cells(step, basis.experiment, basis.catalog):
            for combination in cell.combinations:
                by_student.setdefault(cell.student, {})[combination.id] = combination, cell.generations
        students = [
            student_estimate(EstimatedStep(step.name, "student"), student, list(by_id.values()), basis)
            for student, by_id in by_student.items()
            if student in step.student_names
        ]
        graded = [counted for by_id in by_student.values() for counted in by_id.values()]
        label = EstimatedStep(step.name, self.grader_role(step, basis.experiment))
        return students + grader_estimates(label, step.grader_names, graded, basis)

    def grader_role(self, step: StepT, experiment: Experiment) -> Role:
        """What the graders of the step do, in a word."""
        return "grader"

    def run(self, step: StepT, context: StepContext, result: RunResult) -> bool:
        """Make the calls that the journal does not have yet."""
        counts = result.counts[step.name] = CallCounts()
        asyncio.run(self.make_calls(step, context, counts))
        context.progress.end(step.name, counts_line(step.name, counts))
        return counts.stopped is None

    async def make_calls(self, step: StepT, context: StepContext, counts: CallCounts) -> None:
        """Make the calls of all cells at once."""
        cells = list(step_cells(step, context.experiment, context.catalog))
        expect_calls(step, cells, context)
        await make_calls(calls_of(step), cells, context, counts)


def expect_calls(step: StepT, cells: Sequence[PlannedCell], context: StepContext) -> None:
    """Give the progress bar the number of calls that the cells need."""
    conversations = {(c.student, combination.id, g) for c in cells for combination in c.combinations for g in c.numbers}
    calls = len(conversations) * calls_a_conversation(context.experiment, step.grader_names)
    context.progress.expect(step.name, calls)


def counts_line(step: str, counts: CallCounts) -> str:
    """The line that the terminal shows after a step of calls."""
    return (
        f"{step}: {counts.called} calls made, {counts.found} found, {counts.retried} tried again, "
        f"{counts.tokens} tokens, {counts.cost_usd:.2f} US dollars"
    )
