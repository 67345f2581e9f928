"""Find the skills with two parts, a figure and a word, that a text shows, by the patterns of a catalogue.

Patterns are rows of words and marks without free repetition, so a catalogue from anywhere cannot make them slow.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Final

from skillmix.catalog.grammar import PIECE, Figure, remembered_figures, with_article
from skillmix.catalog.names import fold_name
from skillmix.checkers.passage import Checker, Passage, Span
from skillmix.errors import UserError

_MARKS: Final = ',?!:;"'
_WORD: Final = r"[\w'-]++"
_GAP: Final = rf"(?:{_WORD}\s++){{0,8}}?"
"""Up to eight words without a mark between them."""

Shown = Mapping[str, Span]
"""The skills that a text shows, each with the words that show it."""


@lru_cache(maxsize=8)
def figure_finder(figures: tuple[Figure, ...]) -> Callable[[Passage], Shown]:
    """The function that finds all skills of some figures in a text; patterns are compiled here, once."""
    searches = [(_compiled(figure), {word.lower(): name for word, name in figure.skills}) for figure in figures]

    last: tuple[Passage | None, Shown] = (None, {})  # the checkers of all skills look at a text one after another

    def find(passage: Passage) -> Shown:
        nonlocal last
        known, found = last
        if known is passage:
            return found
        shown: dict[str, Span] = {}
        text = passage.lower
        words = {word.lower.removesuffix("'s") for word in passage.words}
        for pattern, skills in searches:
            if not words.isdisjoint(skills):
                for match in pattern.finditer(text):
                    shown.setdefault(skills[match[match.lastgroup or 0]], Span(match.start(), match.end()))
        last = passage, shown
        return shown

    return find


def _compiled(figure: Figure) -> re.Pattern[str]:
    """One expression for all patterns and words of a figure; the group that is set holds the word."""
    words = "|".join(re.escape(word.lower()) for word, _ in figure.skills)
    alternatives = [_expression(pattern, f"w{number}", words) for number, pattern in enumerate(figure.patterns)]
    return re.compile("|".join(alternatives))


def _expression(pattern: str, group: str, words: str) -> str:
    """A pattern as a regular expression; the second {word} of a pattern must be the first one again."""
    expression, before = "", ""
    for piece in PIECE.findall(pattern):
        if before:
            expression += r"\s*+" if piece in _MARKS or before in _MARKS else "" if before == "..." else r"\s++"
        if piece in ("{word}", "{a word}"):
            article = "an? " if piece == "{a word}" else ""
            again = f"(?P<{group}>" in expression
            expression += rf"\b{article}" + (f"(?P={group})" if again else f"(?P<{group}>{words})") + r"\b"
        elif piece == "...":
            expression += _GAP
        elif piece == "*":
            expression += _WORD
        else:
            expression += re.escape(piece) if piece in _MARKS else rf"\b(?:{piece})\b"
        before = piece
    return expression


def figure_checkers() -> Mapping[str, Checker]:
    """The checkers of all figures that this process knows, by folded name of the skill."""
    return _checkers(remembered_figures())


@lru_cache(maxsize=8)
def _checkers(figures: tuple[Figure, ...]) -> Mapping[str, Checker]:
    find = figure_finder(tuple(dict.fromkeys(figures)))
    patterns: dict[str, tuple[str, ...]] = {}
    for figure in figures:
        for _, skill in figure.skills if figure.patterns else ():
            if patterns.setdefault(skill, figure.patterns) != figure.patterns:
                raise UserError(
                    f"Two catalogues have different patterns for the skill {skill!r}.",
                    hint="Give the figure another name in figures.yaml, or use one of the catalogues at a time.",
                )
    return {fold_name(skill): partial(_shown, find, skill) for skill in patterns}


def _shown(find: Callable[[Passage], Shown], skill: str, passage: Passage) -> Span | None:
    return find(passage).get(skill)


def looked_for(skill: str) -> str | None:
    """The patterns of a skill in words; None if it is no skill of a known figure."""
    for figure in remembered_figures():
        for word, name in figure.skills:
            if fold_name(name) == skill:
                forms = [p.replace("{word}", word).replace("{a word}", with_article(word)) for p in figure.patterns]
                return "words of the form " + " or ".join(f"'{form}'" for form in forms)
    return None
