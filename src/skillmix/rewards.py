"""Reward functions for TRL's trainers, which return a number for each completion.

Code computes a reward in about a millisecond, with the rules of the grader `rules:`. `full_marks` therefore returns 1
exactly if an evaluation with this grader gives full marks. `skillmix prompts --dataset FILE` writes prompts with the
columns that the functions read.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import combination_of
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.grading.answers import RULES, extract_answer
from skillmix.grading.points import FULL_MARKS, Points, decide_points, text_score
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.verdicts import RulesGrader, reading_of, require_checkers

Completion = str | Sequence[Mapping[str, Any]]
"""A text, or a list of messages that ends with the model's reply."""
Completions = Sequence[Completion]
SkillLists = Sequence[Sequence[str]]
Catalogs = str | Sequence[str]
"""One catalog for all completions, or one for each."""
CATALOG: Final = "verifiable"


def full_marks(
    completions: Completions, skills: SkillLists, topic: Sequence[str], catalog: Catalogs = CATALOG, **_: object
) -> list[float]:
    """Return 1 for each completion with full marks, otherwise 0.

    >>> text = "I raked beautiful autumn leaves for three days, no, four days."
    >>> full_marks([f"Answer: {text}", "Answer: Leaves."], [["self-correction", "diacope"]] * 2, ["Autumn leaves"] * 2)
    [1.0, 0.0]
    """
    return [_known(text_score(points, FULL_MARKS)) for points in _points(completions, skills, topic, catalog)]


def skill_fraction(
    completions: Completions, skills: SkillLists, topic: Sequence[str], catalog: Catalogs = CATALOG, **_: object
) -> list[float]:
    """Return the share of skills that each completion shows; 0 if it misses the topic, sense or length point."""
    return [_known(text_score(points, "skill_fraction")) for points in _points(completions, skills, topic, catalog)]


def partial_credit(
    completions: Completions, skills: SkillLists, topic: Sequence[str], catalog: Catalogs = CATALOG, **_: object
) -> list[float]:
    """Return the share of its k + 3 points that each completion earns; 0 if it lacks the point for sense.

    Without this condition, a list of cue words or a copy of the prompt's definitions would earn the points for skills.
    """
    return [
        sum(map(bool, points)) / len(points) if points[_SENSE] else 0.0
        for points in _points(completions, skills, topic, catalog)
    ]


_SENSE: Final = -2
"""The index of sense among the points: skills, topic, sense, length."""


def _known(score: float | None) -> float:
    assert score is not None  # code never leaves a point undecided
    return score


def _points(completions: Completions, skills: SkillLists, topic: Sequence[str], catalog: Catalogs) -> Iterator[Points]:
    catalogs = [catalog] * len(completions) if isinstance(catalog, str) else list(catalog)
    if not len(completions) == len(skills) == len(topic) == len(catalogs):
        raise UserError(
            f"There are {len(completions)} completions, but {len(skills)} lists of skills, {len(topic)} topics and "
            f"{len(catalogs)} catalogs.",
            hint="Pass one entry per completion in each column, as TRL does.",
        )
    for completion, names, about, source in zip(completions, skills, topic, catalogs, strict=True):
        if isinstance(names, str):
            raise UserError(
                f"The skills of a row are a string: {names!r}.", hint="Put a list of names in each row of `skills`."
            )
        asked, on = _combination(source, tuple(names), about)
        answer = extract_answer(text_of(completion))
        reading = reading_of(_grader(source).verdict(answer.text, skills=asked, topic=on), asked)
        yield decide_points(rubric_of(asked, on), answer, [reading], rounds=1, rules=RULES["default"])


@lru_cache(maxsize=4096)
def _combination(catalog: str, skills: tuple[str, ...], topic: str) -> tuple[tuple[str, ...], str]:
    """Return the names in the catalog's spelling; reject unknown names and skills without a checker."""
    known = _catalog(catalog)
    combination = combination_of([known.skill(name).name for name in skills], known.topic(topic))
    require_checkers(known, combination.skills, "skillmix.rewards")
    return combination.skills, combination.topic


def text_of(completion: Completion) -> str:
    """Return the text of a completion: the completion itself, or the content of its last message.

    >>> text_of([{"role": "assistant", "content": "Answer: Rain."}])
    'Answer: Rain.'
    """
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else ""
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(str(part.get("text") or "") for part in content)  # multimodal models split messages into parts


@lru_cache(maxsize=4)
def _catalog(name: str) -> Catalog:
    return load_catalog(name)


@lru_cache(maxsize=4)
def _grader(name: str) -> RulesGrader:
    return RulesGrader(_catalog(name))
