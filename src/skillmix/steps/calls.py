"""The kinds of step that call models: generate, grade, evaluate and dataset steps."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from signal import SIGINT
from typing import Any, Final

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination, all_combinations
from skillmix.datasets.leakage import bars_for, refuse_other_partitions, trained_combinations, usable_around
from skillmix.datasets.row_files import content_hash, refuse_more_turns
from skillmix.errors import Interrupted
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.plan import PlannedCell, Settings, place_of, step_cells
from skillmix.experiment.step_base import Step, student_name
from skillmix.experiment.steps import DatasetStep, EvaluateStep, GenerateStep, GradeStep
from skillmix.files import require_replaceable
from skillmix.hashing import short_id
from skillmix.models.lineage_files import LINEAGE_FILE
from skillmix.prompts.prompt_set import load_prompts
from skillmix.render import are, plural
from skillmix.runs.budget import Task
from skillmix.runs.calling import StepContext, calls_of, conversations_of, make_calls, serve
from skillmix.runs.conversations import Conversations
from skillmix.runs.progress import say, watched
from skillmix.runs.run import Run
from skillmix.runs.scheduler import CallCounts, Follow, signal_of
from skillmix.runs.students import turns_of
from skillmix.scores.planned_work import PlannedCalls
from skillmix.scores.scoring import run_scores, skipped_cells
from skillmix.steps.estimates import CallEstimate, EstimateBasis, EstimatedStep, grader_estimates, student_estimate
from skillmix.steps.step_kind import Inputs, RunResult, StepInputs, StepKind, of_calls, of_draws, of_files, of_settings

_SAMPLED: Final = 50
"""The number of combinations for each k whose prompts are measured to estimate the cost of a dataset step."""
CellsStep = GenerateStep | GradeStep | EvaluateStep


class CallKind(StepKind[CellsStep]):
    """Make the calls that fill cells of the score table; a grade step only reports texts that are not written yet."""

    def check_students(self, step: CellsStep, experiment: Experiment, catalog: Catalog, run: Run) -> None:
        """Reject students of another partition, and draws that have too few combinations outside the training data."""
        if isinstance(step, EvaluateStep):
            skipped_combinations(step, experiment, catalog, run)
            refuse_other_partitions(step, experiment, catalog)

    def prepare(self, step: CellsStep, context: StepContext) -> None:
        """Check students that an earlier step may have trained, and exclude their training data."""
        self.check_students(step, context.experiment, context.catalog, context.run)
        if isinstance(step, EvaluateStep) or (isinstance(step, GenerateStep) and step.purpose == "evaluation"):
            draw_around_training(step, context)

    def first_cells(self, step: CellsStep, context: StepContext) -> Iterable[tuple[Conversations, PlannedCell]]:
        """Return every cell of the step."""
        conversations = conversations_of(calls_of(step), context)
        return ((conversations, cell) for cell in drawn_cells(step, context))

    def estimates(self, step: CellsStep, basis: EstimateBasis) -> list[CallEstimate]:
        """Estimate the calls of each student and grader, excluding calls that an earlier step makes."""
        experiment, steps = basis.experiment, basis.experiment.steps
        place = steps.index(step)
        cells = [list(step_cells(one, experiment, basis.catalog)) for one in steps[: place + 1]]
        before, now = (PlannedCalls(chain(*some), experiment) for some in (cells[:place], cells))

        def new(**whose: str) -> list[tuple[Combination, int]]:
            return list((now.conversations(**whose) - before.conversations(**whose)).items())

        has_grades = isinstance(step, GradeStep) and any(
            other.grader_names
            and (other.name in step.of or (isinstance(other, GradeStep) and {*other.of} & {*step.of}))
            for other in steps[:place]
        )
        label = EstimatedStep(step.name, "re-grader" if has_grades else "grader")
        students = [
            student_estimate(EstimatedStep(step.name, "student"), name, new(student=name), basis)
            for name in dict.fromkeys(step.student_names)
        ]
        return students + [one for n in step.grader_names for one in grader_estimates(label, [n], new(grader=n), basis)]

    def inputs(self, step: CellsStep, source: StepInputs) -> Inputs | None:
        """Return the settings of the step, of its models and of the steps it grades, and the combinations it skips."""
        steps, skipped = source.experiment.steps, source.run.excluded
        cells = list(step.undrawn_cells(steps))
        students = [cell.student for cell in cells]
        found = of_settings(step) | of_draws(source) | of_calls(students, step.grader_names, source)
        writing = sorted({cell.source for cell in cells})
        found["what its draws skip"] = short_id(
            "skipped", [[name, sorted(skipped[name])] for name in writing if skipped.get(name)]
        )
        graded = {one.step for one in step.inputs}
        found |= {f"the step {s.name}": s.model_dump(mode="json") for s in steps if s.name in graded}
        if isinstance(step, EvaluateStep) and step.sets == "reserved":
            found["the share of reserved skill sets"] = source.experiment.reserved
        return found

    def made(self, step: CellsStep, run: Run, result: RunResult) -> dict[str, Any]:
        """Return the number of calls and a hash of the combinations."""
        counts = result.counts[step.name]
        return {"calls": counts.called + counts.found, "combinations": _combinations_hash(step, run)}

    def take(self, step: CellsStep, made: Mapping[str, Any], run: Run, result: RunResult) -> str | None:
        """Count all calls as found if the draws still yield the recorded combinations."""
        if made["combinations"] != _combinations_hash(step, run):
            return None
        result.counts[step.name] = CallCounts(found=made["calls"])
        return f"{plural(made['calls'], 'call')} found"

    def run(self, step: CellsStep, context: StepContext, result: RunResult) -> bool:
        """Make the missing calls, and report texts that cannot be graded because they are not written yet."""
        counts = result.counts[step.name] = CallCounts()
        asyncio.run(_make_calls(step, context, counts))
        end_calls(step.name, counts, context)
        if counts.left_out:
            say(f"{step.name}: {are(counts.left_out, 'text')} not written yet, and so not graded")
        return counts.stopped is None


async def _make_calls(step: CellsStep, context: StepContext, counts: CallCounts) -> None:
    """Make the calls of all cells. With `stop_below`, proceed k by k, and skip cells that an early stop cancels."""
    cells = list(drawn_cells(step, context))
    parts = [{k} for k in sorted({cell.k for cell in cells})] if step.may_stop_early else [{cell.k for cell in cells}]
    for ks in parts:
        if ks != parts[0]:
            skipped = skipped_cells(context.experiment, run_scores(context.run))
            cells = [c for c in cells if (step.name, c.student, c.label, c.k) not in skipped]
        context.progress.expect(step.name, PlannedCalls(cells, context.experiment).total)
        await make_calls(calls_of(step), [cell for cell in cells if cell.k in ks], context, counts)
        if counts.stopped:
            break


def _combinations_hash(step: Step, run: Run) -> str:
    cells = step_cells(step, run.experiment, run.catalog, run.excluded)
    members = sorted({(cell.student, cell.label, c.id) for cell in cells for c in cell.combinations})
    return short_id("members", members)


def drawn_cells(step: Step, context: StepContext) -> Iterator[PlannedCell]:
    """Draw the cells of a step, skipping the combinations that its students were trained on."""
    experiment, catalog = context.experiment, context.catalog
    return step_cells(step, experiment, catalog, usable_around(experiment, catalog, context.run.excluded))


def skipped_combinations(
    step: EvaluateStep | GenerateStep, experiment: Experiment, catalog: Catalog, run: Run
) -> dict[str, str]:
    """Return the combinations that an evaluation must skip, each with a student that was trained on it."""
    if isinstance(step, EvaluateStep) and step.allow_trained:
        return {}
    return trained_combinations(step, experiment, catalog, run.excluded)


def drop_unusable_skips(run: Run) -> None:
    """Remove stored lists of skipped combinations that no longer apply, so that the cells of the run can be drawn."""
    stored = run.excluded
    for step in stored.keys() - usable_around(run.experiment, run.catalog, stored).keys():
        run.exclude(step, frozenset())


def draw_around_training(step: EvaluateStep | GenerateStep, context: StepContext) -> None:
    """Make an evaluation skip the training data of all its students, because the students share one draw."""
    skipped = skipped_combinations(step, context.experiment, context.catalog, context.run)
    before = context.run.excluded.get(step.name, frozenset())
    if skipped.keys() == before:
        return
    context.run.exclude(step.name, frozenset(skipped))
    for student, count in Counter(skipped[c] for c in skipped.keys() - before).items():
        say(f"{step.name}: skips {plural(count, 'combination')} that {student} was trained on")


def counts_line(step: str, counts: CallCounts) -> str:
    """Describe the calls of a step."""
    return (
        f"{step}: {plural(counts.called, 'call')} made, {counts.found} found, {counts.retried} retried, "
        f"{plural(counts.tokens, 'token')}, {counts.cost_usd:.2f} US dollars"
    )


def end_calls(step: str, counts: CallCounts, context: StepContext) -> None:
    """Print the calls and cost of a step, and mark it as finished unless it was stopped."""
    note = context.progress.end if counts.stopped is None else context.progress.leave
    note(step, counts_line(step, counts))


def call_models(
    step: str,
    settings: Mapping[str, Settings],
    tasks: Iterator[Task],
    follow: Follow,
    context: StepContext,
    counts: CallCounts,
) -> None:
    """Make the calls of a command without an experiment, and show their cost."""

    async def calls() -> None:
        async with watched(context.progress, step, counts):
            await serve(settings, tasks, follow, context, counts)

    try:
        if settings:
            asyncio.run(calls())
    except asyncio.CancelledError:
        raise Interrupted(signal_of(counts.stopped) or SIGINT) from None
    context.progress.end(step, counts_line(step, counts))


class DatasetKind(StepKind[DatasetStep]):
    """Let a model generate texts until enough have full marks, or join earlier data sets."""

    def check(self, step: DatasetStep, experiment: Experiment, catalog: Catalog, run: Run) -> None:
        """Reject missing files, unknown excluded names, unusable prompts, and an unrelated folder at its path."""
        from skillmix.datasets.build import DATASET

        require_replaceable(run.step(step.name) / "dataset", DATASET)
        bars_for(step, experiment, catalog, run)
        place_of(step, experiment, catalog).catalog.excluded(step.exclude)
        if step.writer:
            turns = turns_of(experiment, student_name(step.writer))
            refuse_more_turns(step.writer, turns, load_prompts(step.prompts or experiment.prompts))

    def first_cells(self, step: DatasetStep, context: StepContext) -> Iterable[tuple[Conversations, PlannedCell]]:
        """Return a cell with the first conversation of each k."""
        from skillmix.datasets.from_runs import plan_of
        from skillmix.datasets.window import DatasetWriting

        if not step.writer:
            return []
        writing = DatasetWriting(step, context, plan_of(step, context), CallCounts())
        conversations = conversations_of(writing.calls, context)
        return [(conversations, cell) for cell in writing.first_cells()]

    def estimates(self, step: DatasetStep, basis: EstimateBasis) -> list[CallEstimate]:
        """Estimate the calls of the fewest conversations that can reach the targets, and of the most allowed."""
        place = place_of(step, basis.experiment, basis.catalog)
        found: list[CallEstimate] = []
        for bound, conversations_of_k in (("at least", step.target_of), ("at most", step.max_conversations)):
            counted: list[tuple[Combination, int]] = []
            for k in step.data_recipe.ks if step.writer else ():
                sample = list(islice(all_combinations(place.dataset_draw(step, k)), _SAMPLED))
                each, more = divmod(conversations_of_k(k), len(sample))
                counted += [(combination, each + (index < more)) for index, combination in enumerate(sample)]
            label, is_lower_bound = f"{step.name}, {bound}", bound == "at least"
            writer, grader = (EstimatedStep(label, role, is_lower_bound) for role in ("writer", "grader"))
            found += [student_estimate(writer, student, counted, basis) for student in step.student_names]
            found += grader_estimates(grader, step.grader_names, counted, basis)
        return found

    def inputs(self, step: DatasetStep, source: StepInputs) -> Inputs | None:
        """Return the step's settings, its models, the data sets that it joins, and the excluded content.

        The experiment's evaluations are not among them, because they skip the combinations of an existing data set.
        """
        leakage = step.leakage or source.experiment.leakage
        found = of_settings(step, without={"leakage"}) | of_draws(source)
        found |= of_calls(step.student_names, step.grader_names, source) if step.writer else {}
        found["its prompts"] = source.prompts(step.prompts)
        found |= {f"the data set {name}": dataset_hash(source.run, name) for name in step.of}
        found |= {f"leakage.{name}": getattr(leakage, name) for name in ("evaluations", "names", "reserved", "shown")}
        return found | of_files("the file", leakage.evaluations)

    def made(self, step: DatasetStep, run: Run, result: RunResult) -> dict[str, Any]:
        """Return the number of calls, and the data set with its hash but without its rows."""
        counts = result.counts[step.name]
        return {"calls": counts.called + counts.found, "dataset": result.datasets[step.name].record()}

    def take(self, step: DatasetStep, made: Mapping[str, Any], run: Run, result: RunResult) -> str | None:
        """Add the recorded data set to the result if its files still contain the recorded conversations."""
        from skillmix.datasets.build import recorded_dataset

        dataset = recorded_dataset(run.step(step.name) / "dataset", made["dataset"])
        if dataset_hash(run, step.name) != dataset.written.hash:
            return None
        result.counts[step.name] = CallCounts(found=made["calls"])
        result.datasets[step.name] = dataset
        return f"{plural(dataset.texts, 'conversation')} in {dataset.folder}"

    def run(self, step: DatasetStep, context: StepContext, result: RunResult) -> bool:
        """Write the data set; later steps wait until every k has enough texts."""
        from skillmix.datasets.from_runs import work_on_dataset

        counts = result.counts[step.name] = CallCounts()
        dataset = asyncio.run(work_on_dataset(step, context, counts))
        if step.writer:
            end_calls(step.name, counts, context)
        if dataset is None:
            say(f"{step.name}: calls are missing, so no data set was written; rerun the same command to continue")
            return False
        result.datasets[step.name] = dataset
        say(f"{step.name}: {plural(dataset.texts, 'conversation')} in {dataset.folder}")
        for y in dataset.yields:
            if y.taken < y.target:
                consequence = "enough for later steps" if y.is_enough else "later steps wait until there are enough"
                say(
                    f"{step.name}: only {y.taken} of {plural(y.target, 'text')} of k = {y.k} after "
                    f"{plural(y.written, 'conversation')} ({y.full_marks} with full marks); {consequence}"
                )
        return counts.stopped is None and not dataset.short


def dataset_hash(run: Run, step: str) -> str | None:
    """Hash the conversations of a dataset step; return None if its folder is incomplete."""
    folder = run.step(step) / "dataset"
    files = [folder / "train.jsonl", folder / "validation.jsonl"]
    if not all((folder / name).is_file() for name in ("train.jsonl", "rows.parquet", LINEAGE_FILE)):
        return None
    return content_hash(files)
