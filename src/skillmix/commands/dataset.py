"""`skillmix dataset`: run the dataset steps of an experiment, or make one data set from runs."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from skillmix.commands.run import CHANGES, ON, STEP, run
from skillmix.commands.shared import command, flag, group, option, positive, print_json, taken
from skillmix.errors import LOG, UserError
from skillmix.render import plural

if TYPE_CHECKING:
    from skillmix.experiment.recipes import DataRecipe


@command(
    "dataset",
    option("sources", "an experiment, or runs", nargs="+", metavar="EXPERIMENT.yaml | RUN …"),
    group("with an experiment", STEP, *CHANGES, ON),
    group(
        "with runs",
        option("--recipe", "D(1), D(1,2), … or ablation; excludes every text that the recipe forbids"),
        option("--k", "all texts with these numbers of skills; a leak is an error", type=positive, nargs="+"),
        option("--skills", "skills of k = 1 (default: all in a recipe, else train)", choices=("train", "all")),
        option("--size", "number of texts; a larger set contains the smaller one", type=positive),
        option("--shares", "proportions of each k in the set, such as 1=1,2=3", metavar="K=PART,…", default=""),
        option("--graders", "graders that must all give full marks (default: all)", nargs="+", metavar="NAME"),
        option("--writers", "only texts of these students", nargs="+", metavar="NAME"),
        option("--prompts", "prompt set of the training prompts (default: the first run's)", metavar="DIR"),
        option("--partition", "partition that determines the held-out skills and topics (default: the first run's)"),
        option("--evaluations", "file of combinations to exclude", nargs="+", default=[], metavar="FILE"),
        option(
            "--names",
            "texts that name held-out skills: report them, or fail (default: list)",
            choices=("list", "strict"),
            default="list",
        ),
        option(
            "--shown",
            "texts that show a reserved pair or two held-out skills: fail, exclude them or report them "
            "(default: the first run's)",
            choices=("refuse", "drop", "count"),
        ),
        flag("--only-requested", "exclude texts that show a skill that was not requested"),
        option("--reserved", "share of the skill sets to exclude (default 0.2)", type=float, default=0.2),
        option(
            "--near-duplicates",
            "overlap that makes a text a copy (default 0.7); 0: only exact copies",
            type=float,
            default=0.7,
        ),
        option("--validation", "share of the combinations for validation (default 0.05)", type=float, default=0.05),
        option(
            "--preferences",
            "also write pairs of texts with and without full marks to FILE.jsonl or FILE.parquet, for DPO",
            type=Path,
            metavar="FILE",
        ),
        option("--output", "default: dataset/ in the first run's folder", type=Path, metavar="DIR"),
    ),
    stage="dataset",
)
def dataset(options: argparse.Namespace) -> int:
    """Collect conversations with full marks as training data, from an experiment's dataset steps or from runs."""
    if any(source.endswith((".yaml", ".yml")) for source in options.sources):
        if len(options.sources) > 1:
            raise UserError(
                f"{len(options.sources)} sources are given, one of them an experiment file.",
                hint="Give one experiment file, or only runs.",
            )
        if options.preferences is not None:
            raise UserError(
                "--preferences needs the texts of runs.",
                hint="Run the experiment first, then: skillmix dataset RUN --preferences FILE.jsonl.",
            )
        options.experiment = Path(options.sources[0])
        return run(options)
    if options.on is not None:
        raise UserError(f"--on {options.on} needs an experiment file.", hint="A data set from runs makes no calls.")
    return _dataset_of_runs(options)


def _dataset_of_runs(options: argparse.Namespace) -> int:
    from skillmix.datasets.from_runs import FromRuns, dataset_of_runs

    recipe = _recipe(options)
    for name in ("reserved", "near_duplicates", "validation"):
        if not 0 <= getattr(options, name) <= 1:
            given = f"--{name.replace('_', '-')} {getattr(options, name):g}"
            raise UserError(f"{given} is not a share.", hint="Give a number from 0 to 1.")
    written = dataset_of_runs(
        FromRuns(
            runs=options.sources,
            recipe=recipe,
            students=options.writers,
            near_duplicates=options.near_duplicates or None,
            **taken(options, "graders", "prompts", "partition", "evaluations", "names", "reserved", "validation"),
            **taken(options, "shown", "only_requested", "output", "preferences"),
        )
    )
    left = written.left
    counts = {
        "with less than full marks": left.less,
        "undecided: votes are missing or unparseable": left.undecided,
        "of unfinished conversations": left.unfinished,
        "without all turns of a conversation": left.not_conversations,
        **{f"outside of {recipe.name}: {why}": count for why, count in left.outside.items()},
        **{f"left out: {why}": count for why, count in {**left.removed, **left.shown}.items()},
    }
    for why, count in counts.items():
        if count:
            LOG.warning(f"{plural(count, 'text')} {why}")
    if options.json:
        print_json(written.as_json())
    else:
        print(written.folder)
        if written.preferences is not None:
            print(written.preferences.file)
            LOG.info(f"{plural(written.preferences.pairs, 'pair')} of texts in {written.preferences.file}")
    return 1 if left.undecided or left.unfinished else 0


def _recipe(options: argparse.Namespace) -> "DataRecipe":
    """Make the recipe from `--recipe`, or from `--k`, `--size` and `--shares`."""
    from skillmix.experiment.recipes import plain_recipe, recipe_named

    if options.recipe and (options.k or options.shares):
        raise UserError(
            f"The recipe {options.recipe} already determines k.",
            hint="Give either --recipe, or --k with --shares.",
        )
    if options.recipe:
        return recipe_named(options.recipe, size=options.size, skills=options.skills)
    form = "Write K=PART,K=PART, such as 1=1,2=3."
    try:
        pairs = [part.split("=") for part in options.shares.split(",") if part.strip()]
        shares = {int(k): float(part) for k, part in pairs}
    except ValueError:
        raise UserError(f"--shares {options.shares!r} is not a list of K=PART.", hint=form) from None
    if any(k < 1 or not 0 < part < float("inf") for k, part in shares.items()):
        raise UserError(f"--shares {options.shares!r} has a k below 1, or a part that is not above 0.", hint=form)
    ks = options.k or sorted(shares)
    if shares and (options.size is None or set(ks) != set(shares)):
        raise UserError(
            f"--shares {options.shares!r} needs --size, and one part for each k.",
            hint="For example: --size 1000 --shares 1=1,2=3.",
        )
    return plain_recipe(ks, size=options.size, skills=options.skills, shares=shares)
