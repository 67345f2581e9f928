"""Read the documents of a corpus, which may be large and untrusted, and draw a sample of passages.

Unusable lines are skipped and counted by reason. An unusable file is a fault, and one error lists the faults of all
files. A document is read as a stream of paragraphs, so memory use does not depend on the size of a file.

A passage is a part of a document with about `words` words that ends at the end of a sentence. The rank of a passage is
a hash of the seed and the text, and the sample consists of the passages with the lowest ranks. The sample therefore
depends only on the texts, and not on the order, names, number or format of the files. A repeated passage is drawn only
once. Its occurrences are counted exactly, because a passage in the final sample has been in the sample since its first
occurrence.
"""

import gzip
import io
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from heapq import heappush, heapreplace
from itertools import chain
from pathlib import Path
from typing import IO, Final, TypeVar

from skillmix.calls import clean_text, text_id
from skillmix.errors import faults_error
from skillmix.files import require_package
from skillmix.grading.answers import sentence_spans

_TEXT: Final = (".txt", ".txt.gz", ".text", ".md")
_JSON_LINES: Final = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
_PARQUET: Final = (".parquet",)
ENDINGS: Final = (*_TEXT, *_JSON_LINES, *_PARQUET)
"""File name endings that can be read."""
_SKIPPED: Final = (".", "_")
"""Files whose names begin with these characters are ignored."""
_LONGEST_LINE: Final = 64 << 20
"""Lines of JSON with more bytes than this are skipped."""
LONGEST_PARAGRAPH: Final = 1 << 20
"""Paragraphs with more characters than this are split."""
_FIRST_PART: Final = 1 << 16
"""The number of characters at the start of a document that are searched for blank lines."""

NOT_JSON: Final = "lines that are not JSON"
NO_TEXT: Final = "records without text in the field"
TOO_LONG: Final = f"lines of more than {_LONGEST_LINE >> 20} MiB"
NOT_UTF8: Final = "documents with bytes that are not UTF-8, which were replaced"
OUTER_LINK: Final = "links in a folder that lead out of it or to nothing"
UNKNOWN_KIND: Final = "files of another type in a folder"


@dataclass(frozen=True, slots=True)
class CorpusDocument:
    """One text of a corpus: a text file, a line in a JSON Lines file, or a row in a Parquet file."""

    place: str
    """The file, and the number of the line or row."""
    paragraphs: Iterator[str]


@dataclass(slots=True)
class ReadCounts:
    """Counts of the files and documents read, and of unusable lines, records and files."""

    files: int = 0
    documents: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """The number of unused lines and records, by reason."""
    file_faults: list[str] = field(default_factory=list)


def corpus_files(sources: Sequence[Path], *, skipped: Counter[str] | None = None) -> list[Path]:
    """Return the source files; replace each folder with the readable files below it, sorted by name.

    A source may be a link. A link inside a folder is followed only if it leads into the same folder, because an
    untrusted corpus must not select other files on this machine. Skipped files are counted in `skipped`.
    """
    skipped = Counter() if skipped is None else skipped
    files, faults = list[Path](), list[str]()
    for source in sources:
        try:
            if source.is_dir():
                files += _files_below(source, skipped, faults)
            elif not source.is_file():
                faults.append(f"{source} does not exist")
            elif not source.name.lower().endswith(ENDINGS):
                faults.append(f"{source} is not a text, JSON Lines or Parquet file")
            else:
                files.append(source)
        except OSError as error:
            faults.append(f"{source} cannot be read: {error.strerror or error}")
    if faults or not files:
        raise faults_error("--corpus", faults or ["no file given"], hint=f"Known endings: {', '.join(ENDINGS)}.")
    by_path = {file.resolve(): file for file in reversed(files)}  # count a file that is listed twice only once
    return list(reversed(by_path.values()))


def _files_below(folder: Path, skipped: Counter[str], faults: list[str]) -> list[Path]:
    """Return the readable files below a folder; count all other files in `skipped`, and append errors to `faults`."""
    found, own_skipped, faults_before = list[Path](), Counter[str](), len(faults)
    root, paths = folder.resolve(), list[Path]()

    def note_fault(error: OSError) -> None:
        faults.append(f"{error.filename} cannot be read: {error.strerror or error}")

    for parent, folders, names in os.walk(folder, onerror=note_fault):
        paths += [Path(parent, name) for name in names]
        paths += [path for name in folders if (path := Path(parent, name)).is_symlink()]
    for path in sorted(path for path in paths if not path.name.startswith(_SKIPPED)):
        try:
            if path.is_symlink() and not (path.exists() and path.resolve().is_relative_to(root)):
                own_skipped[OUTER_LINK] += 1
            elif path.is_file() and path.name.lower().endswith(ENDINGS):
                found.append(path)
            elif path.is_file():
                own_skipped[UNKNOWN_KIND] += 1
        except (OSError, RuntimeError) as error:  # circular links raise RuntimeError before Python 3.13
            faults.append(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}")
    skipped.update(own_skipped)
    if not found and len(faults) == faults_before:
        reasons = "".join(f"; it has {count} {reason}" for reason, count in sorted(own_skipped.items()))
        faults.append(f"the folder {folder} has no text, JSON Lines or Parquet file{reasons}")
    return found


def documents_of(files: Sequence[Path], *, text_field: str, counts: ReadCounts) -> Iterator[CorpusDocument]:
    """Yield the documents of all files in order, and add faults of files to the counts."""
    for file in files:
        yield from _documents_in(file, text_field, counts)


def check_files(files: Sequence[Path], *, text_field: str) -> None:
    """Read the first document of each file, to find most faults before reading a large corpus."""
    counts = ReadCounts()
    for file in files:
        for document in _documents_in(file, text_field, counts):
            next(document.paragraphs, None)
            break
    require_readable(counts, text_field)


def require_readable(counts: ReadCounts, text_field: str) -> None:
    """Raise one error that lists the files that cannot be read, if there are any."""
    if counts.file_faults:
        hint = f"Fix or remove these files. The text is expected in --field {text_field}."
        raise faults_error("--corpus", counts.file_faults, hint=hint)


def _documents_in(file: Path, text_field: str, counts: ReadCounts) -> Iterator[CorpusDocument]:
    name = file.name.lower()
    read = _read_json_lines if name.endswith(_JSON_LINES) else _read_parquet if name.endswith(_PARQUET) else _read_text
    before, skipped_before = counts.documents, counts.skipped.total()
    counts.files += 1
    for document in _until_fault(read(file, text_field, counts), file, counts):
        counts.documents += 1
        yield replace(document, paragraphs=_until_fault(document.paragraphs, file, counts))
    if counts.documents == before and counts.skipped.total() > skipped_before:
        counts.file_faults.append(f"{file} has no usable text in any of its lines")


_Item = TypeVar("_Item")


def _until_fault(items: Iterator[_Item], file: Path, counts: ReadCounts) -> Iterator[_Item]:
    """Yield items until the file cannot be read further, and record the fault instead of raising it."""
    try:
        yield from items
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
        for number, line in enumerate(iter(lambda: lines.readline(_LONGEST_LINE), b""), start=1):
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
    """Yield the document in a record; count the record as skipped if the field contains no text."""
    value = value_at(record, text_field)
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if isinstance(text, str) and text.strip():
        yield CorpusDocument(place, paragraphs_of(io.StringIO(text, newline=None)))
    else:
        counts.skipped[NO_TEXT] += 1


def value_at(record: object, text_field: str) -> object:
    """Return the value of a field; a dot separates the keys of nested records, unless a key has exactly this name.

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
    require_package("pyarrow", "Parquet", extra="parquet")
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(file) as table:
            # A dotted field is either a column of this name or part of a nested column.
            names = table.schema_arrow.names
            column = next((one for one in (text_field, text_field.partition(".")[0]) if one in names), None)
            if column is None:
                known = ", ".join(map(str, names[:10]))
                raise _UnreadableFile(f"has no column {text_field!r}; its columns are {known}")
            batches = table.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[column])
            for number, record in enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), start=1):
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
    first, size = list[str](), 0
    while size < _FIRST_PART and (line := lines.readline(LONGEST_PARAGRAPH)):
        first.append(line)
        size += len(line)
    filled = [number for number, line in enumerate(first) if line.strip()]
    has_blank_lines = bool(filled) and len(filled) < filled[-1] - filled[0] + 1
    has_replaced = False
    paragraph, length = list[str](), 0
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
"""Documents with fewer words contain no passage."""
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]+")


def passages_of(paragraphs: Iterable[str], *, words: int) -> Iterator[str]:
    r"""Yield the passages of a document, in which paragraphs stay on separate lines.

    A passage ends with the sentence that reaches `words` words. If the rest of the document is shorter than half a
    passage, it is added to the last passage.

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
    """Yield sequences of sentences that reach the wanted length, then the rest, each with its length in words."""
    lines, size = list[list[str]](), 0.0
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
    """Return the length of a piece of text in words."""
    return max(piece.count(" ") + 1, len(piece) / _CHARACTERS_PER_WORD)


def _pieces(paragraph: str, words: int) -> Iterator[str]:
    """Yield the sentences of a paragraph; split those longer than two passages, between words if possible."""
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
    """A passage in a sample, with its document and its number of occurrences."""

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
    counts: ReadCounts = field(default_factory=ReadCounts)

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
        self._kept: dict[int, SampledPassage] = {}
        """The passages by rank."""
        self.total = 0

    def add(self, text: str, document: str, occurrences: int = 1) -> None:
        """Count a passage, and keep it if its rank is low enough."""
        self.total += occurrences
        rank = int.from_bytes(blake2b(text.encode("utf-8", "replace"), key=self._key, digest_size=16).digest())
        kept = self._kept.get(rank)
        if kept is not None:
            first, occurrences = min(kept.document, document), kept.occurrences + occurrences
            self._kept[rank] = replace(kept, document=first, occurrences=occurrences)
            return
        if len(self._heap) < self._n:
            heappush(self._heap, -rank)
        elif rank < -self._heap[0]:
            del self._kept[-heapreplace(self._heap, -rank)]
        else:
            return
        self._kept[rank] = SampledPassage(text_id(text), text, document, occurrences)

    def sample(self) -> PassageSample:
        """Return the current sample."""
        return PassageSample(tuple(passage for _, passage in sorted(self._kept.items())), self.total)


def merged(samples: Sequence[PassageSample], *, n: int, seed: int) -> PassageSample:
    """Merge samples from parts of a corpus, which separate readers drew with the same n and seed."""
    sampler, counts = PassageSampler(n, seed), ReadCounts()
    for sample in samples:
        counts.files += sample.counts.files
        counts.documents += sample.counts.documents
        counts.skipped += sample.counts.skipped
        counts.file_faults += sample.counts.file_faults
        for passage in sample.passages:
            sampler.add(passage.text, passage.document, passage.occurrences)
    return PassageSample(sampler.sample().passages, sum(sample.total for sample in samples), counts)
