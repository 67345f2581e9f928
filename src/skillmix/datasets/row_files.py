"""Write and read the rows of a data set: JSON Lines for trainers, Parquet with provenance."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import cycle, islice
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, Final

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.datasets.kept_texts import KeptText, is_for_validation, span_of
from skillmix.errors import UserError
from skillmix.experiment.recipes import RequestChoice
from skillmix.hashing import ranked
from skillmix.prompts.prompt_set import PromptSet

_ROWS_AT_ONCE: Final = 5_000
_quoted: Final = encode_basestring


def require_parquet(extra: str = "parquet") -> None:
    """Raise an error that names an extra if pyarrow is missing, before anything is written or paid for."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise UserError("Data sets need pyarrow.", hint=f"pip install 'skillmix[{extra}]'") from None


@dataclass(frozen=True, slots=True)
class Written:
    """The number of lines of a data set, and their hash."""

    train: int
    validation: int
    hash: str


def refuse_more_turns(writer: str, turns: int, prompts: PromptSet) -> None:
    """Refuse prompts of two turns for texts that were written in one."""
    if prompts.turns > turns:
        raise UserError(
            f"The texts of {writer} have one turn, and the prompt set {prompts.name!r} has two.",
            hint="Give the dataset step a prompt set of one turn: prompts: brief.",
        )


class Prompting:
    """The prompts in the data, rendered from each combination."""

    def __init__(self, prompts: PromptSet, catalog: Catalog, requests: RequestChoice) -> None:
        self.prompts = prompts
        self._catalog = catalog
        self._requests = requests
        self._last: tuple[object, tuple[str, ...]] | None = None

    def messages(self, kept: KeptText) -> list[str]:
        """The messages of a conversation, in order; a conversation of one turn has the text alone as its reply."""
        refuse_more_turns(kept.writer, len(kept.replies), self.prompts)
        named = None
        if self._requests == "one":
            named = ranked(list(kept.combination.skills), "requests: one", kept.combination.id, kept.generation)[0]
        if self._last is None or self._last[0] != (kept.combination.id, named):
            prompts = self.prompts.student_prompts(self._catalog, kept.combination, named=named)
            self._last = (kept.combination.id, named), prompts
        replies = kept.replies if self.prompts.turns > 1 else (kept.text,)
        return [message for turn in zip(self._last[1], replies, strict=True) for message in turn]


def in_order(texts: Sequence[KeptText], validation: float) -> tuple[Sequence[KeptText], Sequence[KeptText]]:
    """Split texts into training and validation; both keep their order."""
    split = array("q"), array("q")
    for index, kept in enumerate(texts):
        split[is_for_validation(kept.combination.id, validation)].append(index)
    return [texts[i] for i in split[0]], [texts[i] for i in split[1]]


def write_rows(folder: Path, texts: Sequence[KeptText], *, prompting: Prompting, validation: float) -> Written:
    """Write train.jsonl, validation.jsonl and rows.parquet."""
    import pyarrow
    from pyarrow import parquet

    train, held_back = in_order(texts, validation)
    content = blake2b(digest_size=16)
    schema = _schema()
    with parquet.ParquetWriter(folder / "rows.parquet", schema, compression="zstd") as rows:
        for split, part in (("train", train), ("validation", held_back)):
            with (folder / f"{split}.jsonl").open("wb") as lines:
                source = iter(part)
                while chunk := list(islice(source, _ROWS_AT_ONCE)):
                    conversations = [prompting.messages(kept) for kept in chunk]
                    block = "".join([line_of(*messages) for messages in conversations]).encode()
                    lines.write(block)
                    content.update(block)
                    columns = _columns(chunk, conversations, split, prompting.prompts)
                    rows.write_table(pyarrow.Table.from_pydict(columns, schema=schema))
            content.update(b"\0")
    return Written(len(train), len(held_back), content.hexdigest())


def content_hash(files: Sequence[Path]) -> str:
    """The hash of a data set's lines, as `write_rows` computes it: of the train file, then the validation file."""
    content = blake2b(digest_size=16)
    for file in files:
        if file.is_file():
            with file.open("rb") as lines:
                while block := lines.read(1 << 20):
                    content.update(block)
        content.update(b"\0")
    return content.hexdigest()


def line_of(*messages: str) -> str:
    """One line as `json.dumps` would write it; the constant parts are not encoded again."""
    parts = [f"{role}{_quoted(message)}}}" for role, message in zip(cycle(_ROLE_PARTS), messages, strict=False)]
    return f'{{"messages": [{", ".join(parts)}]}}\n'


_ROLE_PARTS: Final = tuple(f'{{"role": "{role}", "content": ' for role in ("user", "assistant"))


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


def _columns(
    texts: Sequence[KeptText], conversations: Sequence[Sequence[str]], split: str, prompts: PromptSet
) -> dict[str, Any]:
    import pyarrow as pa

    flat = [content for messages in conversations for content in messages]
    per_row = 2 * prompts.turns
    roles = pa.array(["user", "assistant"] * (prompts.turns * len(texts)))
    messages = pa.StructArray.from_arrays([roles, pa.array(flat, pa.string())], ["role", "content"])
    offsets = pa.array(range(0, per_row * len(texts) + 1, per_row), pa.int32())
    shown = prompts_shown(prompts)
    return {
        "split": [split] * len(texts),
        "run": [t.run for t in texts],
        "key": [t.key for t in texts],
        "writer": [t.writer for t in texts],
        "model": [t.model for t in texts],
        "combination": [t.combination.id for t in texts],
        "k": [t.combination.k for t in texts],
        "skills": [t.combination.skills for t in texts],
        "topic": [t.combination.topic for t in texts],
        "generation": [t.generation for t in texts],
        "text": [t.text for t in texts],
        "text_id": [t.text_id for t in texts],
        "first_answer": [t.first_status for t in texts],
        "request_hashes": [t.requests for t in texts],
        "written_with": [t.written_with for t in texts],
        "prompts": [shown] * len(texts),
        "graders": [t.graders for t in texts],
        "votes": [t.votes for t in texts],
        "messages": pa.ListArray.from_arrays(offsets, messages),
    }


def prompts_shown(prompts: PromptSet) -> str:
    """The name of a prompt set with its hash, for cards and rows."""
    return f"{prompts.name} ({prompts.content_hash()})"


def read_rows(folder: Path) -> Iterator[KeptText]:
    """Read the rows of a data set as kept texts."""
    from pyarrow import parquet

    path = folder / "rows.parquet"
    if not path.is_file():
        raise UserError(f"There is no data set in {folder}.", hint="Run the step that makes it.")
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
            for row in batch.to_pylist():
                yield _kept_of(row)


def _kept_of(row: Mapping[str, Any]) -> KeptText:
    replies = tuple(message["content"] for message in row["messages"][1::2])
    return KeptText(
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
