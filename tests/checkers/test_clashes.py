"""Words that clash: which are found, and that ordinary texts have hardly any."""

import json
from functools import cache
from pathlib import Path

import pytest
import yaml

from skillmix.catalog.files import load_catalog
from skillmix.checkers.meaning import clash
from skillmix.checkers.passage import passage_of
from skillmix.checkers.topics import TopicWords, topic_words
from tests.nasty_texts import takes_longer

HERE = Path(__file__).parent


@cache
def topic(name: str) -> TopicWords:
    return topic_words(name, *load_catalog("verifiable").vocabulary.get(name, ((), ())))


def found(text: str, name: str = "Hotel lobbies") -> str | None:
    return clash(passage_of(text), topic(name))


@pytest.mark.parametrize(
    "text",
    [
        "The hotel lobby arrested a comma.",
        "The lighthouse drank the afternoon.",
        "The kite flew, and its uncle laughed.",
        "The lamp stands behind the temperature.",
        "We sat beside a blue idea.",
        "The clay was a kind of subtraction.",
        "Its lawyer was photocopied by the sea.",
        "The kite is four liters more married than its alphabet.",
        "We heard the spoon's sister.",
        "The sleeve was full of verbs.",
        "The bowl was inside it the yesterday of.",
        "The clock gave birth to a spoon.",
        "The tailor stitched a coat and a Tuesday.",
        "The chair is as married as its opinion.",
        "The pillow has two lawyers.",
        "The lamp was proud of the retirement of salt.",
        "My uncle is a hexagon.",
        "The lid became Wednesday.",
    ],
)
def test_words_that_do_not_belong_together_are_found(text: str) -> None:
    assert found(text) is not None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("She forgot one vowel and one consonant.", "Spelling bees"),
        ("The algebra exam had a question about decimals.", "School exams"),
        ("The lawyer sat in the lobby.", "Hotel lobbies"),
        ("He is the man I thought of.", "Hotel lobbies"),
        ("The hen called its chicks.", "Hotel lobbies"),
        ("She had waited ever since.", "Hotel lobbies"),
        ("The dog dreamed by the fireplace, and the cat slept by the stove.", "Fireplaces"),
        ("The cow is not giving much milk these days, and it weighs three times as much.", "Dairy cows"),
        ("He was as bald as an egg and as deaf as a post.", "Haircuts"),
        ("She ate the cake and the sun rose.", "Birthday cakes"),
    ],
)
def test_words_that_belong_together_are_not(text: str, name: str) -> None:
    assert found(text, name) is None


def test_ordinary_texts_have_hardly_any() -> None:
    lines = [
        json.loads(line)
        for name in ("ordinary_open", "ordinary_apart", "ordinary_moods")
        for line in (HERE / f"{name}.jsonl").read_text("utf-8").splitlines()
    ]
    entries = [
        entry
        for name in ("witnesses.yaml", "labelled/sensible.yaml")
        for entry in yaml.safe_load((HERE / name).read_text("utf-8"))
    ]
    texts = [(line["text"], "") for line in lines] + [(entry["text"], entry["topic"] or "") for entry in entries]

    wrong = [text for text, name in texts if found(text, name) is not None]

    assert len(texts) > 1_000
    assert len(wrong) <= 0.005 * len(texts), wrong


@pytest.mark.parametrize("words", ["the ", "its the ", "behind the ", "arrest the the ", "triangle ", "of. "])
def test_hostile_text_takes_no_longer_than_a_second(words: str) -> None:
    passage = passage_of(words * (100_000 // len(words)))

    assert not takes_longer(lambda: clash(passage, topic("Hotel lobbies")), seconds=1)
