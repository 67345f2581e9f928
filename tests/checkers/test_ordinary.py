"""Ordinary sentences of every mood and order make sense; the same words in another order do not.

The files `ordinary_*.jsonl` hold the sentences. `open` and `apart` are the halves of 400 texts by one writer who had
not seen the code: 280 of the writer's own and 120 from works in the public domain, verbatim but for blanks and straight
quotes. These come from Debian packages: Jane Austen's novels (58; r-cran-janeaustenr 1.0.0-1), "Tom Sawyer" (38;
golang-github-klauspost-compress-dev 1.15.12), quotations of authors who died before 1915 (12; fortunes 1.99.1),
Newton's "Opticks" and the Gettysburg address (5 and 2; golang-1.19-src), and the King James Bible (5; bible-kjv-text).
The halves were drawn at random within each kind and source. The rules were developed on `open`; `apart` was kept apart.
`moods` has sentences that were written while the rules were developed.
"""

import json
import random
import re
from pathlib import Path
from typing import Final

import pytest

from skillmix.checkers.passage import passage_of
from skillmix.checkers.sense import sense_problem

FILES: Final = sorted(Path(__file__).parent.glob("ordinary_*.jsonl"))
LEAST_PASSING: Final = {"apart": 0.98, "moods": 0.96, "open": 0.98}
LEAST_SHUFFLED_REFUSED: Final = {"apart": 0.88, "moods": 0.85, "open": 0.90}
"""`moods` has the shortest sentences: a few words have many possible orders, and say less about theirs."""


def name_of(path: Path) -> str:
    return path.stem.removeprefix("ordinary_")


def texts_of(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text("utf-8").splitlines()]


def shuffled(text: str, draw: random.Random) -> str:
    words = re.findall(r"[\w'’-]+", text)
    draw.shuffle(words)
    return " ".join(words).capitalize() + "."


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_ordinary_sentences_pass(path: Path) -> None:
    texts = texts_of(path)

    refused = {text: problem for text in texts if (problem := sense_problem(passage_of(text), evidence=()))}

    assert len(texts) >= 200
    assert len(refused) <= (1 - LEAST_PASSING[name_of(path)]) * len(texts), refused


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_their_words_in_another_order_are_refused(path: Path) -> None:
    draw = random.Random(7)
    texts = [shuffled(text, draw) for text in texts_of(path) for _ in range(4)]

    refused = sum(sense_problem(passage_of(text)) is not None for text in texts)

    assert refused >= LEAST_SHUFFLED_REFUSED[name_of(path)] * len(texts), refused / len(texts)


@pytest.mark.parametrize(
    "text",
    [
        "Rainbows never last long enough, do they?",
        "The last city bus runs from the station past the hospital to the harbor.",
        "Which of the two roads leads to the coast?",
        "What nonsense that man talks!",
        "A stone bridge with three arches crosses the river below the mill.",
        "None of us speaks a word of Greek.",
        "Use lotion to keep your hands soft.",
        "How about a game of cards after supper?",
        "The city stands on a hill.",
    ],
)
def test_sentences_that_earlier_rules_refused_pass(text: str) -> None:
    assert sense_problem(passage_of(text)) is None


@pytest.mark.parametrize(
    "text",
    [
        "Any number of quiet lanes behind the old mill.",
        "What about the lamp and a chair.",
        "The books without covers on the shelf by the window.",
        "Street markets, long lanes, old lamps by the river.",
        "How to decorate your home with snow!",
    ],
)
def test_fragments_stay_refused(text: str) -> None:
    assert sense_problem(passage_of(text)) is not None
