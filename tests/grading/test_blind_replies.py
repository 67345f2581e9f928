"""Replies with shortened, paraphrased, reordered and decorated names: nearly all are read, and none is read wrong.

`blind_replies.jsonl` was written by people who had not seen the reader, `own_replies.jsonl` by its author. Each line
has id, prompt, skills, topic, text and reply, and `truth`: 1, 0 or null for each skill, topic, sense and length.
"""

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from skillmix.grading.reader import read_grades
from skillmix.prompts.rubric import rubric_of

HERE = Path(__file__).parent
LEAST_RIGHT = 0.95


def replies(name: str) -> list[dict[str, Any]]:
    file = HERE / name
    return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()] if file.exists() else []


OWN = replies("own_replies.jsonl")
BLIND = replies("blind_replies.jsonl")


def judged(case: dict[str, Any]) -> Literal["right", "refused", "wrong"]:
    """Compare a reading with the truth.

    A reading has every point or none, so null for a skill, the topic or sense means that the reply must be refused.
    Code counts sentences, so a length point need not be read; it must not contradict the truth.
    """
    rubric = rubric_of(case["skills"], case["topic"])
    truth = case["truth"]
    points = read_grades(rubric, case["reply"], text=case["text"]).by_name(rubric)
    needed = [criterion.name for criterion in rubric.criteria[:-1]]
    if points is None:
        return "right" if any(truth[name] is None for name in needed) else "refused"
    length = points["length"]
    is_same = all(points[name] == truth[name] for name in needed) and length in (None, truth.get("length"))
    return "right" if is_same else "wrong"


@pytest.mark.parametrize("case", OWN, ids=[case["id"] for case in OWN])
def test_replies_of_the_author_are_read_right(case: dict[str, Any]) -> None:
    assert judged(case) == "right"


@pytest.mark.skipif(not BLIND, reason="there are no blind replies")
def test_blind_replies_are_read_right_but_for_a_twentieth_and_none_wrong() -> None:
    verdicts = {case["id"]: judged(case) for case in BLIND}

    assert [name for name, verdict in verdicts.items() if verdict == "wrong"] == []
    assert list(verdicts.values()).count("right") >= LEAST_RIGHT * len(verdicts), verdicts
