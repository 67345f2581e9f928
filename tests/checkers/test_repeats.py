from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.catalog.files import load_catalog
from skillmix.checkers.judge import Judge
from skillmix.checkers.passage import passage_of
from skillmix.checkers.sense import PromptTexts, repetition_problem, sense_problem

SELF_TAUGHT: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "labelled" / "self_taught.yaml").read_text("utf-8")
)
HALVES = {"choose": 0, "check": 1}
JUDGE = Judge(load_catalog("verifiable").vocabulary, PromptTexts({}))


def refused(entry: dict[str, Any]) -> bool:
    return JUDGE.judge(entry["text"], skills=entry["skills"], topic=entry["topic"]).nonsense is not None


@pytest.mark.parametrize(
    ("text", "skills", "reason"),
    [
        (
            "The picnic was a picnic, a picnic, and a picnic.",
            ["tricolon", "diacope"],
            'the words "a picnic" occur 3 times in a series',
        ),
        (
            "The picnic was a hoot, a hoot, and a hoot, with a hoot for the last one.",
            ["tricolon"],
            'the words "a hoot" occur 3 times in a series',
        ),
        (
            "I wanted to visit the rose bushes, no, I wanted to visit the rose bushes.",
            ["self-correction"],
            'the words "i wanted to visit the rose bushes" occur 2 times in a series',
        ),
        (
            "The milk was made of cows, and the cows were made of cows.",
            ["anadiplosis", "epanalepsis"],
            'the word "cows" occurs 3 times in a sentence, twice in one clause',
        ),
        (
            "Neither the cat nor the cat could scare the house cat.",
            ["correlative pair"],
            'the word "cat" occurs 3 times in a sentence, twice in one clause',
        ),
        (
            "She first called her mother, after that she called the bank, and in the end she called me.",
            ["tag question"],
            'the word "called" occurs 3 times in a sentence, and no requested skill asks for it',
        ),
        (
            "The bakery lights went on, no, not yet, but the bakery lights went on.",
            ["self-correction"],
            'the words "the bakery lights went on" occur 2 times in a series',
        ),
        (
            "The old mill saw snow while the old mill saw rain.",
            ["simile"],
            "3 of its 8 content words are repetitions, and no requested skill asks for them",
        ),
    ],
)
def test_repetition_that_no_skill_asks_for_is_refused_with_its_reason(
    text: str, skills: list[str], reason: str
) -> None:
    assert JUDGE.judge(text, skills=skills, topic="Picnics").nonsense == reason


@pytest.mark.parametrize(
    ("text", "skills"),
    [
        ("She loved mixing, she loved frosting, she loved tasting.", ["anaphora"]),
        ("The garden snails were lazy, lazy, lazy.", ["epizeuxis"]),
        ("The three neighbors had a huge house, a huge car, and a huge tree.", ["tricolon"]),
        ("If the drum leads, the band follows; the drum leads, so the band follows.", ["modus ponens"]),
        ("My mother had a parrot, my brother had a parrot.", ["symploce"]),
        ("The work grew more and more dull, and day by day we slept more.", ["simile"]),
    ],
)
def test_repetition_that_a_requested_skill_asks_for_is_no_fault(text: str, skills: list[str]) -> None:
    assert JUDGE.judge(text, skills=skills, topic="Picnics").nonsense is None


def test_the_same_figure_is_a_fault_if_it_was_not_requested() -> None:
    text = "She loved mixing, she loved frosting, she loved tasting."

    assert JUDGE.judge(text, skills=["simile"], topic="Picnics").nonsense is not None
    assert sense_problem(passage_of(text)) is None, "Without the requested skills, repetition is no fault."


def test_a_text_without_words_repeats_nothing() -> None:
    assert repetition_problem(passage_of("___. ..."), ()) is None
    assert repetition_problem(passage_of(""), ()) is None


@pytest.mark.parametrize(("half", "least"), [("choose", 0.5), ("check", 0.38)])
def test_model_texts_that_go_round_are_refused(half: str, least: float) -> None:
    """All of them had full marks before; the figures of both halves are in docs/verifiable.md."""
    texts = [entry for entry in SELF_TAUGHT[HALVES[half] :: 2] if entry["label"] == "circles"]

    assert sum(map(refused, texts)) >= least * len(texts)


@pytest.mark.parametrize("half", HALVES)
def test_model_texts_that_make_sense_pass(half: str) -> None:
    texts = [entry for entry in SELF_TAUGHT[HALVES[half] :: 2] if entry["label"] == "good"]

    assert sum(map(refused, texts)) <= 0.02 * len(texts)
