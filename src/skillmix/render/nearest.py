"""Suggest names that are close to a name which does not exist."""

from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Final

_LEAST_ALIKE: Final = 0.65
"""The lowest similarity of a suggestion, from 0 to 1."""
_CLEAR: Final = 0.85
"""The similarity from which a suggestion is likely; a shared word counts as much."""


def nearest(name: str, known: Iterable[str], *, most: int = 3) -> list[str]:
    """Known names that are close to a name or share a word with it, the closest first.

    >>> nearest("hedgin", ["metaphor", "hedging", "red herring"])
    ['hedging']
    >>> nearest("herring", ["metaphor", "hedging", "red herring"])
    ['red herring']
    """
    alike = sorted(((_likeness(name, other), other) for other in dict.fromkeys(known)), key=lambda pair: -pair[0])
    close = [other for likeness, other in alike if likeness >= _LEAST_ALIKE]
    # One name that is much closer than the rest is the one that was meant.
    if alike and alike[0][0] >= _CLEAR and (len(alike) == 1 or alike[1][0] < _CLEAR):
        return close[:1]
    return close[:most]


def _likeness(name: str, other: str) -> float:
    one, two = _folded(name), _folded(other)
    if one == two:
        return 1.0
    shared = set(one.split()) & set(two.split())
    by_letters = SequenceMatcher(None, one, two, autojunk=False).ratio()
    return max(by_letters, _CLEAR if shared else 0.0)


def _folded(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())


def name_hint(name: str, known: Iterable[str], *, otherwise: str) -> str:
    """A hint that asks whether a close name was meant, if there is one, before what else helps.

    >>> name_hint("quikstart", ["quickstart", "smoke"], otherwise="Runs here: quickstart, smoke.")
    'Did you mean "quickstart"? Runs here: quickstart, smoke.'
    >>> name_hint("x", ["quickstart", "smoke"], otherwise="Runs here: quickstart, smoke.")
    'Runs here: quickstart, smoke.'
    """
    question = did_you_mean(name, known)
    return f"{question} {otherwise}".rstrip() if question else otherwise


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that suggests close names; empty if there is none.

    >>> did_you_mean("ful_marks", ["full_marks", "all_skills"])
    'Did you mean "full_marks"?'
    """
    close = [f'"{other}"' for other in nearest(name, known)]
    return f"Did you mean {' or '.join([', '.join(close[:-1]), close[-1]][not close[:-1] :])}?" if close else ""
