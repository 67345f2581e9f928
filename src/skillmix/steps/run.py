"""Run the steps of an experiment: all, those of one stage, or a single step.

The checks are in checks.py, and the kinds of step in kinds.py and calls.py.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from signal import SIGINT

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.files import load_catalog
from skillmix.errors import LOG, Interrupted, UserError, errors_of, refuse
from skillmix.experiment.costs import load_prices, price_warnings
from skillmix.experiment.experiment import Experiment, load_experiment
from skillmix.experiment.plan import Settings, graded_cells, settings_by_model
from skillmix.experiment.step_base import Step
from skillmix.experiment.train_step import TrainStep
from skillmix.models.local.model import MODELS
from skillmix.models.ray import Placement, ray_cluster
from skillmix.models.servers.started import SERVERS
from skillmix.models.specs import parse_spec
from skillmix.prompts.prompt_set import load_prompts
from skillmix.render import duration, listed, name_hint
from skillmix.runs.batches.step_batches import USUAL, BatchWishes, forget_batches, hold_submitted
from skillmix.runs.budget import Budget
from skillmix.runs.calling import StepContext
from skillmix.runs.database import RUN_FILE
from skillmix.runs.progress import NO_PROGRESS, RunProgress, Work, say
from skillmix.runs.rows import StepRecord
from skillmix.runs.run import Run, machine_in_words, new_run
from skillmix.runs.scheduler import signal_of
from skillmix.runs.students import with_trained
from skillmix.steps.calls import drop_unusable_skips
from skillmix.steps.checks import (
    check_journal,
    check_packages,
    fetch_from_hub,
    file_checks,
    pinned_experiment,
    plan_checks,
    prices_by_model,
    probe_models,
    require_access,
    student_checks,
    would_download,
)
from skillmix.steps.estimates import CallEstimate, EstimateBasis, PastCalls
from skillmix.steps.kinds import kind_of, train_step
from skillmix.steps.step_kind import RunResult, StepInputs, Trained
from skillmix.tracking import track_scores
from skillmix.training.job import is_first_rank


def _finished(step: Step, source: StepInputs, result: RunResult) -> tuple[str | None, list[str]]:
    """Return a description of a finished step's output, or None and the names of the inputs that have changed."""
    kind, record = kind_of(step), source.run.finished(step.name)
    inputs = None if record is None else kind.inputs(step, source)
    if record is None or inputs is None:
        return None, []
    if changes := record.changes(json.loads(json.dumps(inputs))):
        return None, changes
    with suppress(LookupError, TypeError, ValueError, AttributeError):  # older versions recorded less
        return kind.take(step, record.result or {}, source.run, result), ["its output"]
    return None, ["its output"]


def _end_taken(step: Step, line: str, progress: RunProgress, result: RunResult) -> None:
    result.taken.add(step.name)
    progress.end(step.name, f"{step.name}: finished in an earlier run; {line}")


def inputs_of(context: StepContext) -> StepInputs:
    """Return the sources of step inputs, with a student for each model that train steps have produced so far."""
    return StepInputs(with_trained(context.experiment, context.run), context.catalog, context.run)


@dataclass(frozen=True, slots=True)
class StepFilter:
    """The steps of an experiment to run: all, those of one stage, or one by name."""

    stage: str | None = None
    step: str | None = None

    def select(self, experiment: Experiment) -> list[Step]:
        """Return the selected steps in order, or raise an error if there are none."""
        steps: list[Step] = [
            step for step in experiment.steps if self.stage in (None, step.stage) and self.step in (None, step.name)
        ]
        if steps:
            return steps
        names = ", ".join(f"{step.name} ({step.stage})" for step in experiment.steps)
        known = [step.name for step in experiment.steps]
        hint = name_hint(self.step or "", known, otherwise=f"Its steps: {names or 'none; add one to the file'}.")
        wanted = " ".join(filter(None, (self.stage, "step", self.step and repr(self.step))))
        raise UserError(f"{experiment.name} has no {wanted}.", hint=hint)


def run_experiment(
    path: Path,
    *,
    prices: Path | None = None,
    changes: Sequence[str] = (),
    wanted: StepFilter | None = None,
    on_ray: bool = False,
    batches: BatchWishes = USUAL,
) -> RunResult:
    """Run the steps of an experiment file."""
    experiment = load_experiment(path, changes=changes)
    return run_checked(experiment, prices=prices, wanted=wanted, on_ray=on_ray, batches=batches)


@MODELS.keeping()
@SERVERS.keeping()
def run_checked(
    experiment: Experiment,
    *,
    prices: Path | None = None,
    wanted: StepFilter | None = None,
    on_ray: bool = False,
    batches: BatchWishes = USUAL,
) -> RunResult:
    """Run the steps of an experiment whose file has been validated."""
    started = time.monotonic()
    catalog = load_catalog(experiment.catalog, *experiment.other_catalogs)
    run = new_run(experiment.name)
    experiment = pinned_experiment(experiment, run)
    steps = (wanted or StepFilter()).select(experiment)
    if not is_first_rank():  # the first of several ranks does the checks and updates the run
        training = [step for step in steps if isinstance(step, TrainStep)]
        return RunResult(run, trained={step.name: train_step(experiment, step, run) for step in training})
    at_once = _taken_at_once(steps, experiment, catalog, run)
    if at_once is not None:
        return replace(at_once, seconds=time.monotonic() - started)
    check_packages(experiment, steps, run, calls_here=not on_ray)
    fetch_from_hub(experiment, catalog, steps, run)
    checks = (
        *plan_checks(experiment, catalog, steps, run),
        *file_checks(experiment, catalog, steps, run),
        lambda: prices_by_model(experiment, load_prices(prices)),
        lambda: asyncio.run(probe_models(experiment, steps)),
    )
    refuse(experiment.name, errors_of(checks))
    price_by_model = prices_by_model(experiment, load_prices(prices))
    for warning in price_warnings({name.replace(":", " "): price for name, price in price_by_model.items()}):
        LOG.warning(f"warning: {warning}")
    result = RunResult(run, graded_cells=graded_cells(steps, experiment))
    with RunProgress(planned_work(experiment, catalog, steps, run)) as progress:
        place = Placement(experiment.workers.cpus, experiment.workers.gpus)
        with run.write() as journal:
            limits = experiment.budget
            if batches.forgets:
                forget_batches(journal.submissions)
            budget = Budget(price_by_model, spent=journal.spent(), max_calls=limits.max_calls, max_usd=limits.max_usd)
            hold_submitted(budget, journal.submissions, _all_settings(experiment))
            context = StepContext(experiment, catalog, run, journal, budget, progress, batch_wait=batches.wait)
            run.checked_document(experiment, catalog)
            check_journal(context, steps)
            try:
                with (
                    ray_cluster(place, say) if on_ray else nullcontext() as cluster,
                    run.continued(experiment, catalog, has_made=lambda: result.has_made),
                ):
                    drop_unusable_skips(run)
                    _run_steps([s for s in steps if not s.reads_whole_run], replace(context, cluster=cluster), result)
            except asyncio.CancelledError:
                raise Interrupted(signal_of(result.stopped) or SIGINT) from None
            finally:
                if (run.path / RUN_FILE).exists():  # the user may have deleted the run in the meantime
                    _note_invocation(run, catalog, result)
            if signal_of(result.stopped) is None:
                _run_steps([step for step in steps if step.reads_whole_run], context, result)
        if signal_of(result.stopped) is None:
            track_scores(run, experiment.track)
    asked = {f"student:{name}" for step in steps for name in step.student_names}
    asked |= {f"grader:{n}" for step in steps for n in step.grader_names if experiment.graders[n].asked}
    has_unpriced = result.called > 0 and any(price_by_model[name] is None for name in asked)
    return replace(result, seconds=time.monotonic() - started, has_unpriced=has_unpriced)


def planned_work(experiment: Experiment, catalog: Catalog, steps: Sequence[Step], run: Run) -> list[Work]:
    """Return the work of the steps for the progress bar."""
    return [work for step in steps if (work := kind_of(step).work(step, experiment, catalog, run))]


def _taken_at_once(steps: Sequence[Step], experiment: Experiment, catalog: Catalog, run: Run) -> RunResult | None:
    """Return the result of a run whose steps are all finished, without reading its calls; None for other runs."""
    if not run.exists or not all(run.finished(step.name) for step in steps):
        return None
    if run.checked_document(experiment, catalog) != run.document:
        return None
    run.experiment = experiment
    result = RunResult(run, graded_cells=graded_cells(steps, experiment))
    source = StepInputs(with_trained(experiment, run), catalog, run)
    lines: list[str] = []
    for step in steps:
        line, _ = _finished(step, source, result)
        if line is None:
            return None
        lines.append(line)
    for step, line in zip(steps, lines, strict=True):
        _end_taken(step, line, NO_PROGRESS, result)
    return result


def _note_invocation(run: Run, catalog: Catalog, result: RunResult) -> None:
    """Record the environment of this invocation if it is the first, or if it made calls, data sets or models."""
    if run.exists and (
        result.has_made or result.trained.keys() - result.taken or run.state.versions[-1].machine is None
    ):
        experiment = run.experiment
        used = dict.fromkeys([experiment.prompts, *(s.prompts for s in experiment.students.values() if s.prompts)])
        notes: dict[str, object] = {"prompts": {name: load_prompts(name).content_hash() for name in used}}
        notes |= {"checkers_hash": catalog.code.hash} if catalog.code else {}
        run.note_invocation(notes, machine=machine_in_words())


def _run_steps(steps: Sequence[Step], context: StepContext, result: RunResult) -> None:
    """Run steps in order until later steps have to wait."""
    for step in steps:
        line, changes = _finished(step, inputs_of(context), result)
        if line is not None:
            _end_taken(step, line, context.progress, result)
            continue
        if changes:
            say(f"{step.name} runs again: {listed(changes)} changed")
        kind, now = kind_of(step), replace(context, experiment=with_trained(context.experiment, context.run))
        started = time.monotonic()
        kind.prepare(step, now)
        inputs = kind.inputs(step, inputs_of(now))
        if step.reads_whole_run:
            now.progress.go_on(step.name)
        may_go_on = kind.run(step, now, result)
        if step.reads_whole_run:
            now.progress.end(step.name)
        seconds = time.monotonic() - started
        counts, dataset = result.counts.get(step.name), result.datasets.get(step.name)
        has_calls = counts is None or not (counts.failed or counts.left_out or counts.stopped)
        is_whole = has_calls and not (dataset and dataset.short) and step.name not in result.waiting
        # Do not record a step whose inputs changed while it ran.
        if may_go_on and is_whole and inputs is not None and kind.inputs(step, inputs_of(context)) == inputs:
            context.run.record_step(step.name, StepRecord(inputs, kind.made(step, context.run, result), seconds))
        say(f"{step.name}: {duration(seconds)}")
        if not may_go_on:
            break


def train_steps(
    path: Path, *, changes: Sequence[str] = (), only: str | None = None, prices: Path | None = None
) -> list[Trained]:
    """Run the train steps of an experiment file; under torchrun, this process is one of several ranks."""
    result = run_experiment(path, prices=prices, changes=changes, wanted=StepFilter("train", only))
    return list(result.trained.values())


def estimate_experiment(experiment: Experiment, *, prices: Path | None) -> list[CallEstimate]:
    """Estimate calls, tokens, cost and GPU hours of all steps after the checks of a run that need no calls."""
    run, steps = new_run(experiment.name), experiment.steps
    catalog = load_catalog(experiment.catalog, *experiment.other_catalogs)
    checks = (*plan_checks(experiment, catalog, steps, run), *student_checks(experiment, catalog, steps, run))
    refuse(experiment.name, errors_of(checks))
    basis = EstimateBasis(experiment, catalog, load_prices(prices), PastCalls(run))
    return [estimate for step in experiment.steps for estimate in kind_of(step).estimates(step, basis)]


def lacks_here(experiment: Experiment, *, calls_here: bool = True) -> Iterator[str]:
    """Yield the packages, files, checkpoints and keys that this machine lacks, without contacting a server."""
    run, steps = new_run(experiment.name), experiment.steps
    try:
        check_packages(experiment, steps, run, calls_here=calls_here)
    except UserError as missing:
        yield f"{missing.message} Install them with {missing.hint}"
        return
    used = [settings for settings in _all_settings(experiment).values() if settings.asked] if calls_here else []
    at_hand = [s for s in steps if not (s.trains_model and any(would_download(parse_spec(str(u.asked))) for u in used))]
    files = file_checks(experiment, load_catalog(experiment.catalog, *experiment.other_catalogs), at_hand, run)
    checks: Iterator[Callable[[], object]] = chain(files, (partial(require_access, settings) for settings in used))
    yield from dict.fromkeys(fault for error in errors_of(checks) for fault in error.faults)


def _all_settings(experiment: Experiment) -> dict[str, Settings]:
    return settings_by_model(experiment, list(experiment.students), list(experiment.graders))
