"""Texts by a writer who knew the catalog but not the code: natural ones, ones by the letter only, and broken ones.

Each line of `blind_labelled.jsonl` has the requested skills and topic, and the writer's own labels: the skills that the
text shows, whether it makes sense, and whether it is about the topic. Length is not judged: the writer was told of a
limit of k sentences, one more than the protocol's for k > 1. No rule was changed for these texts.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from skillmix.catalog.files import load_catalog
from skillmix.runs.verdicts import RulesGrader

KINDS = ("natural", "letter", "broken")


@cache
def judged() -> list[tuple[dict[str, Any], set[str], bool, bool, bool]]:
    """Each text with the skills that code finds, sense, full marks but for length, and woven full marks."""
    grader = RulesGrader(load_catalog("verifiable"))
    result = []
    file = Path(__file__).with_name("blind_labelled.jsonl")
    for line in file.read_text(encoding="utf-8").splitlines():
        text = json.loads(line)
        verdict = grader.verdict(text["text"], skills=text["skills"], topic=text["topic"])
        shown = {skill for skill in text["skills"] if verdict.evidence[skill] is not None}
        full = len(shown) == len(text["skills"]) and verdict.topic is not None and verdict.nonsense is None
        woven = full and all(verdict.woven.values())
        result.append((text, shown, verdict.nonsense is None, full, woven))
    return result


def of(kind: str) -> list[tuple[dict[str, Any], set[str], bool, bool, bool]]:
    texts = [row for row in judged() if row[0]["kind"] == kind]
    assert len(texts) == 40
    return texts


def test_code_finds_the_skills_that_the_writer_meant() -> None:
    agreed = [(s in shown) == (s in text["shows"]) for text, shown, *_ in judged() for s in text["skills"]]

    assert len(agreed) == 240
    assert sum(agreed) >= 235


@pytest.mark.parametrize(("kind", "least"), [("natural", 39), ("letter", 32), ("broken", 32)])
def test_sense_agrees_with_the_writer(kind: str, least: int) -> None:
    assert sum(sense == text["sense"] for text, _, sense, _, _ in of(kind)) >= least


def test_natural_texts_earn_full_marks_and_others_rarely_do() -> None:
    full = {kind: sum(row[3] for row in of(kind)) for kind in KINDS}

    assert full["natural"] >= 37
    assert full["letter"] <= 6
    assert full["broken"] <= 2


def test_texts_by_the_letter_are_rarely_woven() -> None:
    woven = {kind: sum(row[4] for row in of(kind)) for kind in KINDS}

    assert woven["letter"] <= 2
    assert woven["natural"] >= 24
