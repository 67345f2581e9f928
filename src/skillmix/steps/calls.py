"""Steps that make calls: students write texts (generate), graders grade them (grade), or both (evaluate)."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.datasets.leakage import refuse_other_partitions, trained_combinations, usable_around
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.plan import PlannedCell, step_cells
from skillmix.experiment.step_base import Step
from skillmix.experiment.steps import EvaluateStep, GenerateStep, GradeStep
from skillmix.hashing import short_id
from skillmix.render import are, plural
from skillmix.runs.calling import StepContext, calls_of, conversations_of, make_calls
from skillmix.runs.conversations import Conversations
from skillmix.runs.planned_work import PlannedCalls
from skillmix.runs.progress import say
from skillmix.runs.run import Run
from skillmix.runs.scheduler import CallCounts
from skillmix.scores.scoring import run_scores, skipped_cells
from skillmix.steps.estimates import (
    CallEstimate,
    EstimateBasis,
    EstimatedStep,
    Role,
    grader_estimates,
    student_estimate,
)
from skillmix.steps.step_kind import (
    Inputs,
    RunResult,
    StepInputs,
    StepKind,
    StepT,
    of_calls,
    of_draws,
    of_settings,
)


class CallKind(StepKind[StepT]):
    """A kind of step that fills cells of the score table with calls."""

    def first_cells(self, step: StepT, context: StepContext) -> Iterable[tuple[Conversations, PlannedCell]]:
        """Every cell of the step."""
        conversations = conversations_of(calls_of(step), context)
        return ((conversations, cell) for cell in drawn_cells(step, context))

    def estimates(self, step: StepT, basis: EstimateBasis) -> list[CallEstimate]:
        """One estimate for each student and each grader, of the calls that no earlier step makes."""
        experiment, steps = basis.experiment, basis.experiment.steps
        place = steps.index(step)  # type: ignore[arg-type]
        cells = [list(step_cells(one, experiment, basis.catalog)) for one in steps[: place + 1]]
        before, now = (PlannedCalls(chain(*some), experiment) for some in (cells[:place], cells))

        def new(**whose: str) -> list[tuple[Combination, int]]:
            return list((now.conversations(**whose) - before.conversations(**whose)).items())

        students = [
            student_estimate(EstimatedStep(step.name, "student"), name, new(student=name), basis)
            for name in dict.fromkeys(step.student_names)
        ]
        label = EstimatedStep(step.name, self.grader_role(step, experiment))
        graded = (grader_estimates(label, [name], new(grader=name), basis) for name in step.grader_names)
        return students + list(chain(*graded))

    def grader_role(self, step: StepT, experiment: Experiment) -> Role:
        """What the graders of the step do, in a word."""
        return "grader"

    def run(self, step: StepT, context: StepContext, result: RunResult) -> bool:
        """Make the calls that the journal does not have yet."""
        counts = result.counts[step.name] = CallCounts()
        asyncio.run(self.make_calls(step, context, counts))
        note = context.progress.end if counts.stopped is None else context.progress.leave
        note(step.name, counts_line(step.name, counts))
        return counts.stopped is None

    def inputs(self, step: StepT, source: StepInputs) -> Inputs | None:
        """The step's settings, its models, what its draws skip, and the settings of steps whose texts it grades."""
        steps = source.experiment.steps
        cells = list(step.undrawn_cells(steps))
        students = [cell.student for cell in cells]
        found = of_settings(step) | of_draws(source) | of_calls(students, step.grader_names, source)
        found["what its draws skip"] = _skipped_hash({cell.source for cell in cells}, source.run)
        graded = {one.step for one in step.inputs}
        found |= {f"the step {s.name}": s.model_dump(mode="json") for s in steps if s.name in graded}
        if getattr(step, "sets", "all") == "reserved":
            found["the share of reserved skill sets"] = source.experiment.reserved
        return found

    def made(self, step: StepT, run: Run, result: RunResult) -> dict[str, Any]:
        """The number of calls, and a hash of the combinations."""
        counts = result.counts[step.name]
        return {"calls": counts.called + counts.found, "combinations": _combinations_hash(step, run)}

    def take(self, step: StepT, made: Mapping[str, Any], run: Run, result: RunResult) -> str | None:
        """Every call was found, if the draws still give the recorded combinations."""
        if made["combinations"] != _combinations_hash(step, run):
            return None
        result.counts[step.name] = CallCounts(found=made["calls"])
        return f"{plural(made['calls'], 'call')} found"

    async def make_calls(self, step: StepT, context: StepContext, counts: CallCounts) -> None:
        """Make the calls of all cells at once."""
        cells = list(drawn_cells(step, context))
        context.progress.expect(step.name, PlannedCalls(cells, context.experiment).total)
        await make_calls(calls_of(step), cells, context, counts)


def _combinations_hash(step: Step, run: Run) -> str:
    cells = step_cells(step, run.experiment, run.catalog, run.excluded)
    members = sorted({(cell.student, cell.label, c.id) for cell in cells for c in cell.combinations})
    return short_id("members", members)


def _skipped_hash(steps: Iterable[str], run: Run) -> str:
    by_step = run.excluded
    return short_id("skipped", [[name, sorted(by_step[name])] for name in sorted(steps) if by_step.get(name)])


def drawn_cells(step: StepT, context: StepContext) -> Iterator[PlannedCell]:
    """The cells of a step, drawn around what its students were trained on."""
    experiment, catalog = context.experiment, context.catalog
    return step_cells(step, experiment, catalog, usable_around(experiment, catalog, context.run.excluded))


def skipped_combinations(
    step: EvaluateStep | GenerateStep, experiment: Experiment, catalog: Catalog, run: Run
) -> dict[str, str]:
    """The combinations that an evaluation must skip, each with a student that was trained on it."""
    if isinstance(step, EvaluateStep) and step.allow_trained:
        return {}
    return trained_combinations(step, experiment, catalog, run.excluded)


def drop_unusable_skips(run: Run) -> None:
    """Drop stored skips that do not apply any more, so that every reader of the run can draw its cells."""
    stored = run.excluded
    for step in stored.keys() - usable_around(run.experiment, run.catalog, stored).keys():
        run.exclude(step, frozenset())


def draw_around_training(step: EvaluateStep | GenerateStep, context: StepContext) -> None:
    """Let the draws of an evaluation skip what its students were trained on; all of them get the same draw."""
    skipped = skipped_combinations(step, context.experiment, context.catalog, context.run)
    before = context.run.excluded.get(step.name, frozenset())
    if skipped.keys() == before:
        return
    context.run.exclude(step.name, frozenset(skipped))
    for student, count in Counter(skipped[c] for c in skipped.keys() - before).items():
        say(f"{step.name}: draws around {plural(count, 'combination')} that {student} was trained on")


def counts_line(step: str, counts: CallCounts) -> str:
    """The line that the terminal shows after a step of calls."""
    return (
        f"{step}: {plural(counts.called, 'call')} made, {counts.found} found, {counts.retried} tried again, "
        f"{plural(counts.tokens, 'token')}, {counts.cost_usd:.2f} US dollars"
    )


class GenerateKind(CallKind[GenerateStep]):
    """Students write texts."""

    def prepare(self, step: GenerateStep, context: StepContext) -> None:
        """Draw the combinations of an evaluation around what the students were trained on."""
        if step.purpose == "evaluation":
            draw_around_training(step, context)


class GradeKind(CallKind[GradeStep]):
    """Graders grade texts; a text that is not written yet is counted, not written."""

    def grader_role(self, step: GradeStep, experiment: Experiment) -> Role:
        """Graders of texts that an earlier step has already graded grade them again."""
        earlier = experiment.steps[: [other.name for other in experiment.steps].index(step.name)]
        has_grades = any(
            other.grader_names
            and (other.name in step.of or (isinstance(other, GradeStep) and {*other.of} & {*step.of}))
            for other in earlier
        )
        return "re-grader" if has_grades else "grader"

    def run(self, step: GradeStep, context: StepContext, result: RunResult) -> bool:
        """Grade the texts, and say how many are not written yet."""
        may_go_on = super().run(step, context, result)
        left_out = result.counts[step.name].left_out
        if left_out:
            say(f"{step.name}: {are(left_out, 'text')} not written yet and so not graded")
        return may_go_on


class EvaluateKind(CallKind[EvaluateStep]):
    """Students write texts and graders grade them."""

    def check_students(self, step: EvaluateStep, experiment: Experiment, catalog: Catalog, run: Run) -> None:
        """Refuse students of another partition, and a draw that training data leave too few combinations for."""
        skipped_combinations(step, experiment, catalog, run)
        refuse_other_partitions(step, experiment, catalog)

    def prepare(self, step: EvaluateStep, context: StepContext) -> None:
        """Check students that an earlier step may just have trained, and draw around their data."""
        self.check_students(step, context.experiment, context.catalog, context.run)
        draw_around_training(step, context)

    async def make_calls(self, step: EvaluateStep, context: StepContext, counts: CallCounts) -> None:
        """With `stop_below`, make the calls k by k and skip the cells that an early stop cancels."""
        if not step.may_stop_early:
            await super().make_calls(step, context, counts)
            return
        cells = list(drawn_cells(step, context))
        for k in sorted(set(step.k)):
            skipped = skipped_cells(context.experiment, run_scores(context.run)) if k > min(step.k) else set()
            cells = [c for c in cells if (step.name, c.student, c.label, c.k) not in skipped]
            context.progress.expect(step.name, PlannedCalls(cells, context.experiment).total)
            await make_calls(calls_of(step), [c for c in cells if c.k == k], context, counts)
            if counts.stopped:
                break
