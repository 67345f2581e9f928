"""Write and read the rows of a data set: JSON Lines for trainers, Parquet with provenance."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from skillmix.catalog.combinations import Combination
from skillmix.datasets.copies import KeptText, is_for_validation, span_of
from skillmix.datasets.dataset_plan import DatasetPlan
from skillmix.errors import UserError
from skillmix.hashing import ranked
from skillmix.prompts.prompt_set import PromptSet

_ROWS_AT_ONCE: Final = 5_000


@dataclass(frozen=True, slots=True)
class Written:
    """The number of lines in each split of a data set, and the hash of all lines."""

    train: int
    validation: int
    hash: str


def refuse_more_turns(writer: str, turns: int, prompts: PromptSet) -> None:
    """Raise an error if the prompts have two turns but the texts were written in one turn."""
    if prompts.turns > turns:
        raise UserError(
            f"The texts of {writer} have one turn, but the prompt set {prompts.name!r} has two.",
            hint="Set a one-turn prompt set in the dataset step: prompts: brief.",
        )


def messages_of(kept: KeptText, plan: DatasetPlan, prompts: PromptSet) -> list[dict[str, str]]:
    """Return the messages of a conversation in order; a one-turn conversation has only the text as its reply."""
    refuse_more_turns(kept.writer, len(kept.replies), prompts)
    named = None
    if plan.requests == "one":
        named = ranked(list(kept.combination.skills), "requests: one", kept.combination.id, kept.generation)[0]
    asked = prompts.student_prompts(plan.catalog, kept.combination, named=named)
    replies = kept.replies if prompts.turns > 1 else (kept.text,)
    turns = zip(asked, replies, strict=True)
    return [{"role": r, "content": c} for turn in turns for r, c in zip(("user", "assistant"), turn, strict=True)]


def write_rows(folder: Path, texts: Sequence[KeptText], plan: DatasetPlan, prompts: PromptSet) -> Written:
    """Write train.jsonl, validation.jsonl and rows.parquet."""
    import pyarrow
    from pyarrow import parquet

    parts: dict[str, list[KeptText]] = {"train": [], "validation": []}
    for kept in texts:
        parts["validation" if is_for_validation(kept.combination.id, plan.validation) else "train"].append(kept)
    content, schema, shown = blake2b(digest_size=16), _schema(), prompts_shown(prompts)
    with parquet.ParquetWriter(folder / "rows.parquet", schema, compression="zstd") as rows:
        for split, part in parts.items():
            with (folder / f"{split}.jsonl").open("wb") as lines:
                for start in range(0, len(part), _ROWS_AT_ONCE):
                    chunk = [(kept, messages_of(kept, plan, prompts)) for kept in part[start : start + _ROWS_AT_ONCE]]
                    dumped = (json.dumps({"messages": messages}, ensure_ascii=False) for _, messages in chunk)
                    block = "".join(f"{line}\n" for line in dumped).encode()
                    lines.write(block)
                    content.update(block)
                    table = [_row(kept, messages, split, shown) for kept, messages in chunk]
                    rows.write_table(pyarrow.Table.from_pylist(table, schema=schema))
            content.update(b"\0")
    return Written(len(parts["train"]), len(parts["validation"]), content.hexdigest())


def content_hash(files: Sequence[Path]) -> str:
    """Hash a data set's lines in the same way as `write_rows`; list the train file before the validation file."""
    content = blake2b(digest_size=16)
    for file in files:
        if file.is_file():
            with file.open("rb") as lines:
                while block := lines.read(1 << 20):
                    content.update(block)
        content.update(b"\0")
    return content.hexdigest()


_COLUMNS: Final[str] = (
    "split run key writer model combination k skills topic generation text text_id first_answer request_hashes "
    "written_with prompts graders votes messages"
)


def _schema() -> Any:
    import pyarrow as pa

    text, texts, number = pa.string(), pa.list_(pa.string()), pa.int32()
    other = {"k": number, "generation": number, "messages": pa.list_(pa.struct([("role", text), ("content", text)]))}
    other |= dict.fromkeys(("skills", "request_hashes", "graders", "votes"), texts)
    return pa.schema([(name, other.get(name, text)) for name in _COLUMNS.split()])


def _row(kept: KeptText, messages: list[dict[str, str]], split: str, prompts: str) -> dict[str, Any]:
    return {
        "split": split,
        "run": kept.run,
        "key": kept.key,
        "writer": kept.writer,
        "model": kept.model,
        "combination": kept.combination.id,
        "k": kept.combination.k,
        "skills": kept.combination.skills,
        "topic": kept.combination.topic,
        "generation": kept.generation,
        "text": kept.text,
        "text_id": kept.text_id,
        "first_answer": kept.first_status,
        "request_hashes": kept.requests,
        "written_with": kept.written_with,
        "prompts": prompts,
        "graders": kept.graders,
        "votes": kept.votes,
        "messages": messages,
    }


def prompts_shown(prompts: PromptSet) -> str:
    """Describe a prompt set by its name and hash, for cards and rows."""
    return f"{prompts.name} ({prompts.content_hash()})"


def read_rows(folder: Path) -> Iterator[KeptText]:
    """Yield the rows of a data set as kept texts."""
    from pyarrow import parquet

    path = folder / "rows.parquet"
    if not path.is_file():
        raise UserError(f"There is no data set in {folder}.", hint="First run the step that makes it.")
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
            for row in batch.to_pylist():
                replies = tuple(message["content"] for message in row["messages"][1::2])
                yield KeptText(
                    run=row["run"],
                    writer=row["writer"],
                    combination=Combination(row["combination"], tuple(row["skills"]), row["topic"]),
                    generation=row["generation"],
                    answer_span=span_of(row["text"], replies[-1]),
                    text_id=row["text_id"],
                    replies=replies,
                    first_status=row["first_answer"],
                    model=row["model"],
                    requests=tuple(row["request_hashes"]),
                    written_with=row["written_with"],
                    graders=tuple(row["graders"]),
                    votes=tuple(row["votes"]),
                )
