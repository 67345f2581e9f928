"""Find what a grader wrote about one criterion, to show why it denied a point."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from skillmix.catalog.names import before_parenthesis, fold_name
from skillmix.grading.replies.json_tables import with_json_as_tables
from skillmix.grading.replies.thoughts import without_thought
from skillmix.prompts.rubric import Rubric
from skillmix.render import one_line

_FEWEST_WORDS: Final = 3
"""Fewer words beside a label explain nothing."""
_LONGEST: Final = 200
_BETWEEN: Final = re.compile(r"\||:\s|\s[–—-]\s")
_MARKUP: Final = " \t*_`#>•-–—:|"
_LEAD: Final = re.compile(r"^(?:explanation|reason|comment|note)s?\W+", re.IGNORECASE)
_WORD: Final = re.compile(r"[^\W\d_]{2,}")


def words_about(rubric: Rubric, index: int, reply: str) -> str | None:
    r"""The words of a reply about one criterion: beside its label, or a sentence that names it; None without any.

    >>> from skillmix.prompts.rubric import rubric_of
    >>> rubric = rubric_of(["metaphor"], "Sewing")
    >>> words_about(rubric, 0, "metaphor | 0 | Nothing stands for anything else.\nMakes sense | 1")
    'Nothing stands for anything else.'
    >>> words_about(rubric, 0, "| metaphor | 0 |")
    """
    reply = with_json_as_tables(without_thought(reply) or "")
    found = next(_beside_label(rubric, index, reply), None) or next(_naming(rubric, index, reply), None)
    if found is None:
        return None
    words = _LEAD.sub("", one_line(found).strip(_MARKUP))
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"


@lru_cache(maxsize=8)
def _lines(reply: str) -> list[str]:
    return [line for line in reply.splitlines() if line.strip()]


@lru_cache(maxsize=8)
def _labelled_lines(reply: str) -> list[tuple[str, str]]:
    """The first part of each line that has several, and the longest of its other parts.

    A reply is kept, because several criteria of one text look for their words in it.
    """
    split = [[part.strip(_MARKUP) for part in _BETWEEN.split(line.strip(_MARKUP))] for line in _lines(reply)]
    return [(first, max(others, key=len)) for first, *others in split if others]


def _beside_label(rubric: Rubric, index: int, reply: str) -> Iterator[str]:
    """The longest part of a line whose first part is a label of the criterion."""
    for first, longest in _labelled_lines(reply):
        is_label = 0 < len(first) <= rubric.longest_label and rubric.criterion_of(first) == index
        if is_label and _explains(longest):
            yield longest


def _naming(rubric: Rubric, index: int, reply: str) -> Iterator[str]:
    """Sentences outside tables that name a skill and no other skill of the rubric."""
    if rubric.criteria[index].kind != "skill":
        return
    names = [fold_name(before_parenthesis(criterion.name)) for criterion in rubric.criteria[: rubric.k]]
    for line in _lines(reply):
        folded = fold_name(line)
        named = [name for name in names if name in folded]
        if "|" not in line and named == [names[index]] and _explains(line):
            yield line


def _explains(words: str) -> bool:
    return len(_WORD.findall(words)) >= _FEWEST_WORDS
