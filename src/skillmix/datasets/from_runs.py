"""Make data sets of conversations with full marks, from an experiment's steps or from runs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from skillmix.datasets.build import (
    DATASET,
    WrittenDataset,
    WrittenPreferences,
    kept_text,
    kind_of,
    make_dataset,
    written_with,
)
from skillmix.datasets.card import LeftOut
from skillmix.datasets.copies import CopyFound, KeptText, TextsSoFar
from skillmix.datasets.dataset_plan import DatasetPlan
from skillmix.datasets.decisions import Decisions
from skillmix.datasets.leakage import RESERVED_SET, Bars, bars_for, combinations_in, evaluated
from skillmix.datasets.other_forms import preference_rows, require_new_rows_file, write_rows_file
from skillmix.datasets.row_files import read_rows
from skillmix.datasets.window import DatasetWriting
from skillmix.errors import UserError
from skillmix.experiment.plan import place_of
from skillmix.experiment.recipes import DataRecipe, ShownMode
from skillmix.experiment.step_base import student_name
from skillmix.experiment.steps import DatasetStep
from skillmix.files import own_or_shipped, require_package, require_replaceable
from skillmix.render import name_hint
from skillmix.runs.calling import StepContext
from skillmix.runs.run import Run, open_run
from skillmix.runs.scheduler import CallCounts, StopReason, signal_of
from skillmix.runs.students import settings_for


async def work_on_dataset(step: DatasetStep, context: StepContext, counts: CallCounts) -> WrittenDataset | None:
    """Run a dataset step; return None if it stopped before it could write its data set."""
    require_package("pyarrow", "A data set", extra="parquet")
    plan = plan_of(step, context)
    folder = context.run.step(step.name) / "dataset"
    require_replaceable(folder, DATASET)
    if step.writer is None:  # join the texts of earlier steps, including each text once
        rows = (text for name in step.of for text in read_rows(context.run.step(name) / "dataset"))
        return _made(list({text.provenance: text for text in rows}.values()), plan, folder, LeftOut())
    writing = DatasetWriting(step, context, plan, counts)
    await writing.run()
    is_left = signal_of(counts.stopped) is not None or counts.stopped is StopReason.BATCHES
    if is_left or writing.is_broken:
        return None
    texts = writing.texts
    return make_dataset(texts.texts, plan, folder, left=writing.left, corpus=texts.corpus, yields=writing.yields)


def plan_of(step: DatasetStep, context: StepContext) -> DatasetPlan:
    """Return the plan of a dataset step."""
    experiment = context.experiment
    writer = settings_for(experiment, student_name(step.writer)) if step.writer else None
    decoding = []
    if writer is not None:
        decoding = [f"temperature {writer.temperature:g}", f"at most {writer.max_tokens} tokens"]
        decoding += [f"top_p {writer.top_p:g}"] if writer.top_p is not None else []
        decoding += [writer.additions] if writer.additions else []
    leakage = step.leakage or experiment.leakage
    place = place_of(step, experiment, context.catalog)
    return DatasetPlan(
        name=f"{experiment.name}-{step.name}",
        recipe=step.data_recipe,
        catalog=place.catalog,
        bars=bars_for(step, experiment, context.catalog, context.run),
        names=leakage.names,
        prompts=step.prompts or experiment.prompts,
        output_format=experiment.format,
        near_duplicates=step.near_duplicates,
        keeps_exact_duplicates=step.exact_duplicates == "keep",
        keeps_example_copies=step.example_copies == "keep",
        validation=step.validation,
        decoding=(f"{step.writer}: {', '.join(decoding)}",) if decoding else (),
        copied=tuple(sorted({s.prompts or experiment.prompts for s in experiment.students.values()})),
        shown=leakage.shown,
        only_requested=step.only_requested,
        requests=step.requests,
    )


def _made(texts: Sequence[KeptText], plan: DatasetPlan, folder: Path, left: LeftOut) -> WrittenDataset:
    """Make a data set from the texts that fit the recipe, and count the other texts by reason."""
    recipe, bars = plan.recipe, plan.bars
    outside: Counter[str] = Counter()
    inside = []
    for text in texts:
        combination = text.combination
        why = bars.leak_of(combination)
        if recipe.ks and combination.k not in recipe.ks:
            why = "another k"
        elif not recipe.is_named:  # a training draw may contain reserved sets, but other leaks are errors
            why = why if why == RESERVED_SET else None
        elif recipe.skills == "train" and not bars.composes(set(combination.skills)):
            why = "a held-out skill"
        if why is None:
            inside.append(text)
        else:
            outside[why] += 1
    kept = TextsSoFar(plan.removals)
    copies = [copy for copy in kept.add(inside) if isinstance(copy, CopyFound)]
    # Checking a text takes longer than comparing it, so copies are removed before texts are checked.
    staying, dropped = plan.shown_rule.without_leaks(kept.texts)
    kept.keep_only(staying)
    removed = dict(Counter(copy.why for copy in copies))
    left = replace(left, outside=dict(outside), removed=removed, shown=dropped, examples=tuple(copies[:5]))
    return make_dataset(kept.texts, plan, folder, left=left, corpus=kept.corpus)


@dataclass(frozen=True)
class FromRuns:
    """The user's options for a data set from runs."""

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
    """How texts that show forbidden content are treated; None for the first run's setting."""
    only_requested: bool = False
    output: Path | None = None
    preferences: Path | None = None
    """The output file for pairs of a text with full marks and a text without."""


def dataset_of_runs(wanted: FromRuns) -> WrittenDataset:
    """Make a data set from the graded conversations of one or more runs."""
    require_package("pyarrow", "A data set", extra="parquet")
    if wanted.preferences is not None:
        require_new_rows_file(wanted.preferences)
    runs = list({run.path.resolve(): run for run in map(open_run, wanted.runs)}.values())
    output = wanted.output or runs[0].path / "dataset"
    step = output.resolve().parent
    if output.name == "dataset" and Run(step.parent).exists:  # later steps depend on this folder
        raise UserError(
            f"{output} contains the data set of step {step.name} of the run {step.parent.name}.",
            hint="Choose another --output.",
        )
    require_replaceable(output, DATASET)
    if named := [run.name for run in runs if run.has_outcomes]:
        raise UserError(
            f"The graders of {', '.join(named)} give outcomes instead of points, so no text has full marks.",
            hint="Use runs whose graders give points.",
        )
    formats = {run.experiment.format: run.name for run in runs}
    if len(formats) > 1:
        shown = ", ".join(f"{name} {form or 'without a format'}" for form, name in formats.items())
        raise UserError(
            f"The runs have different output formats: {shown}.", hint="Make a separate data set from each run."
        )
    if len({str(run.document.get("catalog_hash")) for run in runs}) > 1:
        raise UserError(
            f"The runs {', '.join(run.name for run in runs)} use different catalogs.",
            hint="Make a separate data set from each run.",
        )
    catalog = runs[0].catalog.member(None)
    own = [run for run in runs if not run.is_imported]
    experiments = [run.experiment for run in own]
    partition = wanted.partition or next((e.partition for e in experiments), None)
    ids = {i: step for run in own for i, step in evaluated(run.experiment, catalog, run.excluded).items()}
    files = [*wanted.evaluations, *(name for e in experiments for name in e.leakage.evaluations)]
    ids |= {i: name for name in files for i in combinations_in(own_or_shipped(name))}
    reserved = max([wanted.reserved, *(e.leakage.reserved for e in experiments)])
    kinds: Counter[str] = Counter()
    texts = [text for run in runs for text in _kept_of_run(run, wanted, kinds)]
    plan = DatasetPlan(
        name="-".join(run.name for run in runs),
        recipe=wanted.recipe,
        catalog=catalog,
        bars=Bars(catalog.partition(partition), ids, reserved),
        names=wanted.names,
        prompts=wanted.prompts or next((e.prompts for e in experiments), "standard"),
        output_format=runs[0].experiment.format,
        near_duplicates=wanted.near_duplicates,
        validation=wanted.validation,
        copied=tuple(sorted({s.prompts or e.prompts for e in experiments for s in e.students.values()})),
        shown=wanted.shown or (experiments[0].leakage.shown if experiments else "drop"),
        only_requested=wanted.only_requested,
    )
    left = LeftOut(
        undecided=kinds["undecided"],
        unfinished=kinds["unfinished"],
        not_conversations=kinds["no turns"],
        less=kinds["less"],
    )
    written = _made(texts, plan, output, left)
    if wanted.preferences is None:
        return written
    return replace(written, preferences=_write_preferences(wanted, wanted.preferences, runs, plan, output))


def _write_preferences(
    wanted: FromRuns, file: Path, runs: Sequence[Run], plan: DatasetPlan, folder: Path
) -> WrittenPreferences:
    """Write the preference pairs for the combinations in a newly written data set."""
    rows = list(preference_rows(folder, runs, plan, graders=wanted.graders, students=wanted.students))
    if not rows:
        raise UserError(
            f"No pair was written: no combination of the data set in {folder} has a graded text without full marks.",
            hint="Set generations above 1, so that a combination has several texts.",
        )
    write_rows_file(file, rows)
    return WrittenPreferences(file, len(rows))


def _kept_of_run(run: Run, wanted: FromRuns, kinds: Counter[str]) -> Sequence[KeptText]:
    """Return a run's texts with full marks in key order, and count all its texts by kind."""
    own, decided, kept = Counter[str](), Counter[str](), list[KeptText]()
    with Decisions(run, graders=wanted.graders) as decisions:
        names = tuple(decisions.names)
        unknown = sorted(set(wanted.graders or ()) - set(names))
        if unknown or not names:
            raise UserError(
                f"The run {run.name} has no grader {unknown[0]!r}."
                if unknown
                else f"The run {run.name} has no grades.",
                hint=name_hint(
                    unknown[0] if unknown else "",
                    names,
                    otherwise="`skillmix grade` grades the texts of a run; `skillmix export RUN --what votes` lists "
                    "the graders.",
                ),
            )
        prompts, own_name = written_with(run.experiment), run.name
        for one in decisions.every(students=wanted.students):
            kind = kind_of(one)
            own[kind] += 1
            decided.update(name for name, earned in zip(names, one.earned, strict=False) if earned is not None)
            if kind == "full":
                kept.append(kept_text(one, own_name, prompts, names))
    total = own.total()
    if own["undecided"] == total - own["unfinished"] - own["no turns"] > 0:
        shown = ", ".join(f"{name} decided {decided[name]} of {total} texts" for name in names)
        raise UserError(f"The run {run.name} has no grades: {shown}.", hint="Grade the run first: skillmix grade.")
    kinds.update(own)
    return kept
