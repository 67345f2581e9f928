"""The table of checkers by skill, including those of other installed packages and of trusted catalogues."""

from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.metadata import entry_points
from typing import Final

from skillmix.catalog.names import fold_name
from skillmix.catalog.own_code import OwnCode, trusted_codes
from skillmix.checkers.figures import figure_checkers, looked_for
from skillmix.checkers.own_checkers import own_checkers
from skillmix.checkers.passage import Checker
from skillmix.checkers.skills import (
    argument,
    interruption,
    place,
    quantity,
    relations,
    repetition,
    series,
    social,
    sound,
    time,
    worked_examples,
)
from skillmix.errors import UserError

ENTRY_POINTS: Final = "skillmix.checkers"
"""The entry-point group for checkers of other packages: `skill name = module:function`."""

_MODULES: Final = (
    sound,
    repetition,
    series,
    interruption,
    worked_examples,
    argument,
    relations,
    quantity,
    time,
    place,
    social,
)
CHECKERS: Final[Mapping[str, Checker]] = {
    name: checker for module in _MODULES for name, checker in module.CHECKERS.items()
}
LOOKS_FOR: Final[Mapping[str, str]] = {name: words for module in _MODULES for name, words in module.LOOKS_FOR.items()}
"""A short description of what each checker looks for."""
_LOOKS_FOR: Final = {fold_name(name): words for name, words in LOOKS_FOR.items()}


_REPEATING: Final = frozenset(
    fold_name(name)
    for name in (
        *repetition.CHECKERS,
        "tricolon",
        "isocolon",
        "modus ponens",
        "modus tollens",
        "disjunctive syllogism",
        "hypothetical chain",
        "two-way condition",
        "sum that adds up",
    )
)
_OWN: Final = frozenset(map(fold_name, CHECKERS))


def may_repeat(skill: str) -> bool:
    """Whether a skill works by repetition or parallel parts; every skill of another package may.

    >>> may_repeat("anaphora"), may_repeat("simile")
    (True, False)
    """
    name = fold_name(skill)
    return name in _REPEATING or name not in _OWN


def checker_of(skill: str) -> Checker | None:
    """The checker of a skill; None if the skill has none."""
    name = fold_name(skill)
    return all_checkers().get(name) or figure_checkers().get(name)


def why_not_shown(skill: str) -> str:
    """The reason for denying a skill; a checker without an entry in a `LOOKS_FOR` has only a general one.

    >>> why_not_shown("simile")
    'code found no passage that shows it; the check looks for a comparison with "as ... as a" or "like a"'
    """
    name = fold_name(skill)
    looks_for = _LOOKS_FOR.get(name) or _looked_for(name, trusted_codes()) or looked_for(name)
    return _NOT_SHOWN if looks_for is None else f"{_NOT_SHOWN}; the check looks for {looks_for}"


_NOT_SHOWN: Final = "code found no passage that shows it"


def _looked_for(name: str, codes: tuple[OwnCode, ...]) -> str | None:
    return next((words for code in codes if (words := own_checkers(code).looks_for.get(name))), None)


def all_checkers() -> Mapping[str, Checker]:
    """All checkers by folded name; another package or a catalogue may add a checker but not replace one."""
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
                hint="Give the skill another name in the catalogue and in CHECKERS.",
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
                hint="Give the skill another name in its catalogue and in the entry point.",
            )
        checkers[fold_name(entry.name)] = entry.load()
    return checkers
