"""Pairs of texts of the same combination, one with full marks and one without, for DPO and its relatives."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skillmix.catalog.catalog import Catalog
from skillmix.datasets.kept_texts import KeptText, is_for_validation
from skillmix.datasets.other_forms.prompts_only import one_turn_prompt
from skillmix.datasets.shown import ShownRule
from skillmix.prompts.prompt_set import PromptSet
from skillmix.runs.reading.decisions import decided_conversations, decision_rules
from skillmix.runs.run import Run


@dataclass(frozen=True, slots=True)
class RejectedText:
    """A text that a grader denied full marks."""

    run: str
    writer: str
    generation: int
    text: str


def rejected_texts(
    run: Run, combinations: frozenset[str], *, graders: Sequence[str] | None, students: Sequence[str] | None
) -> Iterator[tuple[str, RejectedText]]:
    """The decided texts of a run with less than full marks, each with its combination; empty ones are left out."""
    for one in decided_conversations(decision_rules(run, graders=graders), students=students):
        text = one.conversation.text
        is_denied = any(decision.earned == 0 for decision in one.decisions)
        if text is not None and is_denied and text.combination.id in combinations and text.answer.text:
            yield text.combination.id, RejectedText(run.name, text.student, text.generation, text.answer.text)


def preference_rows(
    kept: Sequence[KeptText],
    rejected: Mapping[str, Sequence[RejectedText]],
    *,
    catalog: Catalog,
    prompts: PromptSet,
    validation: float,
) -> Iterator[dict[str, Any]]:
    """One row for each pair; every text is in one pair at most, and texts of the same writer meet first.

    Combinations whose texts are for validation are left out.
    """
    chosen_of: dict[str, list[KeptText]] = defaultdict(list)
    for text in kept:
        if not is_for_validation(text.combination.id, validation):
            chosen_of[text.combination.id].append(text)
    for id_, texts in chosen_of.items():
        combination = texts[0].combination
        prompt = [{"role": "user", "content": one_turn_prompt(prompts, catalog, combination)}]
        for chosen, other in _pairs(texts, rejected.get(id_, ())):
            yield {
                "prompt": prompt,
                "chosen": _reply(prompts.said(chosen.text)),
                "rejected": _reply(prompts.said(other.text)),
                "skills": list(combination.skills),
                "topic": combination.topic,
                "k": combination.k,
                "combination": combination.id,
                "chosen_writer": chosen.writer,
                "rejected_writer": other.writer,
            }


def _reply(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def _pairs(kept: Sequence[KeptText], rejected: Sequence[RejectedText]) -> Iterator[tuple[KeptText, RejectedText]]:
    left = list(rejected)
    alone: list[KeptText] = []
    for chosen in kept:
        own = next((other for other in left if (other.run, other.writer) == (chosen.run, chosen.writer)), None)
        if own is None:
            alone.append(chosen)
        else:
            left.remove(own)
            yield chosen, own
    yield from zip(alone, left, strict=False)


def rejected_by_combination(
    runs: Sequence[Run],
    kept: Sequence[KeptText],
    rule: ShownRule,
    *,
    graders: Sequence[str] | None,
    students: Sequence[str] | None,
) -> dict[str, list[RejectedText]]:
    """The rejected texts for the combinations of a data set, without those that show what no training text may."""
    wanted = frozenset(text.combination.id for text in kept)
    found: dict[str, list[RejectedText]] = defaultdict(list)
    for run in runs:
        for combination, text in rejected_texts(run, wanted, graders=graders, students=students):
            if not rule.leaks_in(text.text):
                found[combination].append(text)
    return found
