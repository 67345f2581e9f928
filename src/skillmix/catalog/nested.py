"""Nested partitions of skills that are made of a figure and a word, such as "a simile with an owl".

Some figures and some words are never composed in training. Of the other cells (a figure with a word), half are composed
in training: the train cells. So one student shows what carries over to a new cell, a new word and a new figure.
"""

from collections.abc import Mapping
from itertools import combinations
from math import ceil
from typing import Final

from skillmix.errors import UserError
from skillmix.hashing import digest, ranked

GROUPS_OF_CELLS: Final = ("train", "random-cells", "new-words", "new-figures", "both-new")
_Cell = tuple[str, str]


def cells_by_group(parts: Mapping[str, _Cell], seed: int) -> dict[str, tuple[str, ...]]:
    """Skills by group, from the figure and the word of each skill; a hash of the seed and the names decides.

    Figures that use the same words are of one kind. A third of the figures and a quarter of the words of each kind are
    new; every other figure and word keeps train cells.
    """
    kinds = _kinds(parts)
    new_figures: set[str] = set()
    wanted = sum(map(len, kinds.values())) // 3
    for figure in ranked([figure for figures in kinds.values() for figure in figures], "nested figures", seed):
        kind = next(figures for figures in kinds.values() if figure in figures)
        most = min(ceil(len(kind) / 3), len(kind) - 2)
        if len(new_figures) < wanted and len(new_figures.intersection(kind)) < most:
            new_figures.add(figure)
    by_rank = {words: ranked(sorted(words), "nested words", seed) for words in kinds}
    new_words = {word for words in by_rank.values() for word in words[: len(words) // 4]}
    train: set[_Cell] = set()
    for words, figures in kinds.items():
        known = [figure for figure in ranked(figures, "nested rows", seed) if figure not in new_figures]
        train |= _half_of_cells(known, [word for word in by_rank[words] if word not in new_words], seed)
    groups: dict[str, list[str]] = {name: [] for name in GROUPS_OF_CELLS}
    for skill, cell in parts.items():
        new = cell[0] in new_figures, cell[1] in new_words
        composed = "train" if cell in train else "random-cells"
        groups[
            {(True, True): "both-new", (True, False): "new-figures", (False, True): "new-words"}.get(new, composed)
        ].append(skill)
    figures_left = {cell[0] for cell in parts.values()} - new_figures
    words_left = {cell[1] for cell in parts.values()} - new_words
    if not all(groups.values()) or {f for f, _ in train} != figures_left or {w for _, w in train} != words_left:
        raise UserError(
            f"The figures and words of this catalogue have no partition nested:{seed}.",
            hint="At least three figures must share the same words, four or more, and no other figures less than two.",
        )
    return {name: tuple(skills) for name, skills in groups.items()}


def _kinds(parts: Mapping[str, _Cell]) -> dict[frozenset[str], list[str]]:
    """Figures by the set of words that they use."""
    words: dict[str, set[str]] = {}
    for figure, word in parts.values():
        words.setdefault(figure, set()).add(word)
    kinds: dict[frozenset[str], list[str]] = {}
    for figure in sorted(words):
        kinds.setdefault(frozenset(words[figure]), []).append(figure)
    return kinds


def _half_of_cells(figures: list[str], words: list[str], seed: int) -> set[_Cell]:
    """Half of the cells: a chessboard, after exchanges that keep the number of cells in every row and column."""
    chosen = {(f, w): (row + column) % 2 == 0 for row, f in enumerate(figures) for column, w in enumerate(words)}
    for one, other in combinations(figures, 2):
        for first, second in combinations(words, 2):
            square = [(one, first), (other, second), (one, second), (other, first)]
            is_exchangeable = [chosen[cell] for cell in square] in (
                [True, True, False, False],
                [False, False, True, True],
            )
            if is_exchangeable and digest("nested exchange", seed, one, other, first, second)[0] % 2:
                chosen |= {cell: not chosen[cell] for cell in square}
    return {cell for cell, is_chosen in chosen.items() if is_chosen}
