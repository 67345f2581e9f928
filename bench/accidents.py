"""Measure how often each checker fires in ordinary prose: `python bench/accidents.py FOLDER [FOLDER …]`.

Each folder contains a corpus; `bench/public_corpora.py` makes two. The script takes windows of 1 to 4 consecutive
sentences at even distances. The table shows the share of windows in which each skill occurs unintentionally, starting
with the highest. Below it, the script prints how many single sentences of 5 to 40 words pass the checks for sense.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from skillmix.checkers.passage import Passage, passage_of
from skillmix.checkers.registry import CHECKERS
from skillmix.checkers.sense import sense_problem
from skillmix.frequencies.documents import ReadCounts, corpus_files, documents_of, require_readable

SIZES = (1, 2, 3, 4)
WINDOWS = 5000  # windows of each size in each folder
LIMITS = {1: 0.05, 4: 0.15}


def main(folders: list[Path]) -> None:
    """Print the share of windows in which each checker finds its skill."""
    prose = {folder: list(_paragraphs(folder)) for folder in folders}
    shares: dict[str, list[float]] = {name: [] for name in CHECKERS}
    taken: list[int] = []
    for paragraphs in prose.values():
        for size in SIZES:
            windows = [passage_of(text) for text in _windows(paragraphs, size)]
            taken.append(len(windows))
            for name, checker in CHECKERS.items():
                shares[name].append(sum(checker(window) is not None for window in windows) / max(len(windows), 1))
    heads = [f"{folder.name} {size}" for folder in prose for size in SIZES]
    print("The heads give the folder and the sentences in a window; percent.\n")
    print("| skill | " + " | ".join(heads) + " |\n|---|" + "---:|" * len(heads))
    print("| (windows) | " + " | ".join(map(str, taken)) + " |")
    for name in sorted(shares, key=lambda name: -_worst(shares[name])):
        print(f"| {name} | " + " | ".join(f"{100 * share:.1f}" for share in shares[name]) + " |")
    print()
    for folder, paragraphs in prose.items():
        print(_sense(folder, paragraphs))


def _paragraphs(folder: Path) -> Iterator[Passage]:
    counts = ReadCounts()
    for document in documents_of(corpus_files([folder]), text_field="text", counts=counts):
        yield from map(passage_of, document.paragraphs)
    require_readable(counts, "text")


def _windows(paragraphs: list[Passage], size: int) -> list[str]:
    """Return windows within paragraphs, at even distances."""
    windows = [
        paragraph.text[paragraph.sentences[first].start : paragraph.sentences[first + size - 1].end]
        for paragraph in paragraphs
        for first in range(len(paragraph.sentences) - size + 1)
    ]
    step = max(len(windows) / WINDOWS, 1)
    return [windows[int(number * step)] for number in range(min(WINDOWS, len(windows)))]


def _worst(shares: list[float]) -> float:
    """Return the largest share relative to its limit."""
    by_size = [(SIZES[place % len(SIZES)], share) for place, share in enumerate(shares)]
    return max(share / LIMITS[size] for size, share in by_size if size in LIMITS)


def _sense(folder: Path, paragraphs: list[Passage]) -> str:
    texts = [passage_of(text) for text in _windows(paragraphs, 1)]
    fitting = [text for text in texts if 5 <= len(text.words) <= 40]
    passed = sum(sense_problem(text) is None for text in fitting)
    return (
        f"{folder.name}: {passed} of {len(fitting)} sentences of 5 to 40 words make sense ({passed / len(fitting):.1%})"
    )


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
