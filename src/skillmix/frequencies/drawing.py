"""Draw the sample of a run once, and take it from the run's folder from then on.

`passages.jsonl` has the passages, `sample.json` the settings and counts of the draw; it is written last, so that a
sample is complete if it is there. If the files of the corpus have not changed, the stored sample is taken without
reading them again. If they have, the corpus is drawn from again, and the stored sample must be the beginning of the new
one: a run is about one corpus.
"""

import json
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from skillmix.errors import UserError
from skillmix.frequencies.documents import ReadCounts, check_files, corpus_files, documents_of, files_error
from skillmix.frequencies.passages import FEWEST_WORDS, PassageSample, PassageSampler, SampledPassage, merged
from skillmix.hashing import short_id
from skillmix.runs.folder_replacement import write_whole

WORDS: Final = 100
"""The default length of a passage, that of a paragraph."""
_LARGE: Final = 64 << 20
"""Bytes; a smaller corpus is read before further processes would have started."""
_MOST_READERS: Final = 8


@dataclass(frozen=True, slots=True)
class DrawWanted:
    """Which passages to draw."""

    corpus: tuple[Path, ...]
    n: int
    seed: int = 0
    words: int = WORDS
    text_field: str = "text"
    readers: int | None = None
    """Processes that read files; by default one for a small corpus. The sample does not depend on it."""


@dataclass(frozen=True, slots=True)
class DrawnSample:
    """A sample, and the counts of the reading."""

    sample: PassageSample
    files: int
    documents: int
    skipped: dict[str, int]
    """Files, lines and records that were not used, by reason."""

    @property
    def passages(self) -> tuple[SampledPassage, ...]:
        """The passages in order."""
        return self.sample.passages


def draw(wanted: DrawWanted) -> DrawnSample:
    """Read a corpus once and draw passages."""
    left_out: Counter[str] = Counter()
    files = corpus_files(wanted.corpus, skipped=left_out)
    check_files(files, text_field=wanted.text_field)
    readers = min(len(files), wanted.readers or _usual_readers(files))
    if readers == 1:
        parts = [_read(files, wanted)]
    else:
        with ProcessPoolExecutor(readers, mp_context=get_context("spawn")) as pool:
            parts = list(pool.map(partial(_read, wanted=wanted), [[file] for file in files]))
    faults = [fault for _, counts in parts for fault in counts.file_faults]
    if faults:
        raise files_error(faults, wanted.text_field)
    sample = merged([sample for sample, _ in parts], n=wanted.n, seed=wanted.seed)
    if not sample.passages:
        raise UserError(
            f"The corpus has no passage: no document has {FEWEST_WORDS} words or more.",
            hint="Check the files, and --field for JSON Lines and Parquet.",
        )
    skipped = sum((counts.skipped for _, counts in parts), start=left_out)
    return DrawnSample(
        sample,
        files=sum(counts.files for _, counts in parts),
        documents=sum(counts.documents for _, counts in parts),
        skipped=dict(sorted(skipped.items())),
    )


def _read(files: Sequence[Path], wanted: DrawWanted) -> tuple[PassageSample, ReadCounts]:
    sampler = PassageSampler(wanted.n, wanted.seed)
    counts = ReadCounts()
    try:
        sampler.add_documents(documents_of(files, text_field=wanted.text_field, counts=counts), words=wanted.words)
    except UserError:
        if not counts.file_faults:
            raise
    return sampler.sample(), counts


def _usual_readers(files: Sequence[Path]) -> int:
    if sum(file.stat().st_size for file in files) < _LARGE:
        return 1
    return max(1, min(_MOST_READERS, (os.cpu_count() or 1) - 1))


class SampleFiles:
    """The sample of a run in its folder."""

    def __init__(self, folder: Path) -> None:
        self._passages = folder / "passages.jsonl"
        self._facts = folder / "sample.json"

    def drawn(self, wanted: DrawWanted) -> DrawnSample:
        """The stored sample if it is large enough and the files are the same, else a new one; nothing is written."""
        stored = self._stored()
        if stored is None:
            return draw(wanted)
        old, facts = stored
        if facts.get("state") == _state_of(wanted) and facts.get("n", 0) >= wanted.n:
            return _first(old, wanted.n)
        new = draw(wanted)
        shared = min(len(old.passages), len(new.passages))
        if old.sample.ids[:shared] != new.sample.ids[:shared] or old.sample.total != new.sample.total:
            raise UserError(
                f"The run in {self._facts.parent} has a sample of another corpus, seed or length of passages.",
                hint="Set them back, or give the new corpus a run of its own with --run.",
            )
        return new if len(new.passages) > len(old.passages) else _first(old, wanted.n)

    def store(self, drawn: DrawnSample, wanted: DrawWanted) -> None:
        """Store a sample, unless the stored one is as large; the caller holds the run's lock."""
        stored = self._stored()
        if stored is not None and len(stored[0].passages) >= len(drawn.passages):
            return
        lines = [json.dumps(asdict(passage), ensure_ascii=False) for passage in drawn.passages]
        facts = {
            "n": wanted.n,
            "seed": wanted.seed,
            "words": wanted.words,
            "field": wanted.text_field,
            "files": drawn.files,
            "documents": drawn.documents,
            "passages": drawn.sample.total,
            "skipped": drawn.skipped,
            "hash": _hash_of(drawn.sample),
            "state": _state_of(wanted),
        }
        self._facts.unlink(missing_ok=True)
        write_whole(self._passages, "\n".join(lines) + "\n")
        write_whole(self._facts, json.dumps(facts, ensure_ascii=False, indent=1) + "\n")

    def _stored(self) -> tuple[DrawnSample, dict[str, Any]] | None:
        """The stored sample and its facts; None if there is none."""
        if not self._facts.exists():
            return None
        try:
            facts = json.loads(self._facts.read_text(encoding="utf-8"))
            rows = [json.loads(line) for line in self._passages.read_text(encoding="utf-8").split("\n") if line]
            sample = PassageSample(tuple(SampledPassage(**row) for row in rows), int(facts["passages"]))
            is_whole = facts["hash"] == _hash_of(sample)
            drawn = DrawnSample(sample, facts["files"], facts["documents"], facts["skipped"])
        except (ValueError, TypeError, KeyError, OSError):
            is_whole = False
        if not is_whole:
            raise UserError(
                f"The sample in {self._facts.parent} is damaged.",
                hint="Delete sample.json and passages.jsonl; the same passages are drawn again.",
            )
        return drawn, facts


def _hash_of(sample: PassageSample) -> str:
    return short_id("sample", [[p.id, p.text, p.document, p.occurrences] for p in sample.passages], sample.total)


def _first(drawn: DrawnSample, n: int) -> DrawnSample:
    """The first n passages of a sample."""
    sample = PassageSample(drawn.sample.passages[:n], drawn.sample.total)
    return DrawnSample(sample, drawn.files, drawn.documents, drawn.skipped)


def _state_of(wanted: DrawWanted) -> str:
    """A hash of the settings of a draw and of the names, sizes and times of its files."""
    files = [[str(f), f.stat().st_size, f.stat().st_mtime_ns] for f in corpus_files(wanted.corpus)]
    return short_id("corpus", files, wanted.seed, wanted.words, wanted.text_field)
