"""Write the card of a data set: a README on how it was made, its contents and the excluded texts."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from skillmix.datasets.counts import DatasetCounts, LeftOut, SamplingYield
from skillmix.datasets.dataset_plan import DatasetPlan
from skillmix.datasets.row_files import Written, prompts_shown
from skillmix.prompts.prompt_set import PromptSet
from skillmix.render import are, markdown_table, share, whole

_MOST_ROWS = 20
_TAGS = ("skillmix", "skill-composition", "synthetic", "conversational")


def dataset_card(
    plan: DatasetPlan,
    prompts: PromptSet,
    written: Written,
    figures: DatasetCounts,
    left: LeftOut,
    yields: Sequence[SamplingYield],
) -> str:
    """Write the text of the README."""
    parts = [
        _front_matter(plan, written),
        f"# {plan.name}",
        _about(plan, prompts, written, figures),
        "## How it was made",
        _making(plan, prompts, figures, yields),
        "## Excluded texts",
        _left_out(left),
        "## Contents",
        _content(plan, figures),
        "## Leakage",
        _leakage(plan, figures, left),
        "## Licence",
        "Definitions, examples and prompts come from the catalog and prompt set named above; those that skillmix "
        "ships are Apache-2.0. The answers are the output of the models named above, and are theirs to license.",
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(plan: DatasetPlan, written: Written) -> str:
    files = [("train", "train.jsonl")] + ([("validation", "validation.jsonl")] if written.validation else [])
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    lines += [f"  - split: {split}\n    path: {path}" for split, path in files if split != "train" or written.train]
    lines += [
        f"pretty_name: {json.dumps(plan.name)}",
        "task_categories:",
        "- text-generation",
        "size_categories:",
        f"- {size_category(written.train + written.validation)}",
        "tags:",
        *(f"- {tag}" for tag in _TAGS),
    ]
    return "\n".join([*lines, "---"])


def size_category(rows: int) -> str:
    """Return the size category of a data set on the hub.

    >>> size_category(0), size_category(1_000), size_category(2_500_000)
    ('n<1K', '1K<n<10K', '1M<n<10M')
    """
    limits = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
    names = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M")
    return names[sum(rows >= limit for limit in limits)]


def _about(plan: DatasetPlan, prompts: PromptSet, written: Written, figures: DatasetCounts) -> str:
    by_k = ", ".join(f"{whole(count)} with k = {k}" for k, count in figures.by_k.items())
    return (
        f"{whole(figures.texts)} conversations ({_TURNS_IN_WORDS[prompts.turns]}) whose last text "
        f"got full marks: {by_k}. Recipe: {plan.recipe.name}"
        + (f", {whole(plan.recipe.size)} of it" if plan.recipe.size else "")
        + f". `train.jsonl` has {whole(written.train)} of them, `validation.jsonl` {whole(written.validation)}, "
        "split by combination, never by text. `rows.parquet` has the same rows in the same order, train first, with "
        "the origin of each."
    )


def _making(plan: DatasetPlan, prompts: PromptSet, figures: DatasetCounts, yields: Sequence[SamplingYield]) -> str:
    shown = prompts_shown(prompts)
    lines = [
        f"- Catalog {plan.catalog.name} ({plan.catalog.content_hash()}), "
        f"partition {plan.catalog.partition(plan.partition).name}.",
        f"- Full marks from: {', '.join(figures.graders) or 'no grader'}.",
        f"- Written with the prompts {', '.join(figures.written_with)}"
        + (f"; decoding: {'; '.join(plan.decoding)}." if plan.decoding else "."),
        f"- The prompts in the data are rendered from {shown}, the set they were written with."
        if figures.written_with == (shown,)
        else "- **The prompts in the data are not those that the writers saw**: they were rendered again from "
        f"{shown}, without worked examples.",
        *([_ONE_SKILL] if plan.requests == "one" else []),
        _copies(plan),
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
            _spread(y),
        )
        for y in yields
    ]
    header = ("k", "target", "taken", "conversations", "full marks", "yield", "per skill")
    return "\n".join(lines) + "\n\n" + markdown_table(header, rows, right=frozenset(range(6)))


_TURNS_IN_WORDS: Final = {1: "prompt, text", 2: "prompt, answer, prompt to improve it, better answer"}
_ONE_SKILL: Final = (
    '- **Each request names one skill** of its text and says "any skill" for each other (`requests: one`), as a '
    "control. The texts equal those of the same set with requests for all skills; the counts below are based on the "
    "skills that the texts show."
)


def _copies(plan: DatasetPlan) -> str:
    if plan.near_duplicates is not None:
        overlap = share(plan.near_duplicates)
        return f"- Near copies are texts whose 3-grams overlap with an earlier text's by {overlap} or more."
    if plan.keeps_exact_duplicates:
        return "- Near copies and exact copies were kept."
    return "- Near copies were kept; exact copies were removed."


def _spread(y: SamplingYield) -> str:
    wanted = [f"at least {y.floor}"] if y.floor else []
    wanted += [f"at most {y.ceiling}"] if y.ceiling is not None else []
    if y.below_floor:
        wanted.append("below: " + ", ".join(f"{skill} {count}" for skill, count in sorted(y.below_floor.items())))
    return "; ".join(wanted) or "no limit"


def _left_out(left: LeftOut) -> str:
    rows = [
        ("less than full marks", left.less),
        ("undecided: a vote is missing or unparseable", left.undecided),
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


def _content(plan: DatasetPlan, figures: DatasetCounts) -> str:
    lengths = ", ".join(f"k = {k}: {median:g}" for k, median in figures.words_by_k.items())
    unusable = {status: n for status, n in figures.first_answers.items() if status != "fine"}
    lines = []
    if figures.words:
        shortest, middle, longest = figures.words
        lines.append(f"- Words per text: {shortest} to {longest}, median {middle:g} ({lengths}).")
    lines += [
        f"- Distinct 4-grams, as a share of all (distinct-4): {share(figures.distinct_4)}.",
        f"- Texts with a 6-gram that three or more texts share: {whole(figures.framed)} of {whole(figures.texts)}.",
        f"- Texts with a quarter or more of the 3-grams of an example: {whole(figures.near_examples)} of "
        f"{whole(figures.texts)}. Texts with half or more, or with eight consecutive words of an example, were "
        f"{'kept' if plan.keeps_example_copies else 'excluded'}.",
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


def _leakage(plan: DatasetPlan, figures: DatasetCounts, left: LeftOut) -> str:
    # A card claims no other check than those against these evaluations.
    counted = sorted(Counter(plan.bars.evaluations.values()).items())
    evaluations = [f"{name} ({whole(count)})" for name, count in counted]
    lines = [
        f"- No held-out topic{' at k > 1' * plan.bars.any_topic_at_one}, no held-out skill at k > 1"
        + (f", except in combinations of {', '.join(sorted(plan.bars.groups))}" if sorted(plan.bars.groups) else "")
        + ": checked on every row.",
        f"- No combination of an evaluation: checked on every row against the combinations of {', '.join(evaluations)}."
        if evaluations
        else "- **No evaluation was given** (`leakage.evaluations`), so rows were not checked against any.",
        f"- {share(plan.bars.reserved)} of the skill sets of k = 2 and more are reserved for evaluation and "
        f"occur in no row. {are(figures.holding_reserved, 'text', verb=('has', 'have'))} a larger set that "
        "contains a reserved pair or triple.",
        _shown(plan, figures, left),
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


def _shown(plan: DatasetPlan, figures: DatasetCounts, left: LeftOut) -> str:
    checkable = len(plan.shown_rule.checkable)
    if not checkable:
        return "- No skill of the catalog has a checker, so only requested skills were checked."
    start = (
        f"- Code looked for {whole(checkable)} of the {whole(len(plan.catalog.skills))} skills of the catalog in "
        "every text, requested or not. "
    )
    counts = figures.shown if plan.shown == "count" else left.shown
    found = ", ".join(f"{whole(count)}: {why}" for why, count in sorted(counts.items())) or "none"
    outcome = {
        "drop": f"Texts left out: {found}.",
        "refuse": "No text shows a reserved pair or two held-out skills.",
        "count": f"Texts of this set that show a reserved pair or two held-out skills: {found}.",
    }
    only = " No text shows a skill of the partition that was not requested." if plan.only_requested else ""
    return start + outcome[plan.shown] + only


def dataset_info(name: str, *, has_validation: bool) -> str:
    """Make dataset_info.json for LLaMA-Factory: the files and their columns."""
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
