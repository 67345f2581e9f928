"""Collect kept texts from graded conversations, and write a data set's folder from kept texts."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from sys import intern
from typing import Any, Final

from skillmix.calls import ONLY_TURN, Reply
from skillmix.datasets.card import DatasetCounts, LeftOut, SamplingYield, dataset_card, dataset_info
from skillmix.datasets.copies import KeptText, span_of
from skillmix.datasets.corpus import Corpus
from skillmix.datasets.dataset_plan import DatasetPlan
from skillmix.datasets.decisions import DecidedConversation
from skillmix.datasets.leakage import (
    EVALUATED,
    WRITE_FOR_TRAINING,
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
from skillmix.prompts.prompt_set import load_prompts
from skillmix.runs.run import TURNS
from skillmix.runs.students import made_students, settings_for
from skillmix.runs.texts import turn_of
from skillmix.runs.verdicts import answer_of

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
        """Return the document that `skillmix dataset --json` prints."""
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
    """Draw the data set, check it for leaks, and write its folder; an error leaves no files behind."""
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
    """Return the data set in a folder, given the result of its `WrittenDataset.record`."""
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
