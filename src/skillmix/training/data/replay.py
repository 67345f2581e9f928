"""Replayed text: plain text from files of any size, read on demand and identical after a resume.

A hash draws the file of the n-th text, with larger files drawn more often. The texts in a file are used in order,
and then again from the first. To resume at a later text, the earlier draws are counted, and each file is
read from its start without tokenizing.
"""

import gzip
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import IO, Final

import numpy as np

from skillmix.errors import UserError
from skillmix.files import require_package
from skillmix.hashing import digest
from skillmix.training.data.examples import Example

_CHARACTERS_PER_TOKEN: Final = 4
_MOST_OPEN: Final = 64
_JSON_LINES: Final = (".jsonl", ".jsonl.gz", ".ndjson")
_OPENERS: Final[dict[str, Callable[..., IO[str]]]] = {".gz": gzip.open}
_SKIPPED: Final = (".", "_")
"""Files whose names start with one of these characters are skipped."""


class Replay:
    """Numbered texts for replay, drawn from files and folders."""

    def __init__(
        self,
        sources: Sequence[Path],
        *,
        tokenize: Callable[[str], list[int]],
        limit: int,
        field: str = "text",
        seed: int = 0,
    ) -> None:
        self.files = files_of(sources)
        """The files of the sources, in the order that draws depend on."""
        self._bounds = list(accumulate(file.stat().st_size for file in self.files))
        self._tokenize, self._limit, self._field, self._seed = tokenize, limit, field, seed
        self._open: dict[int, tuple[int, Iterator[str]]] = {}
        """Open files, least recently used first, each with the index of its next text and an iterator from there."""
        self._counts: Counter[int] = Counter()
        """For each file, by index, how many of the first `_counted` texts are drawn from it."""
        self._counted = 0

    def text(self, number: int) -> Example:
        """Return the replayed text with this number, counted from 0; this is fast if the numbers increase."""
        if number < self._counted:
            self._counts, self._counted = Counter(), 0
        while self._counted < number:
            self._counts[self._drawn_file(self._counted)] += 1
            self._counted += 1
        file = self._drawn_file(number)
        index, size = self._counts[file], self._limit * _CHARACTERS_PER_TOKEN
        place, texts = self._open.pop(file, (index + 1, iter(())))
        if place > index:
            place, texts = 0, _endless_texts(self.files[file], field=self._field, size=size)
        text = next(islice(texts, index - place, None))
        self._open[file] = index + 1, texts
        if len(self._open) > _MOST_OPEN:
            del self._open[next(iter(self._open))]
        tokens = np.asarray(self._tokenize(text)[: self._limit], dtype=np.int32)
        is_trained = np.arange(len(tokens)) > 0
        return Example(f"replay/{self.files[file].name}/{index}", tokens, is_trained, is_replay=True)

    def _drawn_file(self, number: int) -> int:
        """Return the index of the file from which a text is drawn."""
        share = int.from_bytes(digest("replay", self._seed, number, size=8)) / 2**64
        return min(bisect_right(self._bounds, share * self._bounds[-1]), len(self.files) - 1)


def _endless_texts(file: Path, *, field: str, size: int) -> Iterator[str]:
    """Yield a file's texts endlessly, split into parts of at most `size` characters; blank parts are omitted."""
    while True:
        if file.name.endswith(_JSON_LINES):
            texts = _json_texts(file, field)
        elif file.suffix == ".parquet":
            texts = _parquet_texts(file, field)
        else:
            texts = _blocks(file, size)
        is_empty = True
        for text in texts:
            for start in range(0, len(text), size):
                # A text needs at least two tokens, because the first predicts the second.
                if len(part := text[start : start + size].strip()) > 1:
                    is_empty = False
                    yield part
        if is_empty:
            raise UserError(f"{file} has no text to replay.", hint="Leave it out of replay.sources.")


def _json_texts(file: Path, field: str) -> Iterator[str]:
    with _OPENERS.get(file.suffix, open)(file, "rt", encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)[field]
            except (ValueError, KeyError, TypeError, RecursionError):
                text = None
            if not isinstance(text, str):
                raise UserError(
                    f"{file}:{number} has no text under {field!r}.", hint="Name another key with replay.field."
                )
            yield text


def _parquet_texts(file: Path, field: str) -> Iterator[str]:
    require_package("pyarrow", "Parquet", extra="parquet")
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(file) as table:
            if field not in table.schema_arrow.names:
                raise UserError(f"{file} has no column {field!r}.", hint="Name another with replay.field.")
            for rows in table.iter_batches(batch_size=64, columns=[field]):
                yield from (str(text) for text in rows.column(0).to_pylist() if text is not None)
    except ArrowInvalid as error:
        raise UserError(
            f"{file} cannot be read: {error}",
            hint="Write the file again as Parquet, or leave it out of replay.sources.",
        ) from None


def _blocks(file: Path, size: int) -> Iterator[str]:
    """Split a plain text file into blocks of whole lines; only lines longer than a block are split."""
    block: list[str] = []
    length = 0
    with _OPENERS.get(file.suffix, open)(file, "rt", encoding="utf-8", errors="replace") as lines:
        while line := lines.readline(size):
            if block and length + len(line) > size:
                yield "".join(block)
                block, length = [], 0
            block.append(line)
            length += len(line)
    yield "".join(block)


def check_texts(sources: Sequence[Path], *, field: str) -> None:
    """Read the first text of each file without a tokenizer; raise an error if a file is missing or unreadable."""
    for file in files_of(sources)[:_MOST_OPEN]:
        next(_endless_texts(file, field=field, size=_CHARACTERS_PER_TOKEN))


def state_of(sources: Sequence[Path]) -> list[list[object]]:
    """Return the names and sizes of the files, which the draws depend on; a run can resume only with the same files."""
    return [[str(file), file.stat().st_size] for file in files_of(sources)]


def files_of(sources: Sequence[Path]) -> list[Path]:
    """Return the files in sources, including all files of a folder in the order of their names."""
    files: list[Path] = []
    for source in sources:
        if source.is_dir():
            inside = sorted(p for p in source.rglob("*") if p.is_file() and not p.name.startswith(_SKIPPED))
            files += [file for file in inside if file.stat().st_size]
        elif source.is_file():
            files.append(source)
        else:
            raise UserError(
                f"There is no {source} to replay.",
                hint="replay.sources names files and folders; --set steps.NAME.replay=null trains without replay.",
            )
    if not files or not sum(file.stat().st_size for file in files):
        raise UserError(
            "replay.sources contains no text.", hint="Name a text, JSON Lines or Parquet file, or a folder."
        )
    return files
