"""Read the documents of a corpus of any size, which may be untrusted, and draw a sample of passages.

Unusable lines are skipped and counted by reason. An unusable file is a fault, and one error lists the faults of all
files. A document is a stream of paragraphs, so that a file of any size needs little memory.

A passage is a part of a document with about `words` words that ends at the end of a sentence. The rank of a passage is
a hash of the seed and the text, and the sample consists of the passages with the lowest ranks. The sample therefore
depends only on the texts, and not on the order, names, number or format of the files. A passage that occurs several
times is drawn only once. Its occurrences are counted exactly, because a passage that is in the final sample has been in
the sample since its first occurrence.
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
"""File name endings that can be read."""
_SKIPPED: Final = (".", "_")
"""First characters of the names of files that do not contain texts."""
_LONGEST_LINE: Final = 64 << 20
"""The length in bytes above which a line of JSON is skipped."""
LONGEST_PARAGRAPH: Final = 1 << 20
"""The longest paragraph in characters; a longer one is split."""
_FIRST_PART: Final = 1 << 16
"""The number of characters at the start of a document that determine how paragraphs are separated."""

NOT_JSON: Final = "lines that are not JSON"
NO_TEXT: Final = "records without text in the field"
TOO_LONG: Final = f"lines of more than {_LONGEST_LINE >> 20} MiB"
NOT_UTF8: Final = "documents with bytes that are not UTF-8, which were replaced"
OUTER_LINK: Final = "links in a folder that lead out of it or nowhere"
UNKNOWN_KIND: Final = "files in a folder that are of no known kind"


@dataclass(frozen=True, slots=True)
class CorpusDocument:
    """One text of a corpus: a text file, a line in a JSON Lines file, or a row in a Parquet file."""

    place: str
    """The file, and the number of the line or row."""
    paragraphs: Iterator[str]


@dataclass(slots=True)
class ReadCounts:
    """Counts of the parts of a corpus that were read, and of unusable parts."""

    files: int = 0
    documents: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """The number of unused lines and records, by reason."""
    file_faults: list[str] = field(default_factory=list)


def corpus_files(sources: Sequence[Path], *, skipped: Counter[str] | None = None) -> list[Path]:
    """Return the source files; for a folder, return all its readable files, sorted by name.

    A source may be a link. A link inside a folder is followed only if it leads into the same folder, because an
    untrusted corpus must not select other files on this machine. Skipped files are counted in `skipped`.
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
    by_path = {file.resolve(): file for file in reversed(files)}  # a file that is listed twice counts once
    return list(reversed(by_path.values()))


def _files_below(folder: Path) -> tuple[list[Path], Counter[str], list[str]]:
    """Return the readable files, the counts of skipped files, and the faults."""
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
        except (OSError, RuntimeError) as error:  # circular links raise RuntimeError before Python 3.13
            faults.append(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}")
    return found, +skipped, faults


def documents_of(files: Sequence[Path], *, text_field: str, counts: ReadCounts) -> Iterator[CorpusDocument]:
    """Yield the documents of all files in order; one error at the end lists the files that cannot be read."""
    for file in files:
        yield from _documents_in(file, text_field, counts)
    if counts.file_faults:
        raise files_error(counts.file_faults, text_field)


def check_files(files: Sequence[Path], *, text_field: str) -> None:
    """Read the first document of each file, to find most faults before starting to read a large corpus."""
    counts = ReadCounts()
    for file in files:
        for document in _documents_in(file, text_field, counts):
            next(document.paragraphs, None)
            break
    if counts.file_faults:
        raise files_error(counts.file_faults, text_field)


def files_error(faults: Sequence[str], text_field: str) -> UserError:
    """Make the error about files that cannot be read."""
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
        """Yield paragraphs, and count faults of the file that appear only while its paragraphs are being read."""
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
    """Yield the document in a record, if the field contains text."""
    value = value_at(record, text_field)
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if isinstance(text, str) and text.strip():
        yield CorpusDocument(place, paragraphs_of(io.StringIO(text, newline=None)))
    else:
        counts.skipped[NO_TEXT] += 1


def value_at(record: object, text_field: str) -> object:
    """Return the value of a key; dots lead into nested records, unless a key with exactly this name exists.

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
            # Read the field itself, or the nested column with the name of the field's first part.
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
    """Yield the paragraphs of a text, each on one line.

    Blank lines separate paragraphs, and the lines of each paragraph are joined. If the first 65,536 characters of a
    text contain no blank line, each line is a paragraph.
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
"""The number of characters that count as a word in text without blanks, such as Chinese or encoded data."""
FEWEST_WORDS: Final = 5
"""Documents with fewer words contain no passage."""
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]+")


def passages_of(paragraphs: Iterable[str], *, words: int) -> Iterator[str]:
    r"""Yield the passages of a document, in which paragraphs stay on separate lines.

    A passage ends with the sentence that reaches `words` words. If less than half of that length is left at the end of
    the document, the rest belongs to the passage before it.

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
    """Yield consecutive sentences up to the wanted length and then the rest of the document, each with its size."""
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
    """Return the length of a piece in words."""
    return max(piece.count(" ") + 1, len(piece) / _CHARACTERS_PER_WORD)


def _pieces(paragraph: str, words: int) -> Iterator[str]:
    """Yield the sentences of a paragraph; split sentences twice as long as a passage, between words if possible."""
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
    """The first document, sorted by name, that contains the passage."""
    occurrences: int = 1


@dataclass(frozen=True, slots=True)
class PassageSample:
    """Passages in the order of their ranks. A larger sample from the same corpus begins with the smaller one."""

    passages: tuple[SampledPassage, ...]
    total: int
    """The number of passages in the corpus, including repetitions."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Return the ids of the passages, in order."""
        return tuple(passage.id for passage in self.passages)


class PassageSampler:
    """Keeps the passages with the lowest ranks."""

    def __init__(self, n: int, seed: int) -> None:
        self._n = n
        self._key = f"passages {seed}".encode()[:64]
        self._heap: list[int] = []
        """The negative ranks of the passages, so that the highest rank comes first."""
        self._kept: dict[int, tuple[str, str, int]] = {}
        """The text, document and number of occurrences of each passage, by rank."""
        self.total = 0

    def add(self, text: str, document: str, occurrences: int = 1) -> None:
        """Count a passage, and keep it if its rank is low enough."""
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
        """Return the current sample."""
        passages = [
            SampledPassage(text_id(text), text, document, count)
            for _, (text, document, count) in sorted(self._kept.items())
        ]
        return PassageSample(tuple(passages), self.total)


def merged(samples: Iterable[PassageSample], *, n: int, seed: int) -> PassageSample:
    """Merge samples from several parts of a corpus, which separate readers drew with the same n and seed."""
    sampler = PassageSampler(n, seed)
    total = 0
    for sample in samples:
        total += sample.total
        for passage in sample.passages:
            sampler.add(passage.text, passage.document, passage.occurrences)
    return PassageSample(sampler.sample().passages, total)
