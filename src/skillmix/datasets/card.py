"""Write the card of a data set: a README on how it was made, what it holds and what was left out."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from skillmix.datasets.counts import DatasetCounts, LeftOut, SamplingYield
from skillmix.render import are, markdown_table, share, whole

_MOST_ROWS = 20
_TAGS = ("skillmix", "skill-composition", "synthetic", "conversational")


@dataclass(frozen=True, slots=True)
class CardFacts:
    """The facts on the card that are not counts."""

    name: str
    recipe: str
    size: int | None
    catalog: str
    partition: str
    reserved: float
    near_duplicates: float | None
    keeps_exact_duplicates: bool
    keeps_example_copies: bool
    validation: float
    train: int
    held_back: int
    """Texts in validation.jsonl."""
    written_with: tuple[str, ...]
    """Prompt sets of the writers, with their hashes."""
    prompts: str
    """The prompt set in the data, with its hash."""
    graders: tuple[str, ...]
    decoding: tuple[str, ...]
    checkable: int = 0
    """Skills of the catalogue that have a checker."""
    skills: int = 0
    """Skills of the catalogue."""
    shown: str = "drop"
    only_requested: bool = False
    requests: str = "all"
    turns: int = 2
    """Turns of a conversation in the data."""
    groups: tuple[str, ...] = ()
    """Further groups of the partition that the texts were drawn from."""
    any_topic_at_one: bool = False
    evaluations: Mapping[str, int] = field(default_factory=dict)
    """The number of combinations of each evaluation that the data set was checked against."""


def dataset_card(facts: CardFacts, figures: DatasetCounts, left: LeftOut, yields: Sequence[SamplingYield]) -> str:
    """The text of the README."""
    parts = [
        _front_matter(facts),
        f"# {facts.name}",
        _about(facts, figures),
        "## How it was made",
        _making(facts, yields),
        "## What was left out",
        _left_out(left),
        "## What is in it",
        _content(facts, figures),
        "## Leakage",
        _leakage(facts, figures, left),
        "## Licence",
        "Definitions, examples and prompts come from the catalogue and prompt set named above; those that skillmix "
        "ships are Apache-2.0. The answers are the output of the models named above, and are theirs to license.",
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(facts: CardFacts) -> str:
    files = [("train", "train.jsonl")] + ([("validation", "validation.jsonl")] if facts.held_back else [])
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    lines += [f"  - split: {split}\n    path: {path}" for split, path in files if split != "train" or facts.train]
    lines += [
        f"pretty_name: {json.dumps(facts.name)}",
        "task_categories:",
        "- text-generation",
        "size_categories:",
        f"- {size_category(facts.train + facts.held_back)}",
        "tags:",
        *(f"- {tag}" for tag in _TAGS),
    ]
    return "\n".join([*lines, "---"])


def size_category(rows: int) -> str:
    """The size of a data set in the words of the hub.

    >>> size_category(0), size_category(1_000), size_category(2_500_000)
    ('n<1K', '1K<n<10K', '1M<n<10M')
    """
    limits = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
    names = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M")
    return names[sum(rows >= limit for limit in limits)]


def _about(facts: CardFacts, figures: DatasetCounts) -> str:
    by_k = ", ".join(f"{whole(count)} with k = {k}" for k, count in figures.by_k.items())
    return (
        f"{whole(figures.texts)} conversations ({_TURNS_IN_WORDS[facts.turns]}) whose last text "
        f"got full marks: {by_k}. Recipe: {facts.recipe}"
        + (f", {whole(facts.size)} of it" if facts.size else "")
        + f". `train.jsonl` has {whole(facts.train)} of them, `validation.jsonl` {whole(facts.held_back)}, split by "
        "combination, never by text. `rows.parquet` has the same rows in the same order, train first, with the origin "
        "of each."
    )


def _making(facts: CardFacts, yields: Sequence[SamplingYield]) -> str:
    lines = [
        f"- Catalogue {facts.catalog}, partition {facts.partition}.",
        f"- Full marks from: {', '.join(facts.graders) or 'no grader'}.",
        f"- Written with the prompts {', '.join(facts.written_with)}"
        + (f"; decoding: {'; '.join(facts.decoding)}." if facts.decoding else "."),
        _rendering(facts),
        *([_ONE_SKILL] if facts.requests == "one" else []),
        _copies(facts),
    ]
    if not yields:
        return "\n".join(lines)
    rows = [
        (
            str(y.k),
            whole(y.target),
            whole(y.taken),
            whole(y.written),
            whole(y.full_marks),
            share(y.rate),
            str(y.waves),
            _spread(y),
        )
        for y in yields
    ]
    header = ("k", "target", "taken", "conversations", "full marks", "yield", "waves", "per skill")
    return "\n".join(lines) + "\n\n" + markdown_table(header, rows, right=frozenset(range(7)))


_TURNS_IN_WORDS: Final = {1: "prompt, text", 2: "prompt, answer, prompt to improve it, better answer"}
_ONE_SKILL: Final = (
    '- **Each request names one skill** of its text and says "any skill" for each other (`requests: one`): a control. '
    "The texts are those of the same set with requests for all skills; the counts below are of what the texts show."
)


def _copies(facts: CardFacts) -> str:
    if facts.near_duplicates is not None:
        return (
            "- Near copies are texts whose three-word runs overlap with those of an earlier text by "
            f"{share(facts.near_duplicates)} or more."
        )
    if facts.keeps_exact_duplicates:
        return "- Near copies and exact copies were kept."
    return "- Near copies were kept; exact copies were removed."


def _rendering(facts: CardFacts) -> str:
    if facts.written_with == (facts.prompts,):
        return f"- The prompts in the data are rendered from {facts.prompts}, the set they were written with."
    return (
        "- **The prompts in the data are not those that the writers saw**: they were rendered again from "
        f"{facts.prompts}, without worked examples."
    )


def _spread(y: SamplingYield) -> str:
    wanted = [f"at least {y.floor}"] if y.floor else []
    wanted += [f"at most {y.ceiling}"] if y.ceiling is not None else []
    if y.below_floor:
        wanted.append("below: " + ", ".join(f"{skill} {count}" for skill, count in sorted(y.below_floor.items())))
    return "; ".join(wanted) or "no limit"


def _left_out(left: LeftOut) -> str:
    rows = [
        ("less than full marks", left.less),
        ("undecided: a vote is missing or cannot be read", left.undecided),
        ("unfinished conversations", left.unfinished),
        ("texts without all turns of a conversation", left.not_conversations),
        *((f"outside the recipe: {why}", count) for why, count in sorted(left.outside.items())),
        *((why, count) for why, count in sorted({**left.removed, **left.shown}.items())),
    ]
    table = markdown_table(("why", "texts"), [(why, whole(n)) for why, n in rows if n], right=frozenset({1}))
    if not any(n for _, n in rows):
        return "Nothing."
    if not left.examples:
        return table
    shown = [(why, _cut(text), _cut(of)) for why, text, of in left.examples]
    return f"{table}\n\nSome of the copies:\n\n" + markdown_table(("why", "text", "repeats"), shown)


def _cut(text: str) -> str:
    # Markdown may hold HTML; a model's output must stay plain text wherever the card is shown.
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace("`", "'")
    return escaped if len(escaped) <= 120 else f"{escaped[:119]}…"


def _content(facts: CardFacts, figures: DatasetCounts) -> str:
    lengths = ", ".join(f"k = {k}: {median:g}" for k, median in figures.words_by_k.items())
    unusable = {status: n for status, n in figures.first_answers.items() if status != "fine"}
    lines = []
    if figures.words:
        shortest, middle, longest = figures.words
        lines.append(f"- Words in a text: {shortest} to {longest}, median {middle:g} ({lengths}).")
    lines += [
        f"- Distinct four-word runs, as a share of all (distinct-4): {share(figures.distinct_4)}.",
        f"- Texts with a six-word run of three or more texts: {whole(figures.framed)} of {whole(figures.texts)}.",
        f"- Texts with a quarter or more of the three-word runs of an example: {whole(figures.near_examples)} of "
        f"{whole(figures.texts)}. Texts with half or more, or with eight words of an example in a row, were "
        f"{'kept' if facts.keeps_example_copies else 'left out'}.",
        "- Unusable first answers, marked in `first_answer`: "
        + (", ".join(f"{whole(n)} {status}" for status, n in unusable.items()) or "none")
        + ".",
    ]
    parts = ["\n".join(lines)]
    if figures.frames:
        parts.append(_table("six-word run", [(_cut(f.words), f.texts) for f in figures.frames], len(figures.frames)))
    parts.append(_table("writer", figures.by_writer.items(), len(figures.by_writer)))
    parts.append(_table("skill", figures.by_skill.items(), len(figures.by_skill)))
    parts.append(_table("topic", figures.by_topic.items(), len(figures.by_topic)))
    if figures.by_pair:
        pairs: Mapping[tuple[str, str], int] = figures.by_pair
        pair_rows = [(f"{one} + {other}", count) for (one, other), count in pairs.items()]
        parts.append(_table("pair of skills", pair_rows, _MOST_ROWS))
    return "\n\n".join(parts)


def _table(header: str, counts: Iterable[tuple[str, int]], most: int) -> str:
    rows = list(counts)
    table = markdown_table((header, "texts"), [(name, whole(n)) for name, n in rows[:most]], right=frozenset({1}))
    if len(rows) <= most:
        return table
    least = min(count for _, count in rows)
    return f"{table}\n\nand {whole(len(rows) - most)} more, down to {whole(least)} (all in `skillmix.json`)."


def _leakage(facts: CardFacts, figures: DatasetCounts, left: LeftOut) -> str:
    lines = [
        f"- No held-out topic{' at k > 1' * facts.any_topic_at_one}, no held-out skill at k > 1"
        + (f", except in combinations of {', '.join(facts.groups)}" if facts.groups else "")
        + ": checked on every row.",
        _evaluations(facts),
        f"- {share(facts.reserved)} of the skill sets of k = 2 and more are reserved for evaluation and are in no row. "
        f"{are(figures.holding_reserved, 'text', verb=('has', 'have'))} a larger set that contains a reserved pair or "
        "triple.",
        _shown(facts, figures, left),
    ]
    if not figures.named:
        return "\n".join([*lines, "- No text of other skills names a held-out skill."])
    lines.append("- Held-out skills named in texts of other skills:")
    table = markdown_table(
        ("held-out skill", "named in", "texts"),
        [(n.skill, n.where, whole(n.texts)) for n in figures.named],
        right=frozenset({2}),
    )
    return "\n".join(lines) + f"\n\n{table}"


def _evaluations(facts: CardFacts) -> str:
    """The evaluations that every row was checked against; a card claims no other check."""
    if not facts.evaluations:
        return (
            "- **No evaluation was named**, so no row was checked against the combinations of one; "
            "`leakage.evaluations` names them."
        )
    listed = ", ".join(f"{name} ({whole(count)})" for name, count in facts.evaluations.items())
    return f"- No combination of an evaluation: checked on every row against the combinations of {listed}."


def _shown(facts: CardFacts, figures: DatasetCounts, left: LeftOut) -> str:
    if not facts.checkable:
        return "- No skill of the catalogue has a checker, so only requested skills were checked, not what texts show."
    start = (
        f"- Code looked for {whole(facts.checkable)} of the {whole(facts.skills)} skills of the catalogue in every "
        "text, requested or not. "
    )
    counts = figures.shown if facts.shown == "count" else left.shown
    found = ", ".join(f"{whole(count)}: {why}" for why, count in sorted(counts.items())) or "none"
    outcome = {
        "drop": f"Texts left out: {found}.",
        "refuse": "No text shows a reserved pair or two held-out skills.",
        "count": f"Texts of this set that show a reserved pair or two held-out skills: {found}.",
    }
    only = " No text shows a skill of the partition that was not requested." if facts.only_requested else ""
    return start + outcome[facts.shown] + only


def dataset_info(name: str, *, has_validation: bool) -> str:
    """The content of dataset_info.json for LLaMA-Factory: the files and their columns."""
    files = [("train", "train.jsonl"), *([("validation", "validation.jsonl")] if has_validation else [])]
    tags = {
        "role_tag": "role",
        "content_tag": "content",
        "user_tag": "user",
        "assistant_tag": "assistant",
        "system_tag": "system",
    }
    entries = {
        f"{name}-{split}": {
            "file_name": file,
            "formatting": "sharegpt",
            "columns": {"messages": "messages"},
            "tags": tags,
        }
        for split, file in files
    }
    return json.dumps(entries, indent=1) + "\n"
