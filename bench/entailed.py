"""Find skills that entail other skills: `python bench/entailed.py [--prose FOLDER …] [--texts FILE …] [--json FILE]`.

For each ordered pair of skills A and B, the script computes the share of texts with A that show B although B was not
requested. Prose is plain text with one paragraph per line, divided into sentences. `--texts` adds Parquet files of data
sets and JSON Lines of exports (texts with the requested skills) to the texts of the tests. A pair is entailed if the
lower bound of the share's 95% Wilson interval reaches the threshold in some source. The list belongs in
`partitions.yaml`.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from skillmix.checkers.passage import passage_of
from skillmix.checkers.registry import CHECKERS
from skillmix.scores.statistics.intervals import wilson_interval

THRESHOLD = 0.5
FEWEST = 10
"""The minimum number of texts with the first skill for which a pair is judged."""
TESTS = Path(__file__).parent.parent / "tests" / "checkers"


@dataclass(frozen=True)
class Pair:
    """The frequency of a second skill in texts that show a first skill, in one source."""

    skill: str
    brings: str
    texts: int
    both: int
    low: float
    source: str


def main() -> None:
    """Print the pairs with the highest shares, and those above the threshold as YAML."""
    options = _options()
    sources = {
        "natural prose": _prose(options.prose),
        "model texts": _model_texts(options.texts),
        "texts by writers": _written(),
    }
    pairs = [pair for source, texts in sources.items() for pair in _pairs(source, texts)]
    pairs.sort(key=lambda pair: -pair.low)
    print("| skill | brings | texts | both | share | lower bound | source |\n|---|---|---:|---:|---:|---:|---|")
    for pair in pairs[: options.rows]:
        counts = f"{pair.texts} | {pair.both} | {pair.both / pair.texts:.2f} | {pair.low:.2f}"
        print(f"| {pair.skill} | {pair.brings} | {counts} | {pair.source} |")
    entailed = _once([pair for pair in pairs if pair.low >= THRESHOLD])
    print(f"\n{len(entailed)} pairs with a lower bound of {THRESHOLD} or more, for partitions.yaml:\n\nentailed:")
    for pair in entailed:
        entry = f'skill: "{pair.skill}", brings: "{pair.brings}", texts: {pair.texts}, both: {pair.both}'
        print(f'  - {{{entry}, source: "{pair.source}"}}')
    if options.json:
        options.json.write_text(json.dumps([asdict(pair) for pair in pairs], indent=1), encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prose", type=Path, nargs="*", default=[])
    parser.add_argument("--texts", type=Path, nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", type=int, default=40)
    return parser.parse_args()


def _prose(folders: Iterable[Path]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield sentences of 4 to 40 words, for which no skill was requested."""
    for folder in folders:
        for path in sorted(folder.glob("*.txt")):
            for line in path.read_text("utf-8").splitlines():
                for sentence in passage_of(line).sentences:
                    if 4 <= len(sentence.words) <= 40:
                        yield sentence.text, frozenset()


def _model_texts(files: Iterable[Path]) -> Iterator[tuple[str, frozenset[str]]]:
    for file in files:
        for row in _rows(file):
            yield row["text"], frozenset(row["skills"])


def _rows(file: Path) -> list[dict[str, Any]]:
    if file.suffix == ".parquet":
        from pyarrow import parquet

        rows: list[dict[str, Any]] = parquet.read_table(file, columns=["text", "skills"]).to_pylist()
        return rows
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def _written() -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the texts that were written for the tests to show a skill or a pair."""
    for witness in yaml.safe_load((TESTS / "witnesses.yaml").read_text("utf-8")):
        yield witness["text"], frozenset(witness["skills"])
    for name, texts in yaml.safe_load((TESTS / "blind.yaml").read_text("utf-8")).items():
        yield from ((text, frozenset([name])) for text in texts["shown"])
    for path in sorted((TESTS / "texts").glob("*.yaml")):
        for name, texts in yaml.safe_load(path.read_text("utf-8")).items():
            yield from ((text, frozenset([name])) for text in texts["shown"])


def _pairs(source: str, texts: Iterable[tuple[str, frozenset[str]]]) -> Iterator[Pair]:
    """Count each distinct text once, and ignore B where B was requested."""
    alone: Counter[tuple[str, str]] = Counter()
    both: Counter[tuple[str, str]] = Counter()
    for text, requested in dict(texts).items():
        passage = passage_of(text)
        shown = {name for name, checker in CHECKERS.items() if checker(passage) is not None}
        for skill in shown:
            unrequested = [other for other in CHECKERS if other != skill and other not in requested]
            alone.update((skill, other) for other in unrequested)
            both.update((skill, other) for other in unrequested if other in shown)
    for (skill, brings), count in both.items():
        texts_with = alone[skill, brings]
        if texts_with >= FEWEST:
            low = wilson_interval(count / texts_with, texts_with).low
            yield Pair(skill, brings, texts_with, count, low, source)


def _once(pairs: Iterable[Pair]) -> list[Pair]:
    """Return each pair of skills once, with its highest share."""
    strongest: dict[frozenset[str], Pair] = {}
    for pair in pairs:
        strongest.setdefault(frozenset((pair.skill, pair.brings)), pair)
    return list(strongest.values())


if __name__ == "__main__":
    main()
