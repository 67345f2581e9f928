"""Which graded texts make up a data set: by k, by size, and nested, so that a smaller set is part of a larger one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from skillmix.errors import UserError
from skillmix.hashing import digest

SkillPool = Literal["train", "all"]
_NAMED: Final = re.compile(r"D\((?P<ks>[1-9]\d*(?:,[1-9]\d*)*)\)")
ABLATION: Final = "ablation"
ABLATION_SIZE: Final = 8000
"""Of arXiv 2409.19808, section 5: drawn from D(1,2,3), with fewer texts of k = 2 and 3 together than D(2) has."""


@dataclass(frozen=True, slots=True)
class DataRecipe:
    """What a data set is drawn from, and how much of it."""

    name: str
    ks: tuple[int, ...]
    """Empty: whatever there is."""
    skills: SkillPool
    """Of k = 1; above it always the train side's."""
    size: int | None = None
    shares: Mapping[int, float] = field(default_factory=dict)
    is_named: bool = False
    """A named recipe takes only what may be in it; without one, everything is taken and a leak is an error."""

    @property
    def is_ablation(self) -> bool:
        """Whether the paper's constraint holds it."""
        return self.name == ABLATION


def recipe_named(name: str, *, size: int | None = None, skills: SkillPool | None = None) -> DataRecipe:
    """A set of the paper by its name.

    >>> recipe_named("D(1, 2)").ks, recipe_named("ablation").size
    ((1, 2), 8000)
    """
    told = "".join(name.split())
    pool: SkillPool = skills or "all"
    if told == ABLATION:
        return DataRecipe(ABLATION, (1, 2, 3), pool, size or ABLATION_SIZE, is_named=True)
    match = _NAMED.fullmatch(told)
    ks = [int(k) for k in match["ks"].split(",")] if match else []
    if not ks or len(set(ks)) != len(ks):
        raise UserError(
            f"There is no recipe {name!r}.", hint="Recipes are D(1), D(2), D(1,2), D(1,2,3) and the like, and ablation."
        )
    return DataRecipe(f"D({','.join(map(str, sorted(ks)))})", tuple(sorted(ks)), pool, size, is_named=True)


def plain_recipe(
    ks: Sequence[int],
    *,
    size: int | None = None,
    skills: SkillPool | None = None,
    shares: Mapping[int, float] | None = None,
) -> DataRecipe:
    """Every text of these k."""
    name = f"k = {', '.join(map(str, ks))}" if ks else "everything"
    return DataRecipe(name, tuple(ks), skills or "train", size, dict(shares or {}))


def draw_set(recipe: DataRecipe, texts: Sequence[tuple[str, int]]) -> list[int]:
    """The places of the texts (identity and k) that a recipe takes, in the order in which the texts stand.

    The order of choice is a hash of each text's identity, so what is taken first does not depend on what else there
    is, and a set of 1,000 is part of the set of 2,000. Too few texts are an error with counts, never a smaller set.
    """
    wanted = [place for place, (_, k) in enumerate(texts) if not recipe.ks or k in recipe.ks]
    if recipe.size is None:
        return wanted
    ranked = sorted(wanted, key=lambda place: digest("ladder", texts[place][0]))
    ks = [texts[place][1] for place in ranked]
    if recipe.is_ablation:
        chosen = _below_cap(ks, recipe.size, cap=ks.count(2) - 1)
    elif recipe.shares:
        chosen = _by_shares(ks, recipe.size, recipe.shares)
    else:
        chosen = list(range(min(recipe.size, len(ks))))
    if len(chosen) < recipe.size:
        raise _too_few(recipe, ks, len(chosen))
    return sorted(ranked[place] for place in chosen)


def _below_cap(ks: Sequence[int], size: int, *, cap: int) -> list[int]:
    """The first `size` places with at most `cap` of k = 2 and more among them."""
    chosen: list[int] = []
    compound = 0
    for place, k in enumerate(ks):
        if len(chosen) == size:
            break
        if k == 1 or compound < cap:
            chosen.append(place)
            compound += k > 1
    return chosen


def _by_shares(ks: Sequence[int], size: int, shares: Mapping[int, float]) -> list[int]:
    """Place after place from the k that is furthest behind its share.

    A divisor method: growing the size only adds, which rounding the parts of each size would not promise.
    """
    queues = {k: [place for place, of in enumerate(ks) if of == k] for k in sorted(shares)}
    taken = dict.fromkeys(queues, 0)
    chosen = []
    for _ in range(size):
        k = max(taken, key=lambda k: (shares[k] / (2 * taken[k] + 1), -k))
        if taken[k] == len(queues[k]):
            break
        chosen.append(queues[k][taken[k]])
        taken[k] += 1
    return chosen


def _too_few(recipe: DataRecipe, ks: Sequence[int], reached: int) -> UserError:
    counts = ", ".join(f"{ks.count(k)} of k = {k}" for k in sorted({*ks, *recipe.ks}))
    reason = ""
    if recipe.is_ablation:
        reason = f" Texts of k = 2 and 3 must stay below the {ks.count(2)} of k = 2."
    elif recipe.shares:
        reason = f" Shares: {', '.join(f'k = {k}: {share:g}' for k, share in sorted(recipe.shares.items()))}."
    return UserError(
        f"{recipe.size} texts were asked for, and only {reached} can be had: there are {counts or 'none'}.{reason}",
        hint="Make more texts, or ask for a smaller set.",
    )
