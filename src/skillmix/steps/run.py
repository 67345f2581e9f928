"""`skillmix run`, and `generate`, `grade`, `evaluate` for the steps of one stage."""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Any, Final

from skillmix.calls import CallProblem, Model
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.files import load_catalog
from skillmix.datasets.evaluations import refuse_trained
from skillmix.errors import Interrupted, UserError
from skillmix.experiment.experiment import EvaluateStep, Experiment, Step, load_experiment
from skillmix.experiment.plan import GradedPlace, drawn_settings, entries, graded_places, written_by
from skillmix.experiment.prices import Price, load_prices, price_of
from skillmix.experiment.report_step import ReportStep
from skillmix.models.specs import parse_spec
from skillmix.runs.budget import LimitedBudget
from skillmix.runs.calling import StepContext, opened_models
from skillmix.runs.planned_work import planned_work
from skillmix.runs.progress.progress import RunProgress
from skillmix.runs.progress.stopping import signal_of
from skillmix.runs.progress.terminal import say
from skillmix.runs.rules_grader import require_checkers
from skillmix.runs.run import Run, new_run
from skillmix.runs.scheduler import CallCounts
from skillmix.runs.students import with_trained
from skillmix.scores.cells import Score
from skillmix.steps.before_run import check_journal, check_plan
from skillmix.steps.evaluate import work_on

if TYPE_CHECKING:
    from skillmix.datasets.build import WrittenDataset
    from skillmix.datasets.counts import SamplingYield


@dataclass(frozen=True, slots=True)
class RunResult:
    """How an experiment went."""

    run: Run
    tallies: dict[str, CallCounts]
    """By step."""
    datasets: "dict[str, WrittenDataset]" = field(default_factory=dict)
    """By step."""
    reports: list[Path] = field(default_factory=list)
    """Pages to open."""
    seconds: float = 0.0
    """How long this call of it took."""
    cpu_seconds: float = 0.0
    """Of this process and of those that it started and waited for."""
    has_unpriced: bool = False
    """Whether models were asked whose price is not known."""
    places: frozenset[GradedPlace] = frozenset()
    """The cells of the table that its steps grade."""

    @property
    def called(self) -> int:
        """Calls of all steps."""
        return sum(tally.called for tally in self.tallies.values())

    @property
    def cost_usd(self) -> float | None:
        """What the calls cost; None if nobody knows what some of them do."""
        return None if self.has_unpriced else sum(tally.cost_usd for tally in self.tallies.values())

    @property
    def found(self) -> int:
        """Outcomes that the journal had."""
        return sum(tally.found for tally in self.tallies.values())

    @property
    def failed(self) -> dict[str, CallProblem]:
        """Calls without an outcome, and why."""
        return {str(key): why for tally in self.tallies.values() for key, why in tally.failed.items()}

    def failure_lines(self) -> list[str]:
        """Those calls by reason, each reason with its count, one detail and one call."""
        by_reason: dict[str, list[tuple[str, CallProblem]]] = {}
        for key, problem in self.failed.items():
            by_reason.setdefault(problem.reason, []).append((key, problem))
        return [_failure_line(reason, calls) for reason, calls in by_reason.items()]

    def ungraded(self, scores: Iterable[Score]) -> int:
        """Texts of this run's steps that have no score, as their grades are missing or cannot be read."""
        found: dict[GradedPlace, int] = {}
        for score in scores:
            place = (score.student, score.grader, score.setting, score.k)
            if place in self.places and score.sets == "all":
                found[place] = max(found.get(place, 0), score.ungraded)
        return sum(found.values())

    @property
    def left_out(self) -> int:
        """Texts that a grading step waits for."""
        return sum(tally.left_out for tally in self.tallies.values())

    @property
    def stopped(self) -> str | None:
        """Why no more calls were started, if so."""
        return next((tally.stopped for tally in self.tallies.values() if tally.stopped), None)

    @property
    def signal(self) -> int | None:
        """The signal that stopped it, if one did."""
        return signal_of(self.stopped)

    @property
    def is_interrupted(self) -> bool:
        """Whether the user stopped it."""
        return self.signal is not None

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.failed and self.stopped is None and not self.left_out and not self.short

    @property
    def short(self) -> "dict[str, list[SamplingYield]]":
        """Targets of data sets that were not reached."""
        return {name: made.short for name, made in self.datasets.items() if made.short}


def _failure_line(reason: str, calls: Sequence[tuple[str, CallProblem]]) -> str:
    key, problem = next((call for call in calls if call[1].detail), calls[0])
    detail = f": {problem.detail}" if problem.detail else ""
    count = "1 call" if len(calls) == 1 else f"{len(calls)} calls"
    return f"{count}: {reason}{detail} ({'such as ' if len(calls) > 1 else ''}{key})"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which steps of an experiment: all of them, those of a stage, or one by name."""

    stage: str | None = None
    step: str | None = None

    def chosen(self, experiment: Experiment) -> list[Step]:
        """The steps, in order; an error if there are none."""
        steps = [
            step for step in experiment.steps if self.stage in (None, step.stage) and self.step in (None, step.name)
        ]
        if steps:
            return steps
        names = ", ".join(f"{step.name} ({step.stage})" for step in experiment.steps)
        stage = f" {self.stage}" if self.stage else ""
        name = f" called {self.step!r}" if self.step else ""
        raise UserError(f"The experiment has no{stage} step{name}.", hint=f"It has: {names}.")


def run_experiment(
    path: Path, *, prices: Path | None = None, changes: Sequence[str] = (), wanted: Wanted | None = None
) -> RunResult:
    """The steps of an experiment file, in order."""
    return run_checked(load_experiment(path, changes=changes), prices=prices, wanted=wanted)


def run_checked(experiment: Experiment, *, prices: Path | None = None, wanted: Wanted | None = None) -> RunResult:
    """The same for an experiment that is in memory."""
    started, cpu_started = time.monotonic(), _cpu_seconds()
    steps = (wanted or Wanted()).chosen(experiment)
    catalog = load_catalog(experiment.catalog)
    _check_rules(experiment, catalog, steps)
    run = new_run(experiment.name)
    known = _prices(experiment, load_prices(prices))
    check_plan(experiment, catalog, steps, run)
    asyncio.run(_probe(experiment, steps))
    result = RunResult(run, {}, places=graded_places(steps, experiment))
    with RunProgress(planned_work(experiment, steps, run)) as progress:
        with run.write() as journal:
            budget = experiment.budget
            purse = LimitedBudget(known, spent=journal.spent(), max_calls=budget.max_calls, max_usd=budget.max_usd)
            place = StepContext(experiment, catalog, run, journal, purse, progress)
            run.checked_document(experiment, catalog)
            check_journal(place, steps)
            try:
                with run.continued(experiment, catalog, has_made=lambda: bool(result.called or result.datasets)):
                    _work(steps, place, result)
            except asyncio.CancelledError:
                raise Interrupted(result.signal or SIGINT) from None
            finally:
                if run.path.is_dir():  # it may have been deleted meanwhile
                    facts = {"command": "run", "called": result.called, "catalog_hash": catalog.content_hash()}
                    run.note_invocation(facts)
        if not result.is_interrupted:
            _write_reports(experiment, steps, result, progress)
    return replace(
        result,
        seconds=time.monotonic() - started,
        cpu_seconds=_cpu_seconds() - cpu_started,
        has_unpriced=result.called > 0
        and any(known[name] is None for step in steps for name in _asked(step, experiment)),
    )


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def _asked(step: Step, experiment: Experiment) -> list[str]:
    """The models that a step asks, by the names that prices go by."""
    graders = [name for name in getattr(step, "graders", []) if experiment.graders[name].asked]
    return [f"student:{name}" for name in written_by(step)] + [f"grader:{name}" for name in graders]


def _write_reports(experiment: Experiment, steps: Sequence[Step], result: RunResult, progress: RunProgress) -> None:
    """Reports read the journal once nobody writes to it."""
    wanted = [step for step in steps if isinstance(step, ReportStep)]
    if wanted:
        from skillmix.report.write import report_step

        for step in wanted:
            progress.go_on(step.name)
            result.reports.append(report_step(experiment, step, result.run).page)
            progress.end(step.name)


def _work(steps: Sequence[Step], place: StepContext, result: RunResult) -> None:
    """Step after step; what an earlier one made is there for the next."""
    for step in steps:
        now = replace(place, experiment=with_trained(place.experiment, place.run))
        if step.stage in _STAGES and not _STAGES[step.stage](step, now, result):
            break


def _calls(step: Any, place: StepContext, result: RunResult) -> bool:
    if isinstance(step, EvaluateStep):
        refuse_trained(step, place.experiment, place.catalog)
    tally = result.tallies[step.name] = CallCounts()
    asyncio.run(work_on(step, place, tally))
    place.progress.end(step.name, _told(step.name, tally))
    if tally.left_out:
        say(f"{step.name}: {tally.left_out} texts are not written yet and so not graded")
    return tally.stopped is None


def _dataset(step: Any, place: StepContext, result: RunResult) -> bool:
    from skillmix.datasets.from_runs import work_on_dataset

    tally = result.tallies[step.name] = CallCounts()
    made = asyncio.run(work_on_dataset(step, place, tally))
    if step.writer:
        place.progress.end(step.name, _told(step.name, tally))
    if made is None:
        say(f"{step.name}: calls are missing, and no data set was written; run the same command to go on")
        return False
    result.datasets[step.name] = made
    say(f"{step.name}: {made.texts} conversations in {made.folder}")
    for y in made.yields:
        if y.taken < y.target:
            what_then = "enough for later steps" if y.is_enough else "later steps wait for them"
            say(
                f"{step.name}: only {y.taken} of {y.target} texts of k = {y.k} after {y.written} conversations "
                f"({y.full_marks} with full marks); {what_then}"
            )
    return tally.stopped is None and not made.short


def _train(step: Any, place: StepContext, result: RunResult) -> bool:
    from skillmix.steps.train import train_step

    train_step(place.experiment, step, place.run, place.progress)
    place.progress.end(step.name)
    return True


_STAGES: Final[Mapping[str, Callable[[Any, StepContext, RunResult], bool]]] = {
    "evaluate": _calls,
    "generate": _calls,
    "grade": _calls,
    "dataset": _dataset,
    "train": _train,
}
"""What does the steps of a stage; False if the run must stop there."""


def _told(step: str, tally: CallCounts) -> str:
    return (
        f"{step}: {tally.called} calls made, {tally.found} found, {tally.retried} tried again, "
        f"{tally.tokens} tokens, {tally.cost_usd:.2f} US dollars"
    )


def _check_rules(experiment: Experiment, catalog: Catalog, steps: Sequence[Step]) -> None:
    """Refuse graders that are code where code cannot decide; by what may be drawn, as drawing itself takes a while."""
    for step in steps:
        code = [name for name in getattr(step, "graders", []) if experiment.graders[name].asked is None]
        if code:
            for setting in drawn_settings(step, experiment):
                pool = catalog.pool(setting, partition=experiment.partition, exclude=experiment.exclude)
                require_checkers(catalog, pool.skills, code[0])


async def _probe(experiment: Experiment, steps: Sequence[Step]) -> None:
    """Find a wrong key, address or name of any model before the first paid call."""
    graders = sorted({name for step in steps for name in getattr(step, "graders", [])})
    # What a train step makes cannot be asked yet.
    students = sorted({name for step in steps for name in written_by(step) if name in experiment.students})
    asked = entries(experiment, students, graders)
    async with AsyncExitStack() as opened:
        models = await opened_models(asked, opened)
        for key, address in sorted({(s.key, parse_spec(str(s.asked)).address) for s in asked.values() if s.key}):
            say(f"{key} is sent to {address or 'the address of its provider'}")
        problems = await asyncio.gather(*(_probed(model) for model in models.values()))
        for name, problem in zip(models, problems, strict=True):
            if problem is not None:
                raise UserError(
                    f"{name.replace(':', ' ')} cannot be used: {problem.reason}. {problem.detail}".rstrip(),
                    hint="Check its name, its address and the key in the environment. No call was made.",
                )


_LONGEST_PROBE: Final = 8.0


async def _probed(model: Model) -> CallProblem | None:
    """An address that swallows everything must not take a whole call's timeout to be found out."""
    try:
        return await asyncio.wait_for(model.probe(), _LONGEST_PROBE)
    except TimeoutError:
        return CallProblem("fatal", "no connection", f"nothing came back in {_LONGEST_PROBE:g} s")


def _prices(experiment: Experiment, prices: dict[str, Price]) -> dict[str, Price | None]:
    """What each model costs, None if unknown; a limit in dollars needs to know all."""
    settings_of = entries(experiment, list(experiment.students), list(experiment.graders))
    trained = {f"student:{step.name}": Price(0.0, 0.0) for step in experiment.steps if step.stage == "train"}
    known = {name: price_of(parse_spec(str(settings.asked)), prices) for name, settings in settings_of.items()}
    unknown = sorted({settings_of[name].model for name, price in known.items() if price is None})
    if experiment.budget.max_usd is not None and unknown:
        raise UserError(
            f"budget.max_usd cannot be kept: the price of {', '.join(unknown)} is not known.",
            hint="Add it to a price file and give that with --prices.",
        )
    return {**trained, **known}
