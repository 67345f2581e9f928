"""The table of checkers by skill, including those of other installed packages and of trusted catalogs.

Patterns are sequences of words and marks without unbounded repetition, so no catalog can make them slow.
"""

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib.metadata import entry_points
from traceback import extract_tb
from types import ModuleType
from typing import Any, Final

from skillmix.catalog.catalog import PIECE, Figure, fold_name, remembered_figures
from skillmix.catalog.grammar import with_article
from skillmix.catalog.own_code import OwnCode, require_trust, trusted_codes
from skillmix.checkers.passage import Checker, Passage, Span
from skillmix.checkers.skills import ENTERED, REPEATING
from skillmix.checkers.words import english
from skillmix.errors import UserError, faults_error
from skillmix.files import with_nearest


@dataclass(frozen=True)
class OwnCheckers:
    """The checkers that a `checkers.py` defines, by folded name of the skill."""

    checkers: Mapping[str, Checker]
    looks_for: Mapping[str, str]


@lru_cache(maxsize=16)
def own_checkers(code: OwnCode) -> OwnCheckers:
    """Run trusted code once, and check everything that it defines."""
    require_trust(code)
    module = ModuleType(f"skillmix_checkers_{code.hash}")
    module.__file__ = code.path
    sys.modules[module.__name__] = module  # dataclasses in the code look up their module
    try:
        exec(compile(code.source, code.path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any exception is a fault in that file
        raise UserError(f"{code.path} cannot be loaded: {_described(error, code)}.", hint="Correct the file.") from None
    found: object = getattr(module, "CHECKERS", None)
    looks_for: object = getattr(module, "LOOKS_FOR", {})
    faults = [
        *_faults("CHECKERS", found, callable, "a function", code),
        *_faults("LOOKS_FOR", looks_for, lambda value: isinstance(value, str), "a text", code),
    ]
    if faults or not isinstance(found, dict) or not isinstance(looks_for, dict):
        raise faults_error(code.path, faults, hint='Write CHECKERS = {"name of the skill": function}.')
    return OwnCheckers(
        {fold_name(name): _guarded(name, function, code) for name, function in found.items()},
        {fold_name(name): words for name, words in looks_for.items()},
    )


def _faults(table: str, found: object, is_right: Callable[[object], bool], expected: str, code: OwnCode) -> list[str]:
    if not isinstance(found, dict) or (table == "CHECKERS" and not found):
        return [f"{table} is not a dict with an entry for each skill that the code checks"]
    known = {fold_name(skill) for skill in code.skills}
    faults = []
    for name, value in found.items():
        if not isinstance(name, str) or fold_name(name) not in known:
            faults.append(with_nearest(f"{table}: the catalog has no skill {name!r}", str(name), code.skills))
        elif not is_right(value):
            faults.append(f"{table}: the value of {name!r} is not {expected}")
    return faults


def _guarded(skill: str, function: Callable[[Passage], Any], code: OwnCode) -> Checker:
    """Wrap a checker so that a failure raises an error that names it, instead of counting as a missing skill."""

    def check(passage: Passage) -> Span | None:
        try:
            found = function(passage)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any exception is a fault in the checker
            raise UserError(
                f"The checker of {skill!r} failed on a text of {len(passage.text)} characters: "
                f"{_described(error, code)}.",
                hint=f"Correct {code.path}.",
            ) from None
        match found:
            case None:
                return None
            case (int(start), int(end)) if 0 <= start < end <= len(passage.text):
                return Span(start, end)
        raise UserError(
            f"The checker of {skill!r} returned {type(found).__name__} {str(found)[:80]!r}.",
            hint="It must return None, or a Span(start, end) of characters inside the text.",
        )

    return check


def _described(error: BaseException, code: OwnCode) -> str:
    """Describe an error in one line, with the line of code that raised it."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} (line {error.lineno})"
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == code.path]
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {str(error)[:200]}{where}"


_MARKS: Final = ',?!:;"'
_WORD: Final = r"[\w'-]++"
_GAP: Final = rf"(?:{_WORD}\s++){{0,8}}?"
"""A pattern for up to eight words without a mark between them."""

Shown = Mapping[str, Span]
"""The skills that a text shows, each with the words that show it."""


@lru_cache(maxsize=8)
def figure_finder(figures: tuple[Figure, ...]) -> Callable[[Passage], Shown]:
    """Compile the patterns of figures, and return a function that finds every skill of these figures in a text."""
    searches = []
    for figure in figures:
        # One expression covers all patterns and words of a figure; the group that matched contains the word.
        words = "|".join(re.escape(word.lower()) for word, _ in figure.skills)
        alternatives = [_expression(pattern, f"w{number}", words) for number, pattern in enumerate(figure.patterns)]
        skill_of = {word.lower(): name for word, name in figure.skills}
        searches.append((re.compile("|".join(alternatives)), skill_of))
    last: tuple[Passage | None, Shown] = (
        None,
        {},
    )  # The last result is cached, because the checkers of all skills examine a text one after another.

    def find(passage: Passage) -> Shown:
        nonlocal last
        known, found = last
        if known is passage:
            return found
        shown: dict[str, Span] = {}
        text = passage.lower
        own_words = {word.lower.removesuffix("'s") for word in passage.words}
        for pattern, skills in searches:
            if not own_words.isdisjoint(skills):
                for match in pattern.finditer(text):
                    shown.setdefault(skills[match[match.lastgroup or 0]], Span(match.start(), match.end()))
        last = passage, shown
        return shown

    return find


def _expression(pattern: str, group: str, words: str) -> str:
    """Turn a pattern into a regular expression in which the second {word} must equal the first."""
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


@lru_cache(maxsize=8)
def _of_figures(figures: tuple[Figure, ...]) -> Mapping[str, Checker]:
    """Return the checkers of figures by folded name of the skill."""
    find = figure_finder(tuple(dict.fromkeys(figures)))
    patterns: dict[str, tuple[str, ...]] = {}
    for figure in figures:
        for _, skill in figure.skills if figure.patterns else ():
            if patterns.setdefault(skill, figure.patterns) != figure.patterns:
                raise UserError(
                    f"Two catalogs have different patterns for the skill {skill!r}.",
                    hint="Give the figure another name in figures.yaml, or use only one of the catalogs.",
                )
    return {fold_name(skill): partial(lambda skill, passage: find(passage).get(skill), skill) for skill in patterns}


def looked_for(skill: str) -> str | None:
    """Describe the patterns of a skill in words; None if the skill belongs to no known figure."""
    for figure in remembered_figures():
        for word, name in figure.skills:
            if fold_name(name) == skill:
                forms = [p.replace("{word}", word).replace("{a word}", with_article(word)) for p in figure.patterns]
                return "words of the form " + " or ".join(f"'{form}'" for form in forms)
    return None


ENTRY_POINTS: Final = "skillmix.checkers"
"""The entry-point group for checkers of other packages: `skill name = module:function`."""

LOOKS_FOR: Final[Mapping[str, str]] = english("looks_for")
"""A short description of what each checker looks for."""
_LOOKS_FOR: Final = {fold_name(name): words for name, words in LOOKS_FOR.items()}


CHECKERS: Final[Mapping[str, Checker]] = {name: ENTERED[name] for name in LOOKS_FOR}
_REPEATING: Final = frozenset(map(fold_name, REPEATING))


def may_repeat(skill: str) -> bool:
    """Return whether a skill may work by repetition or parallel parts; True for every skill from outside this package.

    >>> may_repeat("anaphora"), may_repeat("simile")
    (True, False)
    """
    name = fold_name(skill)
    return name in _REPEATING or name not in _LOOKS_FOR


def checker_of(skill: str) -> Checker | None:
    """Return the checker of a skill; None if there is no checker."""
    name = fold_name(skill)
    return all_checkers().get(name) or _of_figures(remembered_figures()).get(name)


def why_not_shown(skill: str) -> str:
    """Return the reason why a skill earns no point, with a description of what its checker looks for if there is one.

    >>> why_not_shown("simile")
    'code found no passage that shows it; the check looks for a comparison with "as ... as a" or "like a"'
    """
    name = fold_name(skill)
    looks_for = (
        _LOOKS_FOR.get(name)
        or (next((words for code in trusted_codes() if (words := own_checkers(code).looks_for.get(name))), None))
        or looked_for(name)
    )
    return _NOT_SHOWN if looks_for is None else f"{_NOT_SHOWN}; the check looks for {looks_for}"


_NOT_SHOWN: Final = "code found no passage that shows it"


def all_checkers() -> Mapping[str, Checker]:
    """Return all checkers by folded name; another package or a catalog may add a checker but not replace one."""
    return _with_own(trusted_codes())


@lru_cache(maxsize=4)
def _with_own(codes: tuple[OwnCode, ...]) -> Mapping[str, Checker]:
    checkers = dict(_installed())
    for code in codes:
        own = own_checkers(code).checkers
        twice = sorted(own.keys() & checkers.keys())
        if twice:
            raise UserError(
                f"{code.path} has a checker for {twice[0]!r}, which has one already.",
                hint="Give the skill another name in the catalog and in CHECKERS.",
            )
        checkers |= own
    return checkers


@cache
def _installed() -> Mapping[str, Checker]:
    checkers = {fold_name(name): checker for name, checker in CHECKERS.items()}
    for entry in entry_points(group=ENTRY_POINTS):
        if fold_name(entry.name) in checkers:
            raise UserError(
                f"The package {entry.value.partition(':')[0]!r} has a second checker for {entry.name!r}.",
                hint="Give the skill another name in its catalog and in the entry point.",
            )
        checkers[fold_name(entry.name)] = entry.load()
    return checkers
