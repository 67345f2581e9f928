"""Collect kept texts from graded conversations, and write a data set's folder from kept texts.

The card of a data set is a README that describes its making, its contents and the excluded texts. `DatasetCounts`
contains its numbers.
"""

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from statistics import median
from sys import intern
from typing import Any, Final, TypeVar

from skillmix.calls import ONLY_TURN, Reply
from skillmix.catalog.combinations import is_reserved
from skillmix.datasets.corpus import Corpus, KeptText, distinct_share, example_shares, repeated_frames, span_of
from skillmix.datasets.dataset_plan import DatasetPlan
from skillmix.datasets.decisions import DecidedConversation
from skillmix.datasets.leakage import (
    EVALUATED,
    WRITE_FOR_TRAINING,
    NamedSkill,
    names_inside,
    refuse_leaks,
    refuse_names,
)
from skillmix.datasets.row_files import Written, prompts_shown, write_rows
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.recipes import draw_set
from skillmix.files import FolderKind, replacing, write_whole
from skillmix.grading.answers import without_thought
from skillmix.models.lineage_files import LINEAGE_FILE, CountsEntry, DatasetFile, WriterEntry, is_dataset_folder
from skillmix.prompts.prompt_set import PromptSet, load_prompts
from skillmix.render import are, markdown_table, share, whole
from skillmix.runs.run import TURNS
from skillmix.runs.students import made_students, settings_for
from skillmix.runs.texts import turn_of
from skillmix.runs.verdicts import answer_of

_Name = TypeVar("_Name", str, tuple[str, str])


@dataclass(frozen=True, slots=True)
class SamplingYield:
    """The result of writing texts until a target is met, for one k."""

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
    """Texts about which the graders have not decided."""
    unfinished: int = 0
    """Conversations that are unfinished."""
    not_conversations: int = 0
    """Texts without two turns, such as imported ones."""
    outside: dict[str, int] = field(default_factory=dict)
    """Texts with full marks outside the recipe, by the rule that excludes them."""
    removed: dict[str, int] = field(default_factory=dict)
    """Copies, counted by kind."""
    shown: dict[str, int] = field(default_factory=dict)
    """Texts that show forbidden content, by reason."""
    examples: tuple[tuple[str, str, str], ...] = ()
    """Some of the copies, each as the reason, the text and the text that it repeats."""


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
    "ships are Apache-2.0. The answers are the output of the models named above, and are theirs to license."
)
_TURNS_IN_WORDS: Final = {1: "prompt, text", 2: "prompt, answer, prompt to improve it, better answer"}
_ONE_SKILL: Final = (
    '- **Each request names one skill** of its text and says "any skill" for each other (`requests: one`), as a '
    "control. The texts equal those of the same set with requests for all skills; the counts below are based on the "
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
    """Write the text of the README."""
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
        else "- **The prompts in the data are not those that the writers saw**: they were rendered again from "
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
        "undecided: a vote is missing or cannot be read": left.undecided,
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
    # A card mentions only the checks against these evaluations.
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
        return "\n".join([*lines, "- No text of other skills names a held-out skill."])
    lines.append("- Held-out skills named in texts of other skills:")
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


DATASET: Final = FolderKind(
    "a data set",
    is_dataset_folder,
    ("train.jsonl", "validation.jsonl", "rows.parquet", "README.md", "dataset_info.json", LINEAGE_FILE),
)


def written_with(experiment: Experiment) -> dict[str, str]:
    """Return the prompt set of each student in an experiment, with its hash; an imported run's students have none."""
    names = (*experiment.students, *made_students(experiment))
    prompts = {name: settings_for(experiment, name).prompts or experiment.prompts for name in names}
    shown = {name: prompts_shown(load_prompts(name)) for name in set(prompts.values())}
    return {name: shown[own] for name, own in prompts.items()}


def kind_of(one: DecidedConversation) -> str:
    """Classify a conversation: 'full', 'less', 'undecided', 'unfinished' or 'no turns'.

    A conversation can be trained on if it has replies to both of its turns, or to its only turn.
    """
    if not one.ballots:
        return "unfinished"
    if 0 in one.earned:
        return "less"
    if None in one.earned:
        return "undecided"
    turns = [turn_of(call) for call in one.conversation.turns if isinstance(call.outcome, Reply)]
    return "full" if turns in ([ONLY_TURN], [*range(1, TURNS + 1)]) else "no turns"


def kept_text(decided: DecidedConversation, run: str, prompts: Mapping[str, str], graders: tuple[str, ...]) -> KeptText:
    """Convert a conversation with full marks to a kept text; `prompts` contains the run's prompt sets by student."""
    conversation = decided.conversation
    assert conversation.text is not None  # a missing text cannot have full marks
    turns, combination = conversation.turns, conversation.text.combination
    first, last = turns[0], turns[-1]
    whole = [call.outcome.text for call in turns if isinstance(call.outcome, Reply)]
    # Omit thoughts, because students learn to answer and not to repeat another model's thoughts.
    replies = tuple([without_thought(reply) or reply for reply in whole])
    return KeptText(
        run=run,
        writer=intern(conversation.key[0]),
        combination=combination,
        generation=conversation.key[2],
        answer_span=span_of(answer_of(replies[-1], last.origin, turn_of(last)).text, replies[-1]),
        text_id=conversation.text.id,
        replies=replies,
        first_status=answer_of(replies[0], first.origin, turn_of(first)).status,
        model=intern(last.model),
        requests=tuple([call.request_hash for call in turns]),
        written_with=prompts.get(conversation.key[0], "unknown prompts"),
        graders=graders,
        votes=tuple([intern(json.dumps([r.points if r else None for r in b.readings])) for b in decided.ballots]),
    )


@dataclass(frozen=True, slots=True)
class WrittenPreferences:
    """A file with pairs of texts, one with full marks and the other without."""

    file: Path
    pairs: int


@dataclass(frozen=True, slots=True)
class WrittenDataset:
    """A data set on disk, with its counts."""

    folder: Path
    written: Written
    by_k: dict[int, int]
    """The number of conversations by k."""
    left: LeftOut
    yields: tuple[SamplingYield, ...] = ()
    preferences: WrittenPreferences | None = None

    @property
    def texts(self) -> int:
        """Count the conversations."""
        return self.written.train + self.written.validation

    def record(self) -> dict[str, Any]:
        """Return everything except the folder and the examples of copies, as JSON for the record of a finished step."""
        return {
            "written": asdict(self.written),
            "by_k": {str(k): count for k, count in self.by_k.items()},
            "left": asdict(replace(self.left, examples=())),
            "yields": [asdict(y) for y in self.yields],
        }

    def as_json(self) -> dict[str, object]:
        """Return the documented form of `dataset --json`."""
        pairs = self.preferences
        return {
            "folder": str(self.folder),
            "hash": self.written.hash,
            "train": self.written.train,
            "validation": self.written.validation,
            "k": {str(k): count for k, count in self.by_k.items()},
            "yields": [
                {
                    "k": y.k,
                    "target": y.target,
                    "taken": y.taken,
                    "conversations": y.written,
                    "full_marks": y.full_marks,
                    "yield": y.rate,
                    "below_floor": y.below_floor,
                }
                for y in self.yields
            ],
            "left_out": {name: count for name, count in asdict(self.left).items() if name != "examples"},
            **({} if pairs is None else {"preferences": {"file": str(pairs.file), "pairs": pairs.pairs}}),
        }

    @property
    def short(self) -> list[SamplingYield]:
        """Return the results for each k with too few texts for later steps."""
        return [y for y in self.yields if not y.is_enough]


def make_dataset(
    texts: Sequence[KeptText],
    plan: DatasetPlan,
    folder: Path,
    *,
    left: LeftOut,
    corpus: Corpus,
    yields: Sequence[SamplingYield] = (),
) -> WrittenDataset:
    """Draw the set, check it for leaks, and write its folder; an error leaves no files behind."""
    is_drawn = plan.recipe.size is not None
    indices = draw_set(plan.recipe, ((t.identity if is_drawn else "", t.combination.k) for t in texts))
    chosen = [texts[index] for index in indices]
    may_be_empty = bool(yields) and all(y.least == 0 for y in yields)
    if not chosen and not may_be_empty:
        raise _empty(plan, left)
    refuse_leaks((t.combination for t in chosen), plan.bars)
    shown = plan.shown_rule.leaks(chosen)
    named = names_inside(((t.combination, t.replies) for t in chosen), plan.catalog, plan.bars.skills)
    if plan.names == "strict":
        refuse_names(named)
    figures = DatasetCounts(chosen, corpus.part(indices), plan, named, shown)
    prompts = load_prompts(plan.prompts, plan.output_format)
    with replacing(folder, DATASET) as new:
        new.mkdir()
        written = write_rows(new, chosen, plan, prompts)
        card = dataset_card(plan, prompts, written, figures, left, yields)
        (new / "README.md").write_text(card, encoding="utf-8")
        info = dataset_info(plan.name, has_validation=written.validation > 0)
        (new / "dataset_info.json").write_text(info, encoding="utf-8")
        write_whole(new / LINEAGE_FILE, _lineage(plan, chosen, written, figures, left, yields).text())
    return WrittenDataset(folder, written, figures.by_k, left, tuple(yields))


def recorded_dataset(folder: Path, record: Mapping[str, Any]) -> WrittenDataset:
    """Restore a data set on disk from the result of `WrittenDataset.record`."""
    return WrittenDataset(
        folder,
        Written(**record["written"]),
        {int(k): count for k, count in record["by_k"].items()},
        LeftOut(**{**record["left"], "examples": ()}),
        # Earlier versions also recorded the number of waves.
        tuple(SamplingYield(**{key: value for key, value in y.items() if key != "waves"}) for y in record["yields"]),
    )


def _empty(plan: DatasetPlan, left: LeftOut) -> UserError:
    why = {
        "less than full marks": left.less,
        "undecided": left.undecided,
        "not over": left.unfinished,
        "without all turns": left.not_conversations,
        **{f"with {reason}": count for reason, count in left.outside.items()},
        **left.removed,
        **left.shown,
    }
    reasons = ", ".join(f"{count} {name}" for name, count in why.items() if count)
    message = f"No text is left for {plan.recipe.name}: {reasons or 'there are no conversations'}. Nothing was written."
    if left.outside.get(EVALUATED):
        steps = ", ".join(sorted(set(plan.bars.evaluations.values())))
        return UserError(f"{message} Combinations of {steps} must not be trained on.", hint=WRITE_FOR_TRAINING)
    return UserError(
        message,
        hint="`skillmix texts RUN` shows the graded texts; more conversations, a better writer or another k may help.",
    )


def _lineage(
    plan: DatasetPlan,
    texts: Sequence[KeptText],
    written: Written,
    figures: DatasetCounts,
    left: LeftOut,
    yields: Sequence[SamplingYield],
) -> DatasetFile:
    """Create the `skillmix.json` of a data set, with the information that trainers and evaluations need."""
    sets = sorted({tuple(sorted(t.combination.skills)) for t in texts if t.combination.k > 1})
    writers = Counter((t.run, t.writer, t.model) for t in texts)
    more: dict[str, Any] = {"groups": sorted(plan.bars.groups)} if plan.bars.groups else {}
    more |= {"requests": plan.requests} if plan.requests != "all" else {}
    counts: dict[str, Any] = {"left_out": {**left.outside, **left.removed, **left.shown}}
    if yields:  # the counts are unknown for joined data sets
        counts["generated"] = {str(y.k): y.written for y in yields}
        counts["full_marks"] = {str(y.k): y.full_marks for y in yields}
        counts["kept"] = {str(y.k): y.taken for y in yields}
    return DatasetFile(
        kind="dataset",
        name=plan.name,
        hash=written.hash,
        recipe=plan.recipe.name,
        catalog=plan.catalog.name,
        catalog_hash=plan.catalog.content_hash(),
        partition=plan.bars.split.name,
        k=list(figures.by_k),
        **more,
        combinations=sorted({t.combination.id for t in texts}),
        skill_sets=[list(skills) for skills in sets],
        writers=sorted({f"{t.run}#{t.writer}" for t in texts}),
        written_by=[WriterEntry(run=r, student=w, model=m, texts=n) for (r, w, m), n in sorted(writers.items())],
        counts=CountsEntry(
            train=written.train,
            validation=written.validation,
            k={str(k): count for k, count in figures.by_k.items()},
            **counts,
            skills=figures.by_skill,
            topics=figures.by_topic,
            pairs=[[one, other, count] for (one, other), count in figures.by_pair.items()],
        ),
    )
