"""Dataset steps: a model writes until enough texts have full marks, or earlier data sets are joined."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination, all_combinations
from skillmix.datasets.leakage import bars_for
from skillmix.datasets.row_files import content_hash, refuse_more_turns, require_parquet
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.plan import PlannedCell, place_of
from skillmix.experiment.step_base import student_name
from skillmix.experiment.steps import DatasetStep
from skillmix.experiment.train_step import TrainStep
from skillmix.models.lineage_files import LINEAGE_FILE
from skillmix.prompts.prompt_set import load_prompts
from skillmix.render import plural
from skillmix.runs.calling import StepContext, conversations_of
from skillmix.runs.conversations import Conversations
from skillmix.runs.folder_replacement import DATASET, require_replaceable
from skillmix.runs.progress import say
from skillmix.runs.run import Run
from skillmix.runs.scheduler import CallCounts
from skillmix.runs.students import turns_of
from skillmix.steps.calls import counts_line
from skillmix.steps.estimates import (
    CallEstimate,
    Counted,
    EstimateBasis,
    EstimatedStep,
    grader_estimates,
    student_estimate,
)
from skillmix.steps.step_kind import (
    Inputs,
    RunResult,
    StepInputs,
    StepKind,
    of_calls,
    of_draws,
    of_files,
    of_settings,
)

_SAMPLE: Final = 50
"""Combinations whose prompts stand for those of all."""


class DatasetKind(StepKind[DatasetStep]):
    """Write or join a data set."""

    def check(self, step: DatasetStep, experiment: Experiment, catalog: Catalog, run: Run) -> None:
        """Look for pyarrow and the files of evaluations, and refuse to replace a folder that is not a data set."""
        is_training = any(isinstance(other, TrainStep) for other in experiment.steps)
        require_parquet("train" if is_training else "parquet")  # so that one installation is enough
        require_replaceable(run.step(step.name) / "dataset", DATASET)
        bars_for(step, experiment, catalog, run)
        place_of(step, experiment, catalog).catalog.excluded(step.exclude)
        if step.writer:
            turns = turns_of(experiment, student_name(step.writer))
            refuse_more_turns(step.writer, turns, load_prompts(step.prompts or experiment.prompts))

    def first_cells(self, step: DatasetStep, context: StepContext) -> Iterable[tuple[Conversations, PlannedCell]]:
        """The first conversation of each k."""
        from skillmix.datasets.from_runs import plan_of
        from skillmix.datasets.window import DatasetWriting

        if not step.writer:
            return []
        writing = DatasetWriting(step, context, plan_of(step, context), CallCounts())
        conversations = conversations_of(writing.calls, context)
        return [(conversations, cell) for cell in writing.first_cells()]

    def estimates(self, step: DatasetStep, basis: EstimateBasis) -> list[CallEstimate]:
        """The fewest conversations that can reach the targets, then the most that the step may write."""
        if not step.writer:
            return []
        fewest = _estimates(f"{step.name}, at least", step, step.target_of, basis, is_lower_bound=True)
        return fewest + _estimates(f"{step.name}, at most", step, step.max_conversations, basis)

    def inputs(self, step: DatasetStep, source: StepInputs) -> Inputs | None:
        """The step's settings, its models, the data sets that it joins, and what no data set may contain.

        Evaluations of the experiment are not among them: they draw around a data set that exists.
        """
        leakage = step.leakage or source.experiment.leakage
        found = of_settings(step, without={"leakage"}) | of_draws(source)
        found |= of_calls(step.student_names, step.grader_names, source) if step.writer else {}
        found["its prompts"] = source.prompts(step.prompts)
        found |= {f"the data set {name}": dataset_hash(source.run, name) for name in step.of}
        found |= {f"leakage.{name}": getattr(leakage, name) for name in ("evaluations", "names", "reserved", "shown")}
        return found | of_files("the file", leakage.evaluations)

    def made(self, step: DatasetStep, run: Run, result: RunResult) -> dict[str, Any]:
        """The number of calls, and the data set with its hash; its members are in its folder."""
        counts = result.counts[step.name]
        return {"calls": counts.called + counts.found, "dataset": result.datasets[step.name].record()}

    def take(self, step: DatasetStep, made: Mapping[str, Any], run: Run, result: RunResult) -> str | None:
        """The data set, if its conversations are still those of the record."""
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
            note = context.progress.end if counts.stopped is None else context.progress.leave
            note(step.name, counts_line(step.name, counts))
        if dataset is None:
            say(f"{step.name}: calls are missing, and no data set was written; run the same command to continue")
            return False
        result.datasets[step.name] = dataset
        say(f"{step.name}: {plural(dataset.texts, 'conversation')} in {dataset.folder}")
        for y in dataset.yields:
            if y.taken < y.target:
                consequence = "enough for later steps" if y.is_enough else "later steps wait for them"
                say(
                    f"{step.name}: only {y.taken} of {plural(y.target, 'text')} of k = {y.k} after "
                    f"{plural(y.written, 'conversation')} ({y.full_marks} with full marks); {consequence}"
                )
        return counts.stopped is None and not dataset.short


def dataset_hash(run: Run, step: str) -> str | None:
    """The hash of the conversations that a dataset step has made; None if its folder is not whole."""
    folder = run.step(step) / "dataset"
    files = [folder / "train.jsonl", folder / "validation.jsonl"]
    if not all((folder / name).is_file() for name in ("train.jsonl", "rows.parquet", LINEAGE_FILE)):
        return None
    return content_hash(files)


def _estimates(
    label: str,
    step: DatasetStep,
    conversations_of_k: Callable[[int], int],
    basis: EstimateBasis,
    *,
    is_lower_bound: bool = False,
) -> list[CallEstimate]:
    counted: list[tuple[Combination, int]] = []
    for k in step.data_recipe.ks:
        counted += _spread(conversations_of_k(k), _sample(step, k, basis))
    writer = EstimatedStep(label, "writer", is_lower_bound=is_lower_bound)
    grader = EstimatedStep(label, "grader", is_lower_bound=is_lower_bound)
    estimates = [student_estimate(writer, student, counted, basis) for student in step.student_names]
    return estimates + grader_estimates(grader, step.grader_names, counted, basis)


def _sample(step: DatasetStep, k: int, basis: EstimateBasis) -> list[Combination]:
    draw = place_of(step, basis.experiment, basis.catalog).dataset_draw(step, k)
    return list(islice(all_combinations(draw), _SAMPLE))


def _spread(conversations: int, sample: list[Combination]) -> Counted:
    each, more = divmod(conversations, len(sample))
    return [(combination, each + (index < more)) for index, combination in enumerate(sample)]
