"""Prompts without answers, for trainers that let the model write: one row for each combination."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.datasets.row_files import require_parquet
from skillmix.errors import UserError
from skillmix.prompts.prompt_set import PromptSet
from skillmix.prompts.rubric import length_limit, limit_in_words

_WRITERS: Final = (".jsonl", ".parquet")


def prompt_rows(
    combinations: Sequence[Combination], catalog: Catalog, prompts: PromptSet, *, catalog_name: str
) -> Iterator[dict[str, Any]]:
    """A conversational prompt for each combination, with the columns that `skillmix.rewards` reads.

    The prompt is the first turn of an evaluation, and the limit on sentences, which is in the second turn there.
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
    """The first prompt of a conversation with the limit on the text, for trainers that know one turn only."""
    first, *later = prompts.student_prompts(catalog, combination)
    if not later:
        return first
    form = prompts.phrases.format
    return f"{first}\n\nThe text may have at most {limit_in_words(length_limit(combination.k, form), form)}."


def require_new_rows_file(file: Path) -> None:
    """Refuse a file that exists, or whose name is of no known format, before any work is done."""
    if file.suffix not in _WRITERS:
        raise UserError(f"{file} is neither .jsonl nor .parquet.", hint="The name of the file decides its format.")
    if file.exists():
        raise UserError(f"{file} exists.", hint="Choose another file, or remove it.")
    if file.suffix == ".parquet":
        require_parquet()


def write_rows_file(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as JSON Lines or Parquet, by the name of the file; an existing file is left alone."""
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
