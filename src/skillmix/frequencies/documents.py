"""Read the documents of a corpus, of any size and from anybody, and draw a sample of passages from them.

A line that cannot be used is counted with its reason and skipped. A file that cannot be used is a fault, and one error
lists the faults of all files. A document is a stream of paragraphs, so that a file of any size takes little memory.

A passage is a stretch of a document of about `words` words that ends with a sentence. The rank of a passage is a hash
of the seed and its text, and the sample is the passages with the lowest ranks. So the sample depends on the texts
alone: not on the order, the names, the number or the format of the files. A passage that occurs several times is drawn
once; whatever is in the sample at the end was in it since its first occurrence, so its occurrences are counted exactly.
"""

import gzip
import io
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from heapq import heappush, heapreplace
from itertools import chain
from pathlib import Path
from typing import IO, Final

from skillmix.calls import clean_text, text_id
from skillmix.errors import UserError, faults_error
from skillmix.grading.answers import sentence_spans

_TEXT: Final = (".txt", ".txt.gz", ".text", ".md")
_JSON_LINES: Final = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
_PARQUET: Final = (".parquet",)
ENDINGS: Final = (*_TEXT, *_JSON_LINES, *_PARQUET)
"""Endings of the names of files that can be read."""
_SKIPPED: Final = (".", "_")
"""First characters of the names of files that are not texts."""
_LONGEST_LINE: Final = 64 << 20
"""Bytes; a longer line of JSON is skipped."""
LONGEST_PARAGRAPH: Final = 1 << 20
"""The longest paragraph in characters; a longer one is split."""
_FIRST_PART: Final = 1 << 16
"""Characters at the start of a document that show how its paragraphs are separated."""

NOT_JSON: Final = "lines that are not JSON"
NO_TEXT: Final = "records without text in the field"
TOO_LONG: Final = f"lines of more than {_LONGEST_LINE >> 20} MiB"
NOT_UTF8: Final = "documents with bytes that are not UTF-8, which were replaced"
OUTER_LINK: Final = "links in a folder that lead out of it or nowhere"
UNKNOWN_KIND: Final = "files in a folder that are of no known kind"


@dataclass(frozen=True, slots=True)
class CorpusDocument:
    """One text of a corpus: a text file, a line of JSON Lines, or a row of Parquet."""

    place: str
    """The file, and the number of the line or row."""
    paragraphs: Iterator[str]


@dataclass(slots=True)
class ReadCounts:
    """Counts of what was read from a corpus, and of unusable parts."""

    files: int = 0
    documents: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Lines and records that were not used, by reason."""
    file_faults: list[str] = field(default_factory=list)


def corpus_files(sources: Sequence[Path], *, skipped: Counter[str] | None = None) -> list[Path]:
    """Return the source files, with all readable files of a folder in order of their names.

    A source may be a link. A link inside a folder is used only if it leads into the same folder, because an untrusted
    corpus must not choose other files of this machine. Skipped files are counted in `skipped`.
    """
    files, faults = list[Path](), list[str]()
    for source in sources:
        try:
            is_folder, is_file = source.is_dir(), source.is_file()
        except OSError as error:
            faults.append(f"{source} cannot be read: {error.strerror or error}")
            continue
        if is_folder:
            found, left_out, own = _files_below(source)
            files += found
            if skipped is not None:
                skipped.update(left_out)
            if not found and not own:
                more = "".join(f"; it has {count} {reason}" for reason, count in sorted(left_out.items()))
                own = [f"the folder {source} has no file of a known kind{more}"]
            faults += own
        elif not is_file:
            faults.append(f"there is no {source}")
        elif not source.name.lower().endswith(ENDINGS):
            faults.append(f"{source} is not a file of a known kind")
        else:
            files.append(source)
    if faults or not files:
        raise faults_error("--corpus", faults or ["no file is named"], hint=f"Known endings: {', '.join(ENDINGS)}.")
    by_path = {file.resolve(): file for file in reversed(files)}  # a file that is named twice counts once
    return list(reversed(by_path.values()))


def _files_below(folder: Path) -> tuple[list[Path], Counter[str], list[str]]:
    """Return the readable files, the skipped ones, and faults."""
    found, skipped, faults = list[Path](), Counter[str](), list[str]()
    root, paths = folder.resolve(), list[Path]()

    def note_fault(error: OSError) -> None:
        faults.append(f"{error.filename} cannot be read: {error.strerror or error}")

    for parent, folders, names in os.walk(folder, onerror=note_fault):
        paths += [Path(parent, name) for name in names]
        paths += [path for name in folders if (path := Path(parent, name)).is_symlink()]
    for path in sorted(path for path in paths if not path.name.startswith(_SKIPPED)):
        try:
            if path.is_symlink() and not (path.exists() and path.resolve().is_relative_to(root)):
                skipped[OUTER_LINK] += 1
            elif path.is_file():
                is_known = path.name.lower().endswith(ENDINGS)
                found += [path] if is_known else []
                skipped[UNKNOWN_KIND] += not is_known
        except (OSError, RuntimeError) as error:  # a circle of links is a RuntimeError before Python 3.13
            faults.append(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}")
    return found, +skipped, faults


def documents_of(files: Sequence[Path], *, text_field: str, counts: ReadCounts) -> Iterator[CorpusDocument]:
    """The documents of all files, in order; one error at the end lists the files that cannot be read."""
    for file in files:
        yield from _documents_in(file, text_field, counts)
    if counts.file_faults:
        raise files_error(counts.file_faults, text_field)


def check_files(files: Sequence[Path], *, text_field: str) -> None:
    """Read the first document of each file, so that most faults show before a long reading begins."""
    counts = ReadCounts()
    for file in files:
        for document in _documents_in(file, text_field, counts):
            next(document.paragraphs, None)
            break
    if counts.file_faults:
        raise files_error(counts.file_faults, text_field)


def files_error(faults: Sequence[str], text_field: str) -> UserError:
    """The error about files that cannot be read."""
    return faults_error(
        "--corpus",
        faults,
        hint=f"Fix or remove these files. Texts were read from --field {text_field}.",
    )


def _documents_in(file: Path, text_field: str, counts: ReadCounts) -> Iterator[CorpusDocument]:
    name = file.name.lower()
    read = _read_json_lines if name.endswith(_JSON_LINES) else _read_parquet if name.endswith(_PARQUET) else _read_text
    before, skipped_before = counts.documents, counts.skipped.total()
    counts.files += 1

    def whole(paragraphs: Iterator[str]) -> Iterator[str]:
        """Paragraphs are read from the file while they are used, so its faults appear here, too."""
        with _noting_faults(file, counts):
            yield from paragraphs

    with _noting_faults(file, counts):
        for document in read(file, text_field, counts):
            counts.documents += 1
            yield replace(document, paragraphs=whole(document.paragraphs))
        if counts.documents == before and counts.skipped.total() > skipped_before:
            counts.file_faults.append(f"{file} has no usable text in any of its lines")


@contextmanager
def _noting_faults(file: Path, counts: ReadCounts) -> Iterator[None]:
    """Count a fault of the file instead of raising it."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        counts.file_faults.append(f"{file} cannot be unpacked: {error}")
    except _UnreadableFile as error:
        counts.file_faults.append(f"{file} {error}")
    except OSError as error:
        counts.file_faults.append(f"{file} cannot be read: {error.strerror or error}")


class _UnreadableFile(Exception):
    """The reason why a whole file cannot be used."""


def _read_text(file: Path, text_field: str, counts: ReadCounts) -> Iterator[CorpusDocument]:
    with _unpacked(file) as packed:
        encoding = "utf-16" if packed.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        with io.TextIOWrapper(packed, encoding=encoding, errors="replace", newline=None) as stream:
            yield CorpusDocument(
                str(file), paragraphs_of(stream, on_replaced=lambda: counts.skipped.update([NOT_UTF8]))
            )


def _read_json_lines(file: Path, text_field: str, counts: ReadCounts) -> Iterator[CorpusDocument]:
    with _unpacked(file) as lines:
        number = 0
        while line := lines.readline(_LONGEST_LINE):
            number += 1
            if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
                counts.skipped[TOO_LONG] += 1
                while (rest := lines.readline(_LONGEST_LINE)) and not rest.endswith(b"\n"):
                    pass
                continue
            if not line.strip():
                continue
            try:
                decoded = line.decode("utf-8-sig")
            except UnicodeDecodeError:
                counts.skipped[NOT_UTF8] += 1
                decoded = line.decode("utf-8-sig", "replace")
            try:
                record = json.loads(decoded)
            except (ValueError, RecursionError):
                counts.skipped[NOT_JSON] += 1
            else:
                yield from _document(record, text_field, f"{file}:{number}", counts)


def _document(record: object, text_field: str, place: str, counts: ReadCounts) -> Iterator[CorpusDocument]:
    """The document in a record, if the record has text in the field."""
    value = value_at(record, text_field)
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if isinstance(text, str) and text.strip():
        yield CorpusDocument(place, paragraphs_of(io.StringIO(text, newline=None)))
    else:
        counts.skipped[NO_TEXT] += 1


def value_at(record: object, text_field: str) -> object:
    """The value under a key; a key with dots leads into nested records, unless a key of that very name exists.

    >>> value_at({"meta": {"text": "a"}}, "meta.text"), value_at({"meta.text": "b"}, "meta.text")
    ('a', 'b')
    """
    if isinstance(record, Mapping) and text_field in record:
        return record[text_field]
    for key in text_field.split("."):
        if not isinstance(record, Mapping) or key not in record:
            return None
        record = record[key]
    return record


def _read_parquet(file: Path, text_field: str, counts: ReadCounts) -> Iterator[CorpusDocument]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UserError("Parquet needs pyarrow.", hint="pip install 'skillmix[parquet]'") from None
    try:
        with ParquetFile(file) as table:
            # The field itself, or the nested column that its first part names.
            names = table.schema_arrow.names
            column = next((one for one in (text_field, text_field.partition(".")[0]) if one in names), None)
            if column is None:
                known = ", ".join(map(str, names[:10]))
                raise _UnreadableFile(f"has no column {text_field!r}; its columns are {known}")
            number = 0
            for batch in table.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[column]):
                for record in batch.to_pylist():
                    number += 1
                    yield from _document(record, text_field, f"{file}:{number}", counts)
    except ArrowException as error:
        raise _UnreadableFile(f"cannot be read: {str(error).splitlines()[0]}") from None


_ROWS_AT_ONCE: Final = 64


def _unpacked(file: Path) -> io.BufferedReader:
    if file.suffix.lower() == ".gz":
        return io.BufferedReader(gzip.open(file, "rb"))
    return file.open("rb")


def paragraphs_of(lines: IO[str], *, on_replaced: Callable[[], None] = lambda: None) -> Iterator[str]:
    """The paragraphs of a text, each on one line.

    Blank lines separate paragraphs, and the lines between them are joined. A text whose first 65,536 characters have no
    blank line has a paragraph in each line.
    """
    first: list[str] = []
    size = 0
    while size < _FIRST_PART and (line := lines.readline(LONGEST_PARAGRAPH)):
        first.append(line)
        size += len(line)
    filled = [number for number, line in enumerate(first) if line.strip()]
    has_blank_lines = bool(filled) and len(filled) < filled[-1] - filled[0] + 1
    has_replaced = False
    paragraph: list[str] = []
    length = 0
    for line in chain(first, iter(lambda: lines.readline(LONGEST_PARAGRAPH), "")):
        if not has_replaced and "\ufffd" in line:
            has_replaced = True
            on_replaced()
        words = " ".join(line.split())
        if paragraph and (not words or not has_blank_lines or length + len(words) > LONGEST_PARAGRAPH):
            yield " ".join(paragraph)
            paragraph, length = [], 0
        if words:
            paragraph.append(words)
            length += len(words) + 1
    if paragraph:
        yield " ".join(paragraph)


_CHARACTERS_PER_WORD: Final = 8
"""In text without blanks, such as Chinese or encoded data, this many characters count as a word."""
FEWEST_WORDS: Final = 5
"""A document with fewer words has no passage."""
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]+")


def passages_of(paragraphs: Iterable[str], *, words: int) -> Iterator[str]:
    r"""The passages of a document; its paragraphs stay lines of their own.

    A passage ends with the sentence that reaches `words` words. A rest of less than half of that belongs to the passage
    before it.

    >>> list(passages_of(["One two three four. Five six seven.", "Eight nine ten. Eleven."], words=10))
    ['One two three four. Five six seven.\nEight nine ten.\nEleven.']
    """
    before: tuple[float, str] | None = None
    for size, text in _stretches(paragraphs, words):
        if before is None:
            before = size, text
        elif size * 2 < words:
            before = before[0] + size, "\n".join(filter(None, (before[1], text)))
        else:
            yield before[1]
            before = size, text
    if before is not None and before[0] >= FEWEST_WORDS:
        yield before[1]


def _stretches(paragraphs: Iterable[str], words: int) -> Iterator[tuple[float, str]]:
    """Sentences that follow each other up to the wished length, and the rest of the document, with their words."""
    lines: list[list[str]] = [[]]
    size = 0.0
    for paragraph in paragraphs:
        lines.append([])
        for piece in _pieces(clean_text(_CONTROLS.sub(" ", paragraph)), words):
            lines[-1].append(piece)
            size += _size(piece)
            if size >= words:
                yield size, "\n".join(" ".join(line) for line in lines if line)
                lines, size = [[]], 0.0
    yield size, "\n".join(" ".join(line) for line in lines if line)


def _size(piece: str) -> float:
    """The length of a piece in words."""
    return max(piece.count(" ") + 1, len(piece) / _CHARACTERS_PER_WORD)


def _pieces(paragraph: str, words: int) -> Iterator[str]:
    """Return the sentences of a paragraph; one twice as long as a passage is split, between words where possible."""
    longest = words * _CHARACTERS_PER_WORD
    for start, end in sentence_spans(paragraph):
        sentence = paragraph[start:end]
        if _size(sentence) <= 2 * words:
            yield sentence
            continue
        piece, length = list[str](), 0
        for word in sentence.split():
            for at in range(0, len(word), longest):
                part = word[at : at + longest]
                piece.append(part)
                length += len(part) + 1
                if len(piece) >= words or length > longest:
                    yield " ".join(piece)
                    piece, length = [], 0
        if piece:
            yield " ".join(piece)


@dataclass(frozen=True, slots=True)
class SampledPassage:
    """A passage of a sample."""

    id: str
    text: str
    document: str
    """The first document, by name, in which it occurs."""
    occurrences: int = 1


@dataclass(frozen=True, slots=True)
class PassageSample:
    """Passages in the order of their ranks; a larger sample of the same corpus begins with a smaller one."""

    passages: tuple[SampledPassage, ...]
    total: int
    """Passages of the corpus, repetitions included."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the passages, in order."""
        return tuple(passage.id for passage in self.passages)


class PassageSampler:
    """Keeps the passages with the lowest ranks."""

    def __init__(self, n: int, seed: int) -> None:
        self._n = n
        self._key = f"passages {seed}".encode()[:64]
        self._heap: list[int] = []
        """The negative ranks of the passages, so that the highest rank comes first."""
        self._kept: dict[int, tuple[str, str, int]] = {}
        """Text, document and occurrences by rank."""
        self.total = 0

    def add(self, text: str, document: str, occurrences: int = 1) -> None:
        """Offer a passage."""
        self.total += occurrences
        rank = int.from_bytes(blake2b(text.encode("utf-8", "replace"), key=self._key, digest_size=16).digest())
        if rank in self._kept:
            _, first, count = self._kept[rank]
            self._kept[rank] = text, min(first, document), count + occurrences
        elif len(self._heap) < self._n:
            heappush(self._heap, -rank)
            self._kept[rank] = text, document, occurrences
        elif rank < -self._heap[0]:
            del self._kept[-heapreplace(self._heap, -rank)]
            self._kept[rank] = text, document, occurrences

    def sample(self) -> PassageSample:
        """The sample so far."""
        passages = [
            SampledPassage(text_id(text), text, document, count)
            for _, (text, document, count) in sorted(self._kept.items())
        ]
        return PassageSample(tuple(passages), self.total)


def merged(samples: Iterable[PassageSample], *, n: int, seed: int) -> PassageSample:
    """Merge the samples of several parts of a corpus, each drawn with the same n and seed by its own reader."""
    sampler = PassageSampler(n, seed)
    total = 0
    for sample in samples:
        total += sample.total
        for passage in sample.passages:
            sampler.add(passage.text, passage.document, passage.occurrences)
    return PassageSample(sampler.sample().passages, total)
