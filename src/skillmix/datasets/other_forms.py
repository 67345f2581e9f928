"""Make other training data: prompts for trainers that generate the answers themselves, and pairs for DPO."""

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.datasets.copies import KeptText, is_for_validation
from skillmix.datasets.dataset_plan import DatasetPlan
from skillmix.datasets.decisions import Decisions
from skillmix.datasets.row_files import read_rows
from skillmix.errors import UserError
from skillmix.files import require_package
from skillmix.grading.points import StudentText
from skillmix.prompts.prompt_set import PromptSet, load_prompts
from skillmix.prompts.rubric import length_limit, limit_in_words
from skillmix.runs.run import Run

_WRITERS: Final = (".jsonl", ".parquet")


def prompt_rows(
    combinations: Sequence[Combination], catalog: Catalog, prompts: PromptSet, *, catalog_name: str
) -> Iterator[dict[str, Any]]:
    """Yield a conversational prompt for each combination, with the columns that `skillmix.rewards` reads.

    The prompt is the first turn of an evaluation, plus the sentence limit, which an evaluation states in the second
    turn.
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
    """Return a conversation's first prompt plus the text limit, for trainers that support only one turn."""
    first, *later = prompts.student_prompts(catalog, combination)
    if not later:
        return first
    form = prompts.phrases.format
    return f"{first}\n\nThe text may have at most {limit_in_words(length_limit(combination.k, form), form)}."


def require_new_rows_file(file: Path) -> None:
    """Raise an error if the file exists or its extension is unknown; called before any work is done."""
    if file.suffix not in _WRITERS:
        raise UserError(f"{file} is neither .jsonl nor .parquet.", hint="The file extension determines the format.")
    if file.exists():
        raise UserError(f"{file} already exists.", hint="Choose another file, or remove this one.")
    if file.suffix == ".parquet":
        require_package("pyarrow", "A data set", extra="parquet")


def write_rows_file(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as JSON Lines or Parquet, by the extension of the file; raise an error if the file exists."""
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


def preference_rows(
    folder: Path,
    runs: Sequence[Run],
    plan: DatasetPlan,
    *,
    graders: Sequence[str] | None,
    students: Sequence[str] | None,
) -> Iterator[dict[str, Any]]:
    """Yield pairs of texts for the same combination: a text in the data set, and a text of a run without full marks.

    Every text is in at most one pair, and texts by the same writer are paired first. Combinations in the validation
    split are excluded, and so are rejected texts that are empty or show content that a data set must not show.
    """
    prompts = load_prompts(plan.prompts, plan.output_format)
    chosen_of: dict[str, list[KeptText]] = {}
    for text in read_rows(folder):
        if not is_for_validation(text.combination.id, plan.validation):
            chosen_of.setdefault(text.combination.id, []).append(text)
    rejected_of: dict[str, list[tuple[str, StudentText]]] = defaultdict(list)
    """Texts without full marks by combination, each with the name of its run."""
    for run in runs:
        name = run.name
        with Decisions(run, graders=graders) as decisions:
            for one in decisions.every(students=students):
                own = one.conversation.text
                if own is None or own.combination.id not in chosen_of or not own.answer.text:
                    continue
                if 0 in one.earned and (plan.shown == "count" or plan.shown_rule.leak_in(own.answer.text) is None):
                    rejected_of[own.combination.id].append((name, own))
    for id_, texts in chosen_of.items():
        combination, left, pairs, alone = texts[0].combination, rejected_of[id_], [], []
        for chosen in texts:
            of_writer = (other for other in left if (other[0], other[1].student) == (chosen.run, chosen.writer))
            if (other := next(of_writer, None)) is None:
                alone.append(chosen)
            else:
                left.remove(other)
                pairs.append((chosen, other))
        for chosen, (_, rejected) in chain(pairs, zip(alone, left, strict=False)):
            yield {
                "prompt": [{"role": "user", "content": one_turn_prompt(prompts, plan.catalog, combination)}],
                "chosen": [{"role": "assistant", "content": prompts.said(chosen.text)}],
                "rejected": [{"role": "assistant", "content": prompts.said(rejected.answer.text)}],
                "skills": list(combination.skills),
                "topic": combination.topic,
                "k": combination.k,
                "combination": combination.id,
                "chosen_writer": chosen.writer,
                "rejected_writer": rejected.student,
            }
