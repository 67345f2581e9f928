"""Commands about a catalog: `catalog`, `combinations`, `novelty` and `frequency`."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skillmix.commands import shared as cli
from skillmix.errors import LOG
from skillmix.render import are, expectation, markdown_table, plural, wrapped

if TYPE_CHECKING:
    from skillmix.catalog.catalog import Catalog, Partition, Setting
    from skillmix.catalog.combinations import Draw, Purpose

_UNITS: Final = ("sentence", "passage")


@cli.command("catalog", *cli.CATALOG, cli.PARTITION, cli.TRUST)
def catalog(options: argparse.Namespace) -> int:
    """Show the skills, topics and partitions of a catalog."""
    from skillmix.catalog.files import load_catalog
    from skillmix.checkers.registry import checker_of

    loaded = load_catalog(cli.catalog_name(options))
    only = loaded.partition(options.partition) if options.partition else None
    if not options.json:
        print(_catalog_page(loaded) if only is None else _partition_page(only))
        return 0
    partitions: dict[str, dict[str, object]] = {}
    for partition in (*loaded.partitions, *([only] if only else [])):
        sides = {name: partition.side(name) for name in partition.settings if name != "all"}
        partitions[partition.name] = {
            name: {"skills": side.skills, "topics": side.topics}
            | ({} if side.one is None else {"one": [skill for skill in side.skills if skill in side.one]})
            for name, side in sides.items()
        }
    skills = [
        {
            "name": skill.name,
            "category": skill.category,
            "definition": skill.definition,
            "example": skill.example,
            "checkable": checker_of(skill.name) is not None,
            "figure": skill.figure,
            "word": skill.word,
        }
        for skill in loaded.skills
    ]
    entailed = [asdict(pair) for pair in loaded.entailed]
    document = {"skills": skills, "topics": loaded.topics, "partitions": partitions, "entailed": entailed}
    return cli.print_json({**document, "woven": loaded.woven})


def _catalog_page(catalog: "Catalog") -> str:
    """Format the skills by category, the partitions and the topics for a terminal."""
    from skillmix.catalog.files import shipped_catalogs

    categories = sorted({skill.category for skill in catalog.skills})
    figures = f" ({plural(len(catalog.figures), 'figure')})" if catalog.figures else ""
    skills, topics = plural(len(catalog.skills), "skill"), plural(len(catalog.topics), "topic")
    parts = [f"{catalog.name}: {skills}{figures} in {len(categories)} categories, {topics}"]
    words: dict[str, list[str]] = {}
    for skill in catalog.skills:
        if skill.figure and skill.word:
            words.setdefault(skill.figure, []).append(skill.word)
    for category in categories:
        lines = [f"{category}:"]
        for skill in catalog.skills:
            others = words.get(skill.figure or "", [skill.word])
            if skill.category == category and others[0] == skill.word:  # list each figure once, with all its words
                also = f" (and with {', '.join(map(str, others[1:]))})" if others[1:] else ""
                lines.append("  " + wrapped(f"{skill.name}{also}: {' '.join(skill.definition.split())}", indent=6))
        parts.append("\n".join(lines))
    rows = [
        [p.name, *(str(len(x)) for x in (p.train.skills, p.held_out.skills, p.train.topics, p.held_out.topics))]
        for p in catalog.partitions
    ]
    header = ["partition", "train skills", "held-out skills", "train topics", "held-out topics"]
    parts.append(markdown_table(header, rows, right=frozenset({1, 2, 3, 4})))
    for partition in catalog.partitions:
        drawn = partition.side("all").skills
        names = [skill.name for skill in catalog.skills if skill.name not in drawn]
        if names:
            parts.append(
                wrapped(f"Never drawn, because no group of {partition.name} contains them: {', '.join(names)}.")
            )
    if catalog.entailed:
        pairs = [
            [pair.skill, pair.brings, f"{pair.with_both} of {pair.texts}", pair.source] for pair in catalog.entailed
        ]
        table = markdown_table(["skill", "usually brings", "texts", "source"], pairs, right=frozenset({2}))
        parts.append(f"Pairs that are never drawn together:\n\n{table}")
    lists = ", ".join(catalog.exclude) or "none"
    parts.append(wrapped(f"Default partition: {catalog.default_partition}. Exclude lists: {lists}."))
    parts.append(wrapped(f"Topics: {'; '.join(catalog.topics)}", indent=2))
    parts.append(f"Shipped catalogs: {', '.join(shipped_catalogs())}")
    return "\n\n".join(parts)


def _partition_page(partition: "Partition") -> str:
    """Format the skills and topics of each group for a terminal."""
    parts = [f"Partition {partition.name}"]
    for name in partition.settings:
        side = partition.side(name)
        ones = [skill for skill in side.skills if skill in (side.one or ())]
        lines = [f"{name}: {plural(len(side.skills), 'skill')}, {plural(len(side.topics), 'topic')}"]
        if name != "all":
            lines += [f"Exactly one of: {'; '.join(ones)}"] if ones else []
            lines.append(f"{'Others' if ones else 'Skills'}: {'; '.join(s for s in side.skills if s not in ones)}")
            lines.append(f"Topics: {'; '.join(side.topics)}")
        parts.append("\n  ".join(wrapped(line, indent=4) for line in lines))
    return "\n\n".join(parts)


@cli.command(
    "combinations",
    *cli.CATALOG,
    cli.option("--setting", "train, held-out, all (default) or another group", default="all", metavar="GROUP"),
    cli.option("--k", "number of skills in a combination", type=cli.integer, required=True),
    cli.option("--n", "number of combinations (default: 10)", type=cli.not_negative, default=10),
    cli.SEED,
    cli.PARTITION,
    cli.EXCLUDE,
    cli.option(
        "--purpose",
        "evaluation (default) or training; draws for different purposes never overlap",
        choices=("evaluation", "training"),
        default="evaluation",
    ),
    cli.flag("--ladder", "extend each combination of k - 1 skills by one skill"),
)
def combinations(options: argparse.Namespace) -> int:
    """Draw combinations of k skills and a topic."""
    from skillmix.catalog.combinations import draw_combinations, draw_ladder

    draw = cli.taken(options, "setting", "k", "seed", "partition", "exclude", "purpose")
    wanted = wanted_draw(cli.catalog_name(options), **draw)
    drawn = draw_ladder(wanted, options.n) if options.ladder else draw_combinations(wanted, options.n)
    if options.json:
        return cli.print_json([{"id": c.id, "k": c.k, "skills": c.skills, "topic": c.topic} for c in drawn])
    for combination in drawn:
        print(wrapped(f"{combination.id}  {combination.topic}: {'; '.join(combination.skills)}", indent=18))
    return 0


def wanted_draw(
    name: str,
    setting: "Setting",
    *,
    k: int,
    seed: int,
    partition: str | None = None,
    exclude: str = "",
    purpose: "Purpose" = "evaluation",
) -> "Draw":
    """Build the draw that the options describe; `exclude` names skills and exclude lists, separated by semicolons."""
    from skillmix.catalog.combinations import Draw, training_draw
    from skillmix.catalog.files import load_catalog
    from skillmix.files import with_listed_skills

    catalog = load_catalog(name)
    pools = catalog.pools(partition=partition, exclude=with_listed_skills(cli.listed_names(exclude)))
    catalog.partition(partition).side(setting)  # reject an unknown name
    spec = Draw(side=dict(pools)[setting], setting=setting, k=k, seed=seed)
    return training_draw(spec, pools) if purpose == "training" else spec


@cli.command(
    "novelty",
    cli.option("--k", "number of skills in a combination", type=cli.integer, required=True),
    cli.option("--tokens", "size of the corpus, such as 2e12", type=cli.real, required=True, metavar="N"),
    cli.option("--skill-frequency", "largest share of sentences that show one skill", type=cli.real, metavar="P"),
    cli.option("--topic-frequency", "largest share of sentences on one topic", type=cli.real, metavar="P"),
    cli.option("--sentences-per-token", "sentences per token of the corpus", type=cli.real, metavar="R"),
    cli.group(
        "frequencies measured by `skillmix frequency`",
        cli.option("--frequencies", "frequencies.json of a run", type=Path, metavar="FILE.json"),
        cli.EXCLUDE,
        cli.option(
            "--unit",
            "unit in which all k skills must occur (default: sentence)",
            choices=_UNITS,
            default="sentence",
        ),
    ),
)
def novelty(options: argparse.Namespace) -> int:
    """Bound how often a combination is expected in a corpus."""
    from skillmix.catalog import novelty as bounds
    from skillmix.frequencies.frequency_file import load_result, upper_shares

    inputs = bounds.NoveltyInputs(**cli.given(options, "skill_frequency", "topic_frequency", "sentences_per_token"))
    document: dict[str, object]
    if options.frequencies is None:
        cli.reject(options, ("exclude", "unit"), "without --frequencies", hint="Add --frequencies FILE.json.")
        bound = bounds.novelty(options.k, options.tokens, inputs)
        occurrences, third, assumptions = bound.expected_occurrences, bound.a_third_new_above, list(bounds.ASSUMPTIONS)
        document = {**asdict(bound), "inputs": asdict(inputs)}
        about = (
            f"is an upper bound on how often one combination of {plural(bound.k, 'skill')} and a topic is expected "
            f"in a corpus of {bound.tokens:.3g} tokens."
        )
        facts = [
            f"Inputs: skill frequency {inputs.skill_frequency:g}, topic frequency {inputs.topic_frequency:g}, "
            f"{bound.sentences:.3g} sentences."
        ]
    else:
        cli.reject(options, ("skill_frequency",), "with --frequencies", hint="The file has a frequency for each skill.")
        result = load_result(options.frequencies)
        shares = upper_shares(result, exclude=cli.listed_names(options.exclude))
        sizes = {"sentences_per_passage": result.sentences_per_passage, "unit": options.unit, "inputs": inputs}
        measured = bounds.measured_novelty(options.k, options.tokens, list(shares.values()), **sizes)
        occurrences, third = measured.mean_occurrences, measured.a_third_new_above
        assumptions = [*bounds.MEASURED_ASSUMPTIONS, *[bounds.SENTENCE_ASSUMPTION] * (options.unit == "sentence")]
        used = {"topic_frequency": inputs.topic_frequency, "sentences_per_token": inputs.sentences_per_token}
        used["sentences_per_passage"] = result.sentences_per_passage
        document = {**asdict(measured), "inputs": used, "shares": shares}
        about = (
            f"is an upper bound on how often a combination of {plural(measured.k, 'skill')} and a topic is expected in "
            f"a {measured.unit} of a corpus of {measured.tokens:.3g} tokens, averaged over all combinations of "
            f"{measured.skills} skills."
        )
        facts = [
            f"For the combination of the most common skills, the bound is {expectation(measured.most_occurrences)}.",
            f"The corpus has {measured.units:.3g} {measured.unit}s.",
        ]
    if options.json:
        return cli.print_json({**document, "assumptions": assumptions})
    # Say what the bound implies for a Full Marks ratio.
    meaning = "No ratio exceeds 1, so at this k the bound says nothing about new texts."
    if occurrences < 1:
        meaning = (
            "A Full Marks ratio above this bound implies that some texts are not from the corpus; a ratio above "
            f"{expectation(third)} implies that more than a third are not."
        )
    listed = [f"- {assumption}" for assumption in assumptions]
    print(wrapped("\n".join([expectation(occurrences), about, meaning, *facts, "Assumptions:", *listed]), indent=2))
    return 0


@cli.command(
    "frequency",
    cli.TRUST,
    cli.CATALOG_OPTION,
    cli.option(
        "--corpus",
        "text, JSON Lines and Parquet files, or folders",
        type=Path,
        nargs="+",
        required=True,
        metavar="PATH",
    ),
    cli.option("--grader", "a model, or rules: to grade by code", required=True, metavar="SPEC"),
    cli.option("--n", "number of passages (default: 1000)", type=cli.positive, default=1000),
    cli.SEED,
    cli.option("--words", "words per passage (default: 100)", type=cli.positive, default=100, metavar="N"),
    cli.option("--field", "key of a record's text, such as a.b (default: text)", default="text", metavar="KEY"),
    cli.option("--skills-per-call", "skills per call (default: 20)", type=cli.positive, default=20, metavar="N"),
    cli.option(
        "--threshold",
        "share at or above which a skill is common (default: 0.05)",
        type=cli.above_zero,
        default=0.05,
    ),
    cli.option("--run", "run that stores the calls and the result (default: frequency)", default="frequency"),
    cli.option("--exclude-list", "also write the exclude list to this file", type=Path, metavar="FILE"),
    cli.option("--readers", "processes that read the corpus", type=cli.positive, metavar="N"),
    cli.group(
        "with a model",
        cli.option("--prompt", "file with your own prompt", type=Path, metavar="FILE"),
        *cli.CALLS,
        cli.PRICES,
        cli.DRY_RUN,
    ),
)
def frequency(options: argparse.Namespace) -> int:
    """Measure the frequency of each skill of a catalog in a corpus. Rerun the same command to continue."""
    from skillmix.frequencies.counting import FrequencyWanted, count_skills, estimate_counting
    from skillmix.frequencies.frequency_file import LIST_FILE, result_lines, result_table

    wanted = FrequencyWanted(
        corpus=tuple(options.corpus),
        grader={"model": options.grader, **cli.given(options, "temperature", "max_tokens", "concurrency", "key")},
        text_field=options.field,
        list_file=options.exclude_list,
        **cli.taken(
            options, "catalog", "n", "seed", "words", "skills_per_call", "threshold", "run", "prompt", "prices"
        ),
        **cli.taken(options, "max_usd", "readers"),
    )
    if options.dry_run:
        estimate = estimate_counting(wanted)
        if options.json:
            return cli.print_json(asdict(estimate))
        passages, calls = plural(estimate.passages, "passage"), plural(estimate.calls, "call")
        tokens = f"{plural(estimate.input_tokens, 'token')} in and {estimate.output_tokens:,} out"
        cost = "unknown" if estimate.cost_usd is None else f"{estimate.cost_usd:.2f}"
        print(f"{passages}, {calls}, about {tokens}, {cost} US dollars")
        return 0
    counted = count_skills(wanted)
    signal_status = cli.say_why_stopped(counted.counts.stopped, counted.run.path, counted.counts.failed)
    if signal_status is not None:
        return signal_status
    result = counted.result
    if options.json:
        cli.print_json(result.as_json())
    else:
        print(result_table(result) + "\n")
        print("\n".join(wrapped(line) for line in result_lines(result)))
    sys.stdout.flush()
    for reason, count in result.corpus["skipped"].items():
        LOG.warning(f"corpus: {count:,} {reason}")
    if result.unknown:
        LOG.warning(f"unknown: {are(result.unknown, 'answer')} missing or unparseable")
    LOG.info(f"next: to exclude the common skills, set exclude: [file:{counted.run.path / LIST_FILE}]")
    return 0 if counted.is_complete else 1
