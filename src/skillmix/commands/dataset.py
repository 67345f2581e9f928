"""`skillmix dataset`: run the dataset steps of an experiment, or build a data set from the texts of runs."""

import argparse
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Final

from skillmix.commands import shared as cli
from skillmix.commands.run import CHANGES, ON, STEP, run
from skillmix.errors import LOG, UserError
from skillmix.render import plural

_FRACTION: Final = {"type": cli.fraction, "metavar": "SHARE"}
_OF_RUNS: Final = (
    *("recipe", "k", "skills", "size", "shares", "graders", "writers", "prompts", "partition", "evaluations", "names"),
    *("shown", "only_requested", "reserved", "near_duplicates", "validation", "preferences", "output"),
)
"""The options that apply to runs, but not to an experiment file."""


def parsed_shares(text: str) -> dict[int, float]:
    """Parse the value of `--shares`."""
    with suppress(ValueError):
        shares = {int(k): float(part) for k, part in (pair.split("=") for pair in text.split(","))}
        if all(k >= 1 and 0 < part < inf for k, part in shares.items()):
            return shares
    raise argparse.ArgumentTypeError(f"{text!r} is not a list of K=PART such as 1=1,2=3")


@cli.command(
    "dataset",
    cli.option("sources", "an experiment file, or runs", nargs="+", metavar="EXPERIMENT.yaml | RUN …"),
    cli.group("with an experiment", STEP, *CHANGES, ON),
    cli.group(
        "with runs",
        cli.option("--recipe", "D(1), D(1,2), … or ablation; excludes texts that the recipe forbids", metavar="NAME"),
        cli.option("--k", "only texts with these numbers of skills; a leak is an error", type=cli.positive, nargs="+"),
        cli.option("--skills", "skills at k = 1 (default: all with --recipe, else train)", choices=("train", "all")),
        cli.option("--size", "number of texts; a larger set contains the smaller one", type=cli.positive, metavar="N"),
        cli.option(
            "--shares", "relative weight of each k; needs --size", type=parsed_shares, metavar="K=PART,…", default={}
        ),
        cli.option("--graders", "graders that must all give full marks (default: all)", nargs="+", metavar="NAME"),
        cli.option("--writers", "only texts by these students", nargs="+", metavar="NAME"),
        cli.option("--prompts", "prompt set of the rows (default: the first run's)", metavar="DIR"),
        cli.option("--partition", "partition into train and held-out (default: the first run's)", metavar="NAME"),
        cli.option("--evaluations", "files with combinations to exclude", nargs="+", default=[], metavar="FILE"),
        cli.option(
            "--names",
            "texts that name a held-out skill: list them (default), or fail (strict)",
            choices=("list", "strict"),
            default="list",
        ),
        cli.option(
            "--shown",
            "texts that show a reserved pair or two held-out skills: fail (refuse), exclude (drop) or count them "
            "(default: the first run's setting)",
            choices=("refuse", "drop", "count"),
        ),
        cli.flag("--only-requested", "exclude texts that show a skill that was not requested"),
        cli.option("--reserved", "share of skill sets to exclude (default: 0.2)", default=0.2, **_FRACTION),
        cli.option(
            "--near-duplicates",
            "overlap at which a text counts as a copy (default: 0.7); 0 excludes only exact copies",
            default=0.7,
            **_FRACTION,
        ),
        cli.option("--validation", "share of combinations for validation (default: 0.05)", default=0.05, **_FRACTION),
        cli.option("--preferences", "also write pairs for DPO (.jsonl or .parquet)", type=Path, metavar="FILE"),
        cli.option("--output", "output folder (default: dataset/ in the first run's folder)", type=Path, metavar="DIR"),
    ),
    stage="dataset",
    wait=None,
    no_wait=False,
    forget_batches=False,
)
def dataset(options: argparse.Namespace) -> int:
    """Collect conversations with full marks as training data, from an experiment's dataset steps or from runs."""
    if any(source.endswith((".yaml", ".yml")) for source in options.sources):
        if len(options.sources) > 1:
            raise UserError("An experiment file cannot be combined with other sources.", hint="Give only the file.")
        hint = "Set these values in the file, or run the experiment first and then give the run instead of the file."
        cli.reject(options, _OF_RUNS, "with an experiment file", hint=hint)
        options.experiment = Path(options.sources[0])
        return run(options)
    from skillmix.datasets.from_runs import FromRuns, dataset_of_runs
    from skillmix.experiment.recipes import plain_recipe, recipe_named

    hint = "These options apply to the steps of an experiment; give a file that ends in .yaml."
    cli.reject(options, ("step", "set", "dry_run", "wide", "prices", "on"), "with runs", hint=hint)
    if options.recipe:
        cli.reject(options, ("k", "shares"), "with --recipe", hint="The recipe determines them.")
        recipe = recipe_named(options.recipe, size=options.size, skills=options.skills)
    else:
        ks = options.k or sorted(options.shares)
        if options.shares and (options.size is None or set(ks) != set(options.shares)):
            raise UserError(
                "--shares needs --size, and one part for each k.", hint="For example: --size 1000 --shares 1=1,2=3"
            )
        recipe = plain_recipe(ks, size=options.size, skills=options.skills, shares=options.shares)
    written = dataset_of_runs(
        FromRuns(
            runs=options.sources,
            recipe=recipe,
            students=options.writers,
            near_duplicates=options.near_duplicates or None,
            **cli.taken(options, "graders", "prompts", "partition", "evaluations", "names", "reserved", "validation"),
            **cli.taken(options, "shown", "only_requested", "output", "preferences"),
        )
    )
    left = written.left
    counts = {
        "with less than full marks": left.less,
        "undecided, because votes are missing or unparseable": left.undecided,
        "from unfinished conversations": left.unfinished,
        "without all turns of the conversation": left.not_conversations,
        **{f"outside {recipe.name}: {why}": count for why, count in left.outside.items()},
        **{f"left out: {why}": count for why, count in {**left.removed, **left.shown}.items()},
    }
    for why, count in counts.items():
        if count:
            LOG.warning(f"{plural(count, 'text')} {why}")
    if options.json:
        cli.print_json(written.as_json())
    else:
        print(written.folder)
        if written.preferences is not None:
            print(written.preferences.file)
            LOG.info(f"{plural(written.preferences.pairs, 'pair')} of texts in {written.preferences.file}")
    return 1 if left.undecided or left.unfinished else 0
