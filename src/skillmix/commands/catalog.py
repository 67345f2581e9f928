"""Commands about a catalog: `catalog`, `combinations`, `novelty` and `frequency`."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillmix.commands.shared import (
    Commands,
    above_zero,
    add_catalog_options,
    add_command,
    add_trust_option,
    catalog_name,
    listed_names,
    positive,
    print_json,
)
from skillmix.errors import LOG, UserError
from skillmix.render import are, plural, wrapped

if TYPE_CHECKING:
    from skillmix.catalog.catalog import Catalog, Partition, Setting, Side
    from skillmix.catalog.combinations import Combination, Draw, Purpose
    from skillmix.catalog.novelty import MeasuredNovelty, Novelty, NoveltyInputs
    from skillmix.frequencies.counting import Counted, FrequencyWanted


_PARTITION_HELP = "a name, or random-skills:SEED, random-categories:SEED, nested:SEED"


def add_parsers(commands: Commands) -> None:
    """Add the commands `catalog`, `combinations`, `novelty` and `frequency`."""
    parser = add_command(commands, "catalog", catalog)
    add_catalog_options(parser)
    parser.add_argument("--partition", help=f"show its groups: {_PARTITION_HELP}")
    add_trust_option(parser)

    parser = add_command(commands, "combinations", combinations)
    add_catalog_options(parser)
    parser.add_argument("--setting", metavar="GROUP", default="all", help="train, held-out, all, or another group")
    parser.add_argument("--k", type=int, required=True, help="number of skills in a combination")
    parser.add_argument("--n", type=int, default=10, help="number of combinations (default 10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--partition", help=_PARTITION_HELP)
    parser.add_argument("--exclude", default="", help='skills or exclude lists to leave out, "a; file:PATH"')
    parser.add_argument("--purpose", choices=("evaluation", "training"), default="evaluation")
    parser.add_argument(
        "--ladder", action="store_true", help="each combination adds one skill to the one drawn for k - 1"
    )

    parser = add_command(commands, "novelty", novelty)
    parser.add_argument("--k", type=int, required=True, help="number of skills in a combination")
    parser.add_argument("--tokens", type=float, required=True, help="size of the corpus, such as 2e12")
    parser.add_argument("--skill-frequency", type=float, help="largest share of sentences that show one skill")
    parser.add_argument("--topic-frequency", type=float, help="largest share of sentences on one topic")
    parser.add_argument("--sentences-per-token", type=float)
    measured = parser.add_argument_group("with the shares that `skillmix frequency` measured")
    measured.add_argument("--frequencies", type=Path, metavar="FILE.json", help="frequencies.json of a run")
    measured.add_argument("--exclude", default="", help='skills or lists to leave out, "common; a; file:PATH"')
    measured.add_argument("--unit", choices=("sentence", "passage"), default="sentence", help="where skills meet")
    _add_frequency(commands)


def _add_frequency(commands: Commands) -> None:
    parser = add_command(commands, "frequency", frequency)
    add_trust_option(parser)
    parser.add_argument("--catalog", default="paper", metavar="NAME", help="a shipped catalogue or a folder")
    parser.add_argument(
        "--corpus", type=Path, nargs="+", required=True, metavar="PATH", help="text, JSON Lines or Parquet; or folders"
    )
    parser.add_argument("--grader", required=True, metavar="SPEC", help="a model, or rules: to decide by code")
    parser.add_argument("--n", type=positive, default=1000, help="number of passages (default 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--words", type=positive, default=100, help="words of a passage (default 100)")
    parser.add_argument("--field", default="text", metavar="KEY", help="where records keep their text, such as a.b")
    parser.add_argument("--skills-per-call", type=positive, default=20, metavar="N", help="skills in a call (20)")
    parser.add_argument("--threshold", type=above_zero, default=0.05, help="share of a common skill (default 0.05)")
    parser.add_argument("--run", default="frequency", metavar="NAME", help="the run that keeps everything")
    parser.add_argument("--exclude-list", type=Path, metavar="FILE", help="also write the exclude list here")
    parser.add_argument("--readers", type=positive, metavar="N", help="processes that read the corpus")
    asking = parser.add_argument_group("how a model is asked")
    asking.add_argument("--prompt", type=Path, metavar="FILE", help="your own prompt")
    asking.add_argument("--temperature", type=float)
    asking.add_argument("--max-tokens", type=positive, metavar="N")
    asking.add_argument("--concurrency", type=positive, metavar="N")
    asking.add_argument("--key", metavar="NAME", help="the environment variable that holds the key of an address")
    asking.add_argument("--max-usd", type=above_zero, metavar="X", help="the most that all calls of the run may cost")
    asking.add_argument("--prices", type=Path, metavar="FILE", help="your own price file")
    asking.add_argument("--dry-run", action="store_true", help="print calls, tokens and cost without calling a model")


def catalog(options: argparse.Namespace) -> int:
    """Show the skills, topics and partitions of a catalogue."""
    view = show_catalog(catalog_name(options), partition=options.partition)
    if options.json:
        return print_json(view.as_json())
    print(catalog_page(view.catalog, shipped=view.shipped) if view.only is None else partition_page(view.only))
    return 0


def combinations(options: argparse.Namespace) -> int:
    """Draw combinations of skills and a topic."""
    from skillmix.catalog.combinations import draw_combinations, draw_ladder

    wanted = wanted_draw(
        catalog_name(options),
        options.setting,
        k=options.k,
        seed=options.seed,
        partition=options.partition,
        exclude=options.exclude,
        purpose=options.purpose,
    )
    drawn = draw_ladder(wanted, options.n) if options.ladder else draw_combinations(wanted, options.n)
    if options.json:
        return print_json([combination_json(combination) for combination in drawn])
    for combination in drawn:
        print(wrapped(f"{combination.id}  {combination.topic}: {'; '.join(combination.skills)}", indent=18))
    return 0


def novelty(options: argparse.Namespace) -> int:
    """Bound how often a combination can occur in a corpus."""
    from skillmix.catalog.novelty import ASSUMPTIONS, NoveltyInputs, novelty

    names = ("skill_frequency", "topic_frequency", "sentences_per_token")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    inputs = NoveltyInputs(**given)
    if options.frequencies is not None:
        if options.skill_frequency is not None:
            raise UserError("--frequencies has the frequency of each skill.", hint="Leave out --skill-frequency.")
        return _measured(options, inputs)
    if options.exclude or options.unit != "sentence":
        raise UserError("--exclude and --unit belong to --frequencies.", hint="Name a frequencies.json, too.")
    bound = novelty(options.k, options.tokens, inputs)
    if options.json:
        return print_json({**asdict(bound), "inputs": asdict(inputs), "assumptions": list(ASSUMPTIONS)})
    print(novelty_page(bound, inputs, ASSUMPTIONS))
    return 0


def _measured(options: argparse.Namespace, inputs: "NoveltyInputs") -> int:
    """Print the bound with measured shares."""
    from skillmix.catalog.novelty import MEASURED_ASSUMPTIONS, SENTENCE_ASSUMPTION, measured_novelty
    from skillmix.frequencies.frequency_file import load_result, upper_shares

    result = load_result(options.frequencies)
    shares = upper_shares(result, exclude=listed_names(options.exclude))
    bound = measured_novelty(
        options.k,
        options.tokens,
        list(shares.values()),
        sentences_per_passage=result.sentences_per_passage,
        unit=options.unit,
        inputs=inputs,
    )
    assumptions = [*MEASURED_ASSUMPTIONS, *([SENTENCE_ASSUMPTION] if options.unit == "sentence" else [])]
    if options.json:
        used = {"topic_frequency": inputs.topic_frequency, "sentences_per_token": inputs.sentences_per_token}
        used["sentences_per_passage"] = result.sentences_per_passage
        return print_json({**asdict(bound), "inputs": used, "shares": shares, "assumptions": assumptions})
    print(measured_page(bound, assumptions))
    return 0


def frequency(options: argparse.Namespace) -> int:
    """Count how common each skill of a catalogue is in a corpus; the same command again continues."""
    from skillmix.frequencies.counting import count_skills, estimate_counting

    wanted = _frequency_wanted(options)
    if options.dry_run:
        estimate = estimate_counting(wanted)
        if options.json:
            return print_json(estimate.as_json())
        cost = "unknown" if estimate.cost_usd is None else f"{estimate.cost_usd:.2f}"
        print(
            f"{plural(estimate.passages, 'passage')}, {plural(estimate.calls, 'call')}, about "
            f"{plural(estimate.input_tokens, 'token')} in and "
            f"{estimate.output_tokens:,} out, {cost} US dollars"
        )
        return 0
    counted = count_skills(wanted)
    return _show_frequencies(counted, as_json=options.json)


def _frequency_wanted(options: argparse.Namespace) -> "FrequencyWanted":
    from skillmix.frequencies.counting import FrequencyWanted

    names = ("temperature", "max_tokens", "concurrency", "key")
    grader: dict[str, Any] = {"model": options.grader}
    grader |= {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return FrequencyWanted(
        corpus=tuple(options.corpus),
        grader=grader,
        catalog=options.catalog,
        n=options.n,
        seed=options.seed,
        words=options.words,
        text_field=options.field,
        skills_per_call=options.skills_per_call,
        threshold=options.threshold,
        run=options.run,
        list_file=options.exclude_list,
        prompt=options.prompt,
        prices=options.prices,
        max_usd=options.max_usd,
        readers=options.readers,
    )


def _show_frequencies(counted: "Counted", *, as_json: bool) -> int:
    from skillmix.frequencies.frequency_file import LIST_FILE, result_lines, result_table
    from skillmix.runs.stopping import signal_of

    for key, problem in list(counted.failed.items())[:1]:
        LOG.warning(f"failed: {plural(len(counted.failed), 'call')}, such as {key}: {problem.reason}")
    stopped = counted.counts.stopped
    number = signal_of(stopped)
    if number is not None:
        LOG.warning(f"interrupted; all answers are in {counted.run.path}: run the same command to go on")
        return 128 + number
    if stopped is not None:
        LOG.warning(f"stopped: {stopped.value}; raise it and run again to go on")
    result = counted.result
    if as_json:
        print_json(result.as_json())
    else:
        print(result_table(result) + "\n")
        for line in result_lines(result):
            print(wrapped(line))
    sys.stdout.flush()
    for reason, count in result.corpus["skipped"].items():
        LOG.warning(f"corpus: {count:,} {reason}")
    if result.unknown:
        LOG.warning(f"unknown: {are(result.unknown, 'answer')} missing or cannot be read")
    LOG.info(f"exclude list: exclude: [file:{counted.run.path / LIST_FILE}]")
    return 0 if counted.is_complete else 1


@dataclass(frozen=True, slots=True)
class CatalogView:
    """A catalog, and the names of the shipped ones."""

    catalog: "Catalog"
    shipped: list[str]
    only: "Partition | None" = None
    """The partition to show."""

    def as_json(self) -> dict[str, object]:
        """The documented form of `catalog --json`."""
        from skillmix.checkers.registry import checker_of

        return {
            "skills": [
                {
                    "name": skill.name,
                    "category": skill.category,
                    "definition": skill.definition,
                    "example": skill.example,
                    "checkable": checker_of(skill.name) is not None,
                    "figure": skill.figure,
                    "word": skill.word,
                }
                for skill in self.catalog.skills
            ],
            "topics": list(self.catalog.topics),
            "partitions": {
                partition.name: {name: _side(partition.side(name)) for name in partition.settings[:-1]}
                for partition in (*self.catalog.partitions, *([self.only] if self.only else []))
            },
            "entailed": [asdict(pair) for pair in self.catalog.entailed],
            "woven": self.catalog.woven,
        }


def show_catalog(name: str, *, partition: str | None = None) -> CatalogView:
    """Load and validate a catalog, and find one of its partitions if one is named."""
    from skillmix.catalog.files import load_catalog, shipped_catalogs

    loaded = load_catalog(name)
    return CatalogView(loaded, shipped_catalogs(), loaded.partition(partition) if partition else None)


def _side(side: "Side") -> dict[str, list[str]]:
    one = {} if side.one is None else {"one": [skill for skill in side.skills if skill in side.one]}
    return {"skills": list(side.skills), "topics": list(side.topics), **one}


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
    """The draw from a catalog that options describe; `exclude` has names of skills and lists with semicolons."""
    from skillmix.catalog.combinations import Draw, training_draw
    from skillmix.catalog.files import load_catalog
    from skillmix.files import with_listed_skills

    catalog = load_catalog(name)
    pools = catalog.pools(partition=partition, exclude=with_listed_skills(listed_names(exclude)))
    catalog.partition(partition).side(setting)  # an unknown name is an error
    spec = Draw(side=dict(pools)[setting], setting=setting, k=k, seed=seed)
    return training_draw(spec, pools) if purpose == "training" else spec


def combination_json(combination: "Combination") -> dict[str, object]:
    """The documented form of an entry of `combinations --json`."""
    return {
        "id": combination.id,
        "k": combination.k,
        "skills": list(combination.skills),
        "topic": combination.topic,
    }


def catalog_page(catalog: "Catalog", *, shipped: Sequence[str]) -> str:
    """Skills by category, sizes of the partitions, and topics, for a terminal."""
    from skillmix.render import markdown_table

    categories = len({skill.category for skill in catalog.skills})
    figures = f" ({plural(len(catalog.figures), 'figure')})" if catalog.figures else ""
    skills, topics = plural(len(catalog.skills), "skill"), plural(len(catalog.topics), "topic")
    partitions = [
        [
            p.name,
            *(str(len(x)) for x in (p.train.skills, p.held_out.skills, p.train.topics, p.held_out.topics)),
        ]
        for p in catalog.partitions
    ]
    header = ["partition", "train skills", "held-out skills", "train topics", "held-out topics"]
    return "\n\n".join(
        [
            f"{catalog.name}: {skills}{figures} in {categories} categories, {topics}",
            *_skills_by_category(catalog),
            markdown_table(header, partitions, right=frozenset({1, 2, 3, 4})),
            *_never_drawn(catalog),
            *_entailed_part(catalog),
            wrapped(
                f"Default partition: {catalog.default_partition}. "
                f"Exclude lists: {', '.join(catalog.exclude) or 'none'}."
            ),
            wrapped(f"Topics: {'; '.join(catalog.topics)}", indent=2),
            f"Shipped catalogues: {', '.join(shipped)}",
        ]
    )


def partition_page(partition: "Partition") -> str:
    """The skills and the topics of every group, for a terminal."""
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


def _skills_by_category(catalog: "Catalog") -> Iterator[str]:
    """A paragraph for each category, with a line for each skill, or for the first of each figure."""
    words: dict[str, list[str]] = {}
    for skill in catalog.skills:
        if skill.figure and skill.word:
            words.setdefault(skill.figure, []).append(skill.word)
    for category in sorted({skill.category for skill in catalog.skills}):
        lines = []
        for skill in catalog.skills:
            others = words.get(skill.figure or "", [skill.word])
            if skill.category == category and others[0] == skill.word:
                also = f" (and with {', '.join(map(str, others[1:]))})" if others[1:] else ""
                lines.append(f"{skill.name}{also}: {' '.join(skill.definition.split())}")
        yield "\n".join([f"{category}:", *("  " + wrapped(line, indent=6) for line in lines)])


def _never_drawn(catalog: "Catalog") -> list[str]:
    """The skills in no group of a partition; nothing if each skill is in a group of each."""
    parts = []
    for partition in catalog.partitions:
        drawn = partition.side("all").skills
        names = [skill.name for skill in catalog.skills if skill.name not in drawn]
        if names:
            parts.append(wrapped(f"On no side of {partition.name}, and never drawn: {', '.join(names)}."))
    return parts


def _entailed_part(catalog: "Catalog") -> list[str]:
    """The pairs that draws do not combine, with their figures; nothing for a catalogue without such pairs."""
    from skillmix.render import markdown_table

    if not catalog.entailed:
        return []
    rows = [[pair.skill, pair.brings, f"{pair.with_both} of {pair.texts}", pair.source] for pair in catalog.entailed]
    header = ["skill", "mostly brings", "texts", "source"]
    return ["Pairs that no draw combines:\n\n" + markdown_table(header, rows, right=frozenset({2}))]


def _skills(k: int) -> str:
    return plural(k, "skill")


def _meaning_of(occurrences: float, a_third_new_above: float) -> str:
    """What a bound says about texts that are new."""
    from skillmix.render import expectation

    if occurrences >= 1:
        return "No ratio is above 1, so at this k the bound says nothing about new texts."
    return (
        "A Full Marks ratio above it means texts that were not all in the corpus; above "
        f"{expectation(a_third_new_above)}, that more than a third were not."
    )


def novelty_page(bound: "Novelty", inputs: "NoveltyInputs", assumptions: Sequence[str]) -> str:
    """The bound, its meaning, its inputs and its assumptions, for a terminal."""
    from skillmix.render import expectation

    lines = "\n".join(
        [
            expectation(bound.expected_occurrences),
            f"is the most often that one combination of {_skills(bound.k)} and a topic can be expected in a corpus of "
            f"{bound.tokens:.3g} tokens.",
            _meaning_of(bound.expected_occurrences, bound.a_third_new_above),
            f"Inputs: skill frequency {inputs.skill_frequency:g}, topic frequency {inputs.topic_frequency:g}, "
            f"{bound.sentences:.3g} sentences.",
            "Assumptions:",
            *(f"- {assumption}" for assumption in assumptions),
        ]
    )
    return wrapped(lines, indent=2)


def measured_page(bound: "MeasuredNovelty", assumptions: Sequence[str]) -> str:
    """The bound with measured shares, its meaning and its assumptions, for a terminal."""
    from skillmix.render import expectation

    lines = "\n".join(
        [
            expectation(bound.mean_occurrences),
            f"is the most often that a combination of {_skills(bound.k)} and a topic can be expected in a {bound.unit} "
            f"of a corpus of {bound.tokens:.3g} tokens, as the mean over all combinations of {bound.skills} skills.",
            _meaning_of(bound.mean_occurrences, bound.a_third_new_above),
            f"The combination of the most common skills: {expectation(bound.most_occurrences)}.",
            f"The corpus has {bound.units:.3g} {bound.unit}s.",
            "Assumptions:",
            *(f"- {assumption}" for assumption in assumptions),
        ]
    )
    return wrapped(lines, indent=2)
