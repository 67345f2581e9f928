"""Count the texts of a data set, and write its card: how it was made, what it contains, and the excluded texts."""

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median
from typing import Final, TypeVar

from skillmix.catalog.combinations import is_reserved
from skillmix.datasets.copies import KeptText, example_shares
from skillmix.datasets.corpus import Corpus, distinct_share, repeated_frames
from skillmix.datasets.dataset_plan import DatasetPlan
from skillmix.datasets.leakage import NamedSkill
from skillmix.datasets.row_files import Written, prompts_shown
from skillmix.prompts.prompt_set import PromptSet
from skillmix.render import are, markdown_table, share, whole

_Name = TypeVar("_Name", str, tuple[str, str])


@dataclass(frozen=True, slots=True)
class SamplingYield:
    """The result of writing texts for one k until a target or a limit is reached."""

    k: int
    target: int
    written: int
    full_marks: int
    taken: int
    below_floor: dict[str, int] = field(default_factory=dict)
    """Skills with fewer texts than the floor, with their counts."""
    floor: int = 0
    ceiling: int | None = None
    least: int | None = None
    """The number of texts that later steps need; None for the whole target."""

    @property
    def is_enough(self) -> bool:
        """Return whether later steps have enough texts."""
        return self.taken >= (self.target if self.least is None else min(self.least, self.target))

    @property
    def rate(self) -> float | None:
        """Return the share of conversations with full marks."""
        return self.full_marks / self.written if self.written else None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Texts excluded from a data set, counted by reason."""

    less: int = 0
    """Texts with less than full marks."""
    undecided: int = 0
    """Texts without a final grade, because a vote is missing or cannot be parsed."""
    unfinished: int = 0
    """Conversations that the student has not finished."""
    not_conversations: int = 0
    """Texts without the replies of all turns, such as imported texts."""
    outside: dict[str, int] = field(default_factory=dict)
    """Texts with full marks that do not fit the recipe, counted by the rule that excludes them."""
    removed: dict[str, int] = field(default_factory=dict)
    """Copies, counted by kind."""
    shown: dict[str, int] = field(default_factory=dict)
    """Texts that show forbidden content, by reason."""
    examples: tuple[tuple[str, str, str], ...] = ()
    """Examples of copies, each with its reason, its text and the text that it repeats."""


class DatasetCounts:
    """The counts on a data set's card."""

    def __init__(
        self,
        texts: Sequence[KeptText],
        corpus: Corpus,
        plan: DatasetPlan,
        named: list[NamedSkill],
        shown: dict[str, int],
    ) -> None:
        lengths = corpus.sizes.tolist()
        lengths_by_k: dict[int, array[int]] = {}
        skills, topics, writers, first_answers = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
        sets: Counter[tuple[str, ...]] = Counter()
        for kept, length in zip(texts, lengths, strict=True):
            combination = kept.combination
            lengths_by_k.setdefault(combination.k, array("q")).append(length)
            skills.update(combination.skills)
            topics[combination.topic] += 1
            writers[f"{kept.writer} in {kept.run}: {kept.model}"] += 1
            first_answers[kept.first_status] += 1
            sets[tuple(sorted(combination.skills))] += 1
        pairs: Counter[tuple[str, str]] = Counter()
        self.holding_reserved = 0
        """Texts whose skill set contains a smaller, reserved set."""
        for own, count in sets.items():
            pairs.update(dict.fromkeys(combinations(own, 2), count))
            parts = (part for size in (2, 3) if size < len(own) for part in combinations(own, size))
            self.holding_reserved += count if any(is_reserved(part, plan.bars.reserved) for part in parts) else 0
        self.texts = len(texts)
        self.by_k = {k: len(lengths_by_k[k]) for k in sorted(lengths_by_k)}
        self.by_skill, self.by_topic, self.by_pair = _by_count(skills), _by_count(topics), _by_count(pairs)
        self.by_writer = _by_count(writers)
        self.written_with = tuple(sorted({kept.written_with for kept in texts}))
        """The prompt sets of the writers, with their hashes."""
        self.graders = tuple(sorted({grader for kept in texts for grader in kept.graders}))
        self.first_answers = _by_count(first_answers)
        self.words = (min(lengths), median(lengths), max(lengths)) if lengths else None
        """The numbers of words in the shortest, median and longest text."""
        self.words_by_k = {k: median(lengths_by_k[k]) for k in self.by_k}
        """The median number of words, by k."""
        self.distinct_4 = distinct_share(corpus, 4)
        self.frames, self.framed = repeated_frames(corpus, 6, most=10)
        """The most frequently shared 6-grams, and the number of texts with a 6-gram that three or more texts share."""
        self.named = named
        self.near_examples = int((example_shares(corpus, plan.examples) >= 0.25).sum())
        """Texts that contain a quarter or more of an example's 3-grams."""
        self.shown = shown
        """Kept texts that show forbidden content, by reason; empty if such texts are excluded."""


def _by_count(counts: "Counter[_Name]") -> dict[_Name, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


_MOST_PAIRS: Final = 20
_SIZES: Final = {"n<1K": 10**3, "1K<n<10K": 10**4, "10K<n<100K": 10**5, "100K<n<1M": 10**6, "1M<n<10M": 10**7}
"""The Hub's size categories, each with the smallest number of rows that is too large for it."""
_FRONT_MATTER: Final = """---
configs:
- config_name: default
  data_files:{files}
pretty_name: {name}
task_categories:
- text-generation
size_categories:
- {size}
tags:
- skillmix
- skill-composition
- synthetic
- conversational
---"""
_LICENCE: Final = (
    "Definitions, examples and prompts come from the catalog and prompt set named above; those that skillmix "
    "ships are Apache-2.0. The answers were generated by the models named above, whose licenses and terms apply."
)
_TURNS_IN_WORDS: Final = {1: "prompt, text", 2: "prompt, answer, prompt to improve it, better answer"}
_ONE_SKILL: Final = (
    '- **Each request names one skill** of its text and says "any skill" for every other skill (`requests: one`), as a '
    "control. The texts are the same as with requests for all skills; the counts below are based on the "
    "skills that the texts show."
)


def dataset_card(
    plan: DatasetPlan,
    prompts: PromptSet,
    written: Written,
    figures: DatasetCounts,
    left: LeftOut,
    yields: Sequence[SamplingYield],
) -> str:
    """Return the README of a data set, which is its card."""
    splits = {"train": written.train, "validation": written.validation}
    files = "".join(f"\n  - split: {split}\n    path: {split}.jsonl" for split, rows in splits.items() if rows)
    by_k = ", ".join(f"{whole(count)} with k = {k}" for k, count in figures.by_k.items())
    part = f", {whole(plan.recipe.size)} of it" if plan.recipe.size else ""
    about = (
        f"{whole(figures.texts)} conversations ({_TURNS_IN_WORDS[prompts.turns]}) whose last text got full marks: "
        f"{by_k}. Recipe: {plan.recipe.name}{part}. `train.jsonl` has {whole(written.train)} of them, "
        f"`validation.jsonl` {whole(written.validation)}, split by combination, never by text. `rows.parquet` has the "
        "same rows in the same order, train first, with the origin of each."
    )
    parts = [
        _FRONT_MATTER.format(files=files, name=json.dumps(plan.name), size=size_category(figures.texts)),
        f"# {plan.name}",
        about,
        "## How it was made",
        _making(plan, prompts, figures, yields),
        "## Excluded texts",
        _left_out(left),
        "## Contents",
        _content(plan, figures),
        "## Leakage",
        _leakage(plan, figures, left),
        "## Licence",
        _LICENCE,
    ]
    return "\n\n".join(parts) + "\n"


def size_category(rows: int) -> str:
    """Return a data set's size category on the Hub.

    >>> size_category(0), size_category(1_000), size_category(2_500_000)
    ('n<1K', '1K<n<10K', '1M<n<10M')
    """
    return next((size for size, too_many in _SIZES.items() if rows < too_many), "10M<n<100M")


def _making(plan: DatasetPlan, prompts: PromptSet, figures: DatasetCounts, yields: Sequence[SamplingYield]) -> str:
    shown = prompts_shown(prompts)
    if plan.near_duplicates is not None:
        overlap = share(plan.near_duplicates)
        copies = f"- Near copies are texts whose 3-grams overlap with an earlier text's by {overlap} or more."
    else:
        exact = "and exact copies were kept" if plan.keeps_exact_duplicates else "were kept; exact copies were removed"
        copies = f"- Near copies {exact}."
    lines = [
        f"- Catalog {plan.catalog.name} ({plan.catalog.content_hash()}), partition {plan.bars.split.name}.",
        f"- Full marks from: {', '.join(figures.graders) or 'no grader'}.",
        f"- Written with the prompts {', '.join(figures.written_with)}"
        + (f"; decoding: {'; '.join(plan.decoding)}." if plan.decoding else "."),
        f"- The prompts in the data are rendered from {shown}, the set they were written with."
        if figures.written_with == (shown,)
        else "- **The prompts in the data are not those that the writers saw**: they were re-rendered from "
        f"{shown}, without few-shot examples.",
        *([_ONE_SKILL] if plan.requests == "one" else []),
        copies,
    ]
    if not yields:
        return "\n".join(lines)
    rows = []
    for y in yields:
        wanted = [f"at least {y.floor}"] if y.floor else []
        wanted += [f"at most {y.ceiling}"] if y.ceiling is not None else []
        below = ", ".join(f"{skill} {count}" for skill, count in sorted(y.below_floor.items()))
        wanted += [f"below: {below}"] if below else []
        numbers = (y.target, y.taken, y.written, y.full_marks)
        rows.append((str(y.k), *map(whole, numbers), share(y.rate), "; ".join(wanted) or "no limit"))
    header = ("k", "target", "taken", "conversations", "full marks", "yield", "per skill")
    return "\n".join(lines) + "\n\n" + markdown_table(header, rows, right=frozenset(range(6)))


def _left_out(left: LeftOut) -> str:
    counts = {
        "less than full marks": left.less,
        "undecided: a vote is missing or cannot be parsed": left.undecided,
        "unfinished conversations": left.unfinished,
        "texts without all turns of a conversation": left.not_conversations,
        **{f"outside the recipe: {why}": count for why, count in sorted(left.outside.items())},
        **dict(sorted({**left.removed, **left.shown}.items())),
    }
    rows = [(why, count) for why, count in counts.items() if count]
    if not rows:
        return "Nothing."
    table = _table("why", rows)
    if not left.examples:
        return table
    shown = [(why, _cut(text), _cut(of)) for why, text, of in left.examples]
    return f"{table}\n\nSome of the copies:\n\n" + markdown_table(("why", "text", "repeats"), shown)


def _cut(text: str) -> str:
    # Markdown may contain HTML, but a model's output must stay plain text wherever the card is shown.
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace("`", "'")
    return escaped if len(escaped) <= 120 else f"{escaped[:119]}…"


def _content(plan: DatasetPlan, figures: DatasetCounts) -> str:
    lines = []
    if figures.words:
        shortest, middle, longest = figures.words
        lengths = ", ".join(f"k = {k}: {median:g}" for k, median in figures.words_by_k.items())
        lines.append(f"- Words per text: {shortest} to {longest}, median {middle:g} ({lengths}).")
    unusable = [f"{whole(n)} {status}" for status, n in figures.first_answers.items() if status != "fine"]
    lines += [
        f"- Distinct 4-grams, as a share of all (distinct-4): {share(figures.distinct_4)}.",
        f"- Texts with a 6-gram that three or more texts share: {whole(figures.framed)} of {whole(figures.texts)}.",
        f"- Texts with a quarter or more of the 3-grams of an example: {whole(figures.near_examples)} of "
        f"{whole(figures.texts)}. Texts with half or more, or with eight consecutive words of an example, were "
        f"{'kept' if plan.keeps_example_copies else 'excluded'}.",
        f"- Unusable first answers, marked in `first_answer`: {', '.join(unusable) or 'none'}.",
    ]
    parts = ["\n".join(lines)]
    if figures.frames:
        parts.append(_table("6-gram", [(_cut(frame.words), frame.texts) for frame in figures.frames]))
    counts = {"writer": figures.by_writer, "skill": figures.by_skill, "topic": figures.by_topic}
    parts += [_table(header, by_name.items()) for header, by_name in counts.items()]
    pairs = [(f"{one} + {other}", count) for (one, other), count in figures.by_pair.items()]
    if pairs:
        parts.append(_table("pair of skills", pairs[:_MOST_PAIRS]))
    if more := pairs[_MOST_PAIRS:]:
        parts.append(f"and {whole(len(more))} more, down to {whole(more[-1][1])} (all in `skillmix.json`).")
    return "\n\n".join(parts)


def _table(header: str, counts: Iterable[tuple[str, int]]) -> str:
    return markdown_table((header, "texts"), [(name, whole(n)) for name, n in counts], right=frozenset({1}))


def _leakage(plan: DatasetPlan, figures: DatasetCounts, left: LeftOut) -> str:
    bars = plan.bars
    # An empty list must be visible in the card, because no row was then checked against an evaluation.
    counts = sorted(Counter(bars.evaluations.values()).items())
    evaluations = (
        "- No combination of an evaluation: checked on every row against the combinations of "
        f"{', '.join(f'{name} ({whole(count)})' for name, count in counts)}."
        if counts
        else "- **No evaluation was given** (`leakage.evaluations`), so rows were not checked against any."
    )
    groups = f", except in combinations of {', '.join(sorted(bars.groups))}" if bars.groups else ""
    lines = [
        f"- No held-out topic{' at k > 1' * bars.split.any_topic_at_one}, no held-out skill at k > 1{groups}: checked "
        "on every row.",
        evaluations,
        f"- {share(bars.reserved)} of the skill sets of k = 2 and more are reserved for evaluation and occur in no "
        f"row. {are(figures.holding_reserved, 'text', verb=('has', 'have'))} a larger set that contains a reserved "
        "pair or triple.",
        _shown(plan, figures, left),
    ]
    if not figures.named:
        return "\n".join([*lines, "- No text that shows other skills names a held-out skill."])
    lines.append("- Held-out skills named in texts that show other skills:")
    rows = [(n.skill, n.where, whole(n.texts)) for n in figures.named]
    table = markdown_table(("held-out skill", "named in", "texts"), rows, right=frozenset({2}))
    return "\n".join(lines) + f"\n\n{table}"


def _shown(plan: DatasetPlan, figures: DatasetCounts, left: LeftOut) -> str:
    checkable = len(plan.shown_rule.checkable)
    if not checkable:
        return "- No skill of the catalog has a checker, so only requested skills were checked."
    counts = figures.shown if plan.shown == "count" else left.shown
    found = ", ".join(f"{whole(count)}: {why}" for why, count in sorted(counts.items())) or "none"
    outcome = {
        "drop": f"Texts left out: {found}.",
        "refuse": "No text shows a reserved pair or two held-out skills.",
        "count": f"Texts of this set that show a reserved pair or two held-out skills: {found}.",
    }
    only = " No text shows a skill of the partition that was not requested." if plan.only_requested else ""
    return (
        f"- Code looked for {whole(checkable)} of the {whole(len(plan.catalog.skills))} skills of the catalog in "
        f"every text, requested or not. {outcome[plan.shown]}{only}"
    )


def dataset_info(name: str, *, has_validation: bool) -> str:
    """Make dataset_info.json for LLaMA-Factory: the files and their columns."""
    entries = {
        f"{name}-{split}": {
            "file_name": f"{split}.jsonl",
            "formatting": "sharegpt",
            "columns": {"messages": "messages"},
            "tags": {f"{tag}_tag": tag for tag in ("role", "content", "user", "assistant", "system")},
        }
        for split in ("train", *(["validation"] if has_validation else []))
    }
    return json.dumps(entries, indent=1) + "\n"
