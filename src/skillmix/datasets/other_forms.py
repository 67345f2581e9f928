"""Other forms of the same data: prompts without answers for trainers in which the model writes, and pairs for DPO."""

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.datasets.kept_texts import KeptText, is_for_validation
from skillmix.datasets.row_files import require_parquet
from skillmix.datasets.shown import ShownRule
from skillmix.errors import UserError
from skillmix.prompts.prompt_set import PromptSet
from skillmix.prompts.rubric import length_limit, limit_in_words
from skillmix.runs.decisions import Decisions
from skillmix.runs.run import Run

_WRITERS: Final = (".jsonl", ".parquet")


def prompt_rows(
    combinations: Sequence[Combination], catalog: Catalog, prompts: PromptSet, *, catalog_name: str
) -> Iterator[dict[str, Any]]:
    """Make a conversational prompt for each combination, with the columns that `skillmix.rewards` reads.

    The prompt is the first turn of an evaluation, plus the limit on sentences, which is in the second turn there.
    """
    examples = prompts.worked_turns()
    for combination in combinations:
        earlier = [*examples, *prompts.lead_turns(catalog, combination)]
        messages = [
            {"role": role, "content": content}
            for turn in earlier
            for role, content in zip(("user", "assistant"), turn, strict=True)
        ]
        yield {
            "prompt": [*messages, {"role": "user", "content": one_turn_prompt(prompts, catalog, combination)}],
            "skills": list(combination.skills),
            "topic": combination.topic,
            "k": combination.k,
            "combination": combination.id,
            "catalog": catalog_name,
        }


def one_turn_prompt(prompts: PromptSet, catalog: Catalog, combination: Combination) -> str:
    """Return the first prompt of a conversation with the limit on the text, for trainers that support only one turn."""
    first, *later = prompts.student_prompts(catalog, combination)
    if not later:
        return first
    form = prompts.phrases.format
    return f"{first}\n\nThe text may have at most {limit_in_words(length_limit(combination.k, form), form)}."


def require_new_rows_file(file: Path) -> None:
    """Refuse an existing file, or one whose name has an unknown format, before any work is done."""
    if file.suffix not in _WRITERS:
        raise UserError(f"{file} is neither .jsonl nor .parquet.", hint="The file extension determines the format.")
    if file.exists():
        raise UserError(f"{file} exists.", hint="Choose another file, or remove this one.")
    if file.suffix == ".parquet":
        require_parquet()


def write_rows_file(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as JSON Lines or Parquet, by the extension of the file; an existing file is not changed."""
    require_new_rows_file(file)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        if file.suffix == ".parquet":
            import pyarrow
            from pyarrow import parquet

            parquet.write_table(pyarrow.Table.from_pylist(list(rows)), partial, compression="zstd")
        else:
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            with partial.open("w", encoding="utf-8") as stream:
                stream.writelines(lines)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class RejectedText:
    """A text that a grader denied full marks."""

    run: str
    writer: str
    generation: int
    text: str


def preference_rows(
    kept: Sequence[KeptText],
    rejected: Mapping[str, Sequence[RejectedText]],
    *,
    catalog: Catalog,
    prompts: PromptSet,
    validation: float,
) -> Iterator[dict[str, Any]]:
    """Yield one row for each pair; every text is in at most one pair, and texts of the same writer are paired first.

    Combinations whose texts are for validation are omitted.
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
                "chosen": [{"role": "assistant", "content": prompts.said(chosen.text)}],
                "rejected": [{"role": "assistant", "content": prompts.said(other.text)}],
                "skills": list(combination.skills),
                "topic": combination.topic,
                "k": combination.k,
                "combination": combination.id,
                "chosen_writer": chosen.writer,
                "rejected_writer": other.writer,
            }


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
    """Return the rejected texts for a data set's combinations that are not empty and show nothing forbidden."""
    wanted = frozenset(text.combination.id for text in kept)
    found: dict[str, list[RejectedText]] = defaultdict(list)
    for run in runs:
        with Decisions(run, graders=graders) as decisions:
            for one in decisions.every(students=students):
                text = one.conversation.text
                if text is None or text.combination.id not in wanted or not text.answer.text:
                    continue
                if any(decision.earned == 0 for decision in one.decisions) and not rule.leaks_in(text.answer.text):
                    rejected = RejectedText(run.name, text.student, text.generation, text.answer.text)
                    found[text.combination.id].append(rejected)
    return found
