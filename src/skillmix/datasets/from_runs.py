"""Make data sets of conversations with full marks, from an experiment's steps or from runs."""

import gc
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.datasets.build import (
    Writers,
    WrittenDataset,
    WrittenPreferences,
    kept_text,
    kind_of,
    make_dataset,
    without_copies_and_leaks,
)
from skillmix.datasets.counts import LeftOut
from skillmix.datasets.dataset_plan import DatasetPlan
from skillmix.datasets.kept_texts import KeptText
from skillmix.datasets.leakage import RESERVED_SET, Bars, bars_for, bars_of, combinations_in, evaluated
from skillmix.datasets.other_forms import (
    preference_rows,
    rejected_by_combination,
    require_new_rows_file,
    write_rows_file,
)
from skillmix.datasets.row_files import prompts_shown, read_rows, require_parquet
from skillmix.datasets.window import DatasetWriting
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, StudentSettings
from skillmix.experiment.plan import place_of
from skillmix.experiment.recipes import DataRecipe, ShownMode
from skillmix.experiment.step_base import student_name
from skillmix.experiment.steps import DatasetStep
from skillmix.files import own_or_shipped
from skillmix.prompts.prompt_set import load_prompts
from skillmix.prompts.rubric import FormatName
from skillmix.render import name_hint
from skillmix.runs.calling import StepContext
from skillmix.runs.decisions import decided_conversations, decision_rules
from skillmix.runs.folder_replacement import DATASET, require_replaceable
from skillmix.runs.run import Run, open_run
from skillmix.runs.scheduler import CallCounts, StopReason
from skillmix.runs.stopping import signal_of
from skillmix.runs.students import made_students, settings_for


def dataset_folder(run: Run, step: str) -> Path:
    """The folder of a dataset step's files."""
    return run.step(step) / "dataset"


async def work_on_dataset(step: DatasetStep, context: StepContext, counts: CallCounts) -> WrittenDataset | None:
    """Run a dataset step; None if it stopped before it could write its data set."""
    require_parquet()
    plan = plan_of(step, context)
    folder = dataset_folder(context.run, step.name)
    require_replaceable(folder, DATASET)
    if step.writer is None:
        return _joined(step, plan, context.run, folder)
    writing = DatasetWriting(step, context, plan, writers_of(context.run.name, context.experiment), counts)
    await writing.run()
    is_left = signal_of(counts.stopped) is not None or counts.stopped is StopReason.BATCHES
    if is_left or writing.is_broken:
        return None
    return make_dataset(writing.texts, plan, folder, left=writing.left, yields=writing.yields)


def plan_of(step: DatasetStep, context: StepContext) -> DatasetPlan:
    """The plan of a dataset step."""
    experiment = context.experiment
    writer = settings_for(experiment, student_name(step.writer)) if step.writer else None
    leakage = step.leakage or experiment.leakage
    place = place_of(step, experiment, context.catalog)
    return DatasetPlan(
        name=f"{experiment.name}-{step.name}",
        recipe=step.data_recipe,
        catalog=place.catalog,
        partition=place.partition.name,
        bars=bars_for(step, experiment, context.catalog, context.run),
        names=leakage.names,
        prompts=step.prompts or experiment.prompts,
        output_format=experiment.format,
        near_duplicates=step.near_duplicates,
        keeps_exact_duplicates=step.exact_duplicates == "keep",
        keeps_example_copies=step.example_copies == "keep",
        validation=step.validation,
        graders=tuple(step.graders),
        decoding=(f"{step.writer}: {_decoding(writer)}",) if writer else (),
        copied=tuple(sorted({s.prompts or experiment.prompts for s in experiment.students.values()})),
        shown=leakage.shown,
        only_requested=step.only_requested,
        requests=step.requests,
    )


def _decoding(settings: StudentSettings) -> str:
    top = f", top_p {settings.top_p:g}" if settings.top_p is not None else ""
    return f"temperature {settings.temperature:g}, at most {settings.max_tokens} tokens{top}" + (
        f", {settings.additions}" if settings.additions else ""
    )


def writers_of(run: str, experiment: Experiment) -> Writers:
    """The prompts and the decoding of the students of a run; unknown for an imported run."""
    names = (*experiment.students, *made_students(experiment))
    settings = {name: settings_for(experiment, name) for name in names}
    shown = {n: prompts_shown(load_prompts(n)) for n in {s.prompts or experiment.prompts for s in settings.values()}}
    return Writers(
        run,
        {name: shown[s.prompts or experiment.prompts] for name, s in settings.items()},
        {name: _decoding(s) for name, s in settings.items()},
    )


def _joined(step: DatasetStep, plan: DatasetPlan, run: Run, folder: Path) -> WrittenDataset:
    """Join the texts of earlier steps, each text once."""
    texts: dict[str, KeptText] = {}
    for name in step.of:
        texts.update((text.provenance, text) for text in read_rows(dataset_folder(run, name)))
    return _made(list(texts.values()), plan, folder, LeftOut())


def _made(texts: Sequence[KeptText], plan: DatasetPlan, folder: Path, left: LeftOut) -> WrittenDataset:
    inside, left = _of_recipe(texts, plan, left)
    kept, corpus, left = without_copies_and_leaks(inside, plan, left)
    return make_dataset(kept, plan, folder, left=left, corpus=corpus)


def _of_recipe(texts: Sequence[KeptText], plan: DatasetPlan, left: LeftOut) -> tuple[Sequence[KeptText], LeftOut]:
    """Keep the texts that belong to the recipe, and count the others by reason."""
    outside: Counter[str] = Counter()
    inside = []
    for text in texts:
        why = _outside(text.combination, plan.recipe, plan.bars)
        if why is None:
            inside.append(text)
        else:
            outside[why] += 1
    return inside, replace(left, outside=dict(outside))


def _outside(combination: Combination, recipe: DataRecipe, bars: Bars) -> str | None:
    if recipe.ks and combination.k not in recipe.ks:
        return "another k"
    leak = bars.leak_of(combination)
    if not recipe.is_named:  # a training draw may hold reserved sets, and other leaks are errors
        return leak if leak == RESERVED_SET else None
    if recipe.skills == "train" and not bars.composes(set(combination.skills)):
        return "a held-out skill"
    return leak


@dataclass(frozen=True)
class FromRuns:
    """A request for a data set from runs."""

    runs: Sequence[str]
    recipe: DataRecipe
    graders: Sequence[str] | None = None
    students: Sequence[str] | None = None
    prompts: str | None = None
    partition: str | None = None
    evaluations: Sequence[str] = ()
    names: Literal["list", "strict"] = "list"
    reserved: float = 0.2
    near_duplicates: float | None = 0.7
    validation: float = 0.05
    shown: ShownMode | None = None
    """What happens to texts that show what they must not; None for the first run's setting."""
    only_requested: bool = False
    output: Path | None = None
    preferences: Path | None = None
    """A file for pairs of texts with and without full marks."""


def dataset_of_runs(wanted: FromRuns) -> WrittenDataset:
    """Make a data set from the graded conversations of one or more runs."""
    require_parquet()
    if wanted.preferences is not None:
        require_new_rows_file(wanted.preferences)
    # Millions of records without reference cycles: searching for cycles would take a fifth of the time.
    was_on = gc.isenabled()
    gc.disable()
    try:
        return _of_runs(wanted)
    finally:
        if was_on:
            gc.enable()


def _refuse_outcomes(runs: Sequence[Run]) -> None:
    named = [run.name for run in runs if run.has_outcomes]
    if named:
        raise UserError(
            f"The graders of {', '.join(named)} name outcomes and give no points, so no text has full marks.",
            hint="Give runs whose graders give points.",
        )


def _common_format(runs: Sequence[Run]) -> FormatName | None:
    """The output format of all runs; rows of one data set cannot ask for several."""
    formats = {run.experiment.format: run.name for run in runs}
    if len(formats) > 1:
        shown = ", ".join(f"{name} {form or 'without a format'}" for form, name in formats.items())
        raise UserError(f"The runs have different output formats: {shown}.", hint="Make a data set of each.")
    return next(iter(formats), None)


def _of_runs(wanted: FromRuns) -> WrittenDataset:
    runs = list({run.path.resolve(): run for run in map(open_run, wanted.runs)}.values())
    output = wanted.output or runs[0].path / "dataset"
    _refuse_step_folder(output)
    require_replaceable(output, DATASET)
    _refuse_outcomes(runs)
    output_format = _common_format(runs)
    catalog = _common_catalog(runs)
    experiments = [run.experiment for run in runs if not run.is_imported]
    partition = wanted.partition or next((e.partition for e in experiments), None)
    own = [run for run in runs if not run.is_imported]
    ids = {i: step for run in own for i, step in evaluated(run.experiment, catalog, run.around.by_step).items()}
    files = [*wanted.evaluations, *(name for e in experiments for name in e.leakage.evaluations)]
    ids |= {i: name for name in files for i in combinations_in(own_or_shipped(name))}
    reserved = max([wanted.reserved, *(e.leakage.reserved for e in experiments)])
    prompts = wanted.prompts or next((e.prompts for e in experiments), "standard")
    texts: list[KeptText] = []
    left = LeftOut()
    for run in runs:
        kept, left = _kept_of_run(run, wanted, left)
        texts += kept
    plan = DatasetPlan(
        name="-".join(run.name for run in runs),
        recipe=wanted.recipe,
        catalog=catalog,
        partition=partition,
        bars=bars_of(catalog, partition=partition, evaluations=ids, reserved=reserved),
        names=wanted.names,
        prompts=prompts,
        output_format=output_format,
        near_duplicates=wanted.near_duplicates,
        validation=wanted.validation,
        copied=tuple(sorted({s.prompts or e.prompts for e in experiments for s in e.students.values()})),
        shown=wanted.shown or (experiments[0].leakage.shown if experiments else "drop"),
        only_requested=wanted.only_requested,
    )
    written = _made(texts, plan, output, left)
    if wanted.preferences is None:
        return written
    return replace(written, preferences=_write_preferences(wanted, wanted.preferences, runs, plan, output))


def _write_preferences(
    wanted: FromRuns, file: Path, runs: Sequence[Run], plan: DatasetPlan, folder: Path
) -> WrittenPreferences:
    """Write pairs for the combinations of a data set that was just written."""
    kept = list(read_rows(folder))
    rejected = rejected_by_combination(runs, kept, plan.shown_rule, graders=wanted.graders, students=wanted.students)
    prompts = load_prompts(plan.prompts, plan.output_format)
    rows = list(preference_rows(kept, rejected, catalog=plan.catalog, prompts=prompts, validation=plan.validation))
    if not rows:
        raise UserError(
            f"No pair was written: no combination of the data set in {folder} has a decided text without full marks.",
            hint="With generations above 1, a combination has several texts.",
        )
    write_rows_file(file, rows)
    return WrittenPreferences(file, len(rows))


def _refuse_step_folder(output: Path) -> None:
    """Refuse the folder of a step's data set, which only that step may replace, since later steps depend on it."""
    step = output.resolve().parent
    if output.name == "dataset" and Run(step.parent).experiment_file.is_file():
        raise UserError(
            f"{output} holds the data set of step {step.name} of the run {step.parent.name}.",
            hint="Choose another --output.",
        )


def _common_catalog(runs: Sequence[Run]) -> Catalog:
    hashes = {str(run.document.get("catalog_hash")) for run in runs}
    if len(hashes) > 1:
        raise UserError(
            f"The runs {', '.join(run.name for run in runs)} use different catalogues.",
            hint="Make a data set from each.",
        )
    return runs[0].catalog.member(None)


def _kept_of_run(run: Run, wanted: FromRuns, left: LeftOut) -> tuple[Sequence[KeptText], LeftOut]:
    """The texts of a run with full marks in key order, and the counts of all other texts."""
    rules = decision_rules(run, graders=wanted.graders)
    unknown = sorted(set(wanted.graders or ()) - set(rules.names))
    if unknown or not rules.graders:
        raise UserError(
            f"The run {run.name} has no grader {unknown[0]!r}." if unknown else f"The run {run.name} has no grades.",
            hint=name_hint(
                unknown[0] if unknown else "",
                rules.names,
                otherwise="`skillmix grade` grades the texts of a run; `skillmix export RUN --what votes` lists the "
                "graders.",
            ),
        )
    kinds, decided, kept = Counter[str](), Counter[str](), list[KeptText]()
    writers, names = writers_of(run.name, run.experiment), tuple(rules.names)
    for one in decided_conversations(rules, students=wanted.students):
        kind = kind_of(one)
        kinds[kind] += 1
        decided.update(name for name, d in zip(names, one.decisions, strict=False) if d.earned is not None)
        if kind == "full":
            kept.append(kept_text(one, writers, names))
    total = kinds.total()
    if kinds["undecided"] == total - kinds["unfinished"] - kinds["no turns"] > 0:
        shown = ", ".join(f"{name} decided {decided[name]} of {total} texts" for name in names)
        raise UserError(f"The run {run.name} has no grades: {shown}.", hint="Grade it first: skillmix grade.")
    left = replace(
        left,
        undecided=left.undecided + kinds["undecided"],
        unfinished=left.unfinished + kinds["unfinished"],
        not_conversations=left.not_conversations + kinds["no turns"],
        less=left.less + kinds["less"],
    )
    return kept, left
