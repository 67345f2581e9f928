"""Settings of data sets, and the choice of texts by k, size and shares: recipes, filters, rules against leakage.

Texts are drawn so that a larger data set contains the smaller one.
"""

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError, model_validator

from skillmix.errors import UserError
from skillmix.experiment.step_base import Section, Share
from skillmix.hashing import digest

ShownMode = Literal["refuse", "drop", "count"]
"""The treatment of texts that show a reserved pair or two held-out skills: an error, exclusion or a count."""


RequestChoice = Literal["all", "one"]
"""The skills that a request names: all skills of its text, or one, with "any skill" in place of each other skill."""


class LeakageSettings(Section):
    """Content that a data set must not contain, besides held-out topics and skills."""

    evaluations: list[str] = []
    """Files with combinations of other evaluations: `combinations --json`, JSON Lines, or experiment files."""
    names: Literal["list", "strict"] = "list"
    """Report texts that name a held-out skill (`list`), or fail (`strict`)."""
    reserved: Share = 0.2
    """Share of the skill sets with k >= 2 that every data set excludes, for all topics."""
    shown: ShownMode = "drop"
    """Exclude texts in which checkers find a reserved pair or two held-out skills (`drop`), count them, or fail."""


class DataFilters(Section):
    """The texts with full marks that a data set excludes, and the share for validation."""

    near_duplicates: Annotated[float, Field(gt=0, le=1)] | None = 0.7
    """3-gram overlap (Jaccard) at or above which a text counts as a copy of an earlier text; null keeps copies."""
    exact_duplicates: Literal["drop", "keep"] = "drop"
    """Exclude or keep a text with the same words as an earlier text."""
    example_copies: Literal["drop", "keep"] = "drop"
    """Exclude or keep a text that repeats an example of its prompt."""
    validation: Share = 0.05
    """Share of the combinations whose texts form the validation set."""

    @model_validator(mode="after")
    def _exact_copies_are_near(self) -> "DataFilters":
        if self.exact_duplicates == "keep" and self.near_duplicates is not None:
            raise ValueError("exact_duplicates: keep needs near_duplicates: null, because exact copies are near copies")
        return self


def with_own_settings(document: dict[str, Any]) -> dict[str, Any]:
    """Complete the dataset steps of a document with the experiment's filters and leakage rules.

    A step's catalog or partition is omitted if it equals the experiment's.
    """
    section, leakage, steps = document.get("dataset"), document.get("leakage"), document.get("steps")
    try:
        DataFilters.model_validate(section)
    except ValidationError:
        section = None  # the check of the experiment reports its faults
    stated = section.items() if isinstance(section, dict) else ()
    filters = {key: value for key, value in stated if key in DataFilters.model_fields}
    place = {"catalog": document.get("catalog", "paper"), "partition": document.get("partition")}

    def completed(step: object) -> object:
        if not isinstance(step, dict):
            return step
        shared = place if step.get("catalog") in (None, place["catalog"]) else {}
        own = {key: value for key, value in step.items() if key not in shared or value != shared[key]}
        if own.get("stage") != "dataset":
            return own
        if isinstance(leakage, dict) and isinstance(own.get("leakage"), dict):
            own["leakage"] = {**leakage, **own["leakage"]}
        return {**filters, **own}

    return {**document, "steps": list(map(completed, steps))} if isinstance(steps, list) else document


SkillPool = Literal["train", "all"]
_NAMED: Final = re.compile(r"D\((?P<ks>[1-9]\d*(?:,[1-9]\d*)*)\)")
ABLATION: Final = "ablation"
ABLATION_SIZE: Final = 8000
"""The size of the ablation in arXiv 2409.19808, section 5: texts of D(1,2,3), fewer with k = 2 or 3 than in D(2)."""


@dataclass(frozen=True, slots=True)
class DataRecipe:
    """The rules by which a data set chooses its texts."""

    name: str
    ks: tuple[int, ...]
    """Empty for texts of any k."""
    skills: SkillPool
    """Skills of texts with k = 1; texts with a larger k always have train skills."""
    size: int | None = None
    shares: Mapping[int, float] = field(default_factory=dict)
    is_named: bool = False
    """Whether leaking texts are skipped, as in the paper's recipes, instead of raising an error."""

    @property
    def is_ablation(self) -> bool:
        """Whether the recipe is the paper's ablation, which limits the texts with k = 2 and 3."""
        return self.name == ABLATION


def recipe_named(name: str, *, size: int | None = None, skills: SkillPool | None = None) -> DataRecipe:
    """Return the recipe of the paper's data set with this name.

    >>> recipe_named("D(1, 2)").ks, recipe_named("ablation").size
    ((1, 2), 8000)
    """
    compact = "".join(name.split())
    pool: SkillPool = skills or "all"
    if compact == ABLATION:
        return DataRecipe(ABLATION, (1, 2, 3), pool, size or ABLATION_SIZE, is_named=True)
    match = _NAMED.fullmatch(compact)
    ks = [int(k) for k in match["ks"].split(",")] if match else []
    if not ks or len(set(ks)) != len(ks):
        raise UserError(f"There is no recipe {name!r}.", hint="Use ablation, D(1), D(2), D(1,2), D(1,2,3), ….")
    return DataRecipe(f"D({','.join(map(str, sorted(ks)))})", tuple(sorted(ks)), pool, size, is_named=True)


def plain_recipe(
    ks: Sequence[int],
    *,
    size: int | None = None,
    skills: SkillPool | None = None,
    shares: Mapping[int, float] | None = None,
) -> DataRecipe:
    """Make a recipe for all texts with these k, or for `size` of them in the proportions of `shares`."""
    name = f"k = {', '.join(map(str, ks))}" if ks else "everything"
    return DataRecipe(name, tuple(ks), skills or "train", size, dict(shares or {}))


def draw_set(recipe: DataRecipe, texts: Iterable[tuple[str, int]]) -> Sequence[int]:
    """Draw texts, each given by its identity and k, and return their indices in ascending order.

    Texts are ranked by a hash of their identity, so that a set of 2,000 contains the set of 1,000. Too few texts are an
    error.
    """
    candidates = ((index, identity, k) for index, (identity, k) in enumerate(texts) if not recipe.ks or k in recipe.ks)
    if recipe.size is None:
        return array("q", (index for index, _, _ in candidates))
    ranked = sorted((digest("ladder", identity), index, k) for index, identity, k in candidates)
    ks = [k for _, _, k in ranked]
    if recipe.is_ablation:
        chosen = _below_cap(ks, recipe.size, cap=ks.count(2) - 1)
    elif recipe.shares:
        chosen = _by_shares(ks, recipe.size, recipe.shares)
    else:
        chosen = list(range(min(recipe.size, len(ks))))
    if len(chosen) < recipe.size:
        raise _too_few(recipe, ks, len(chosen))
    return sorted(ranked[rank][1] for rank in chosen)


def _below_cap(ks: Sequence[int], size: int, *, cap: int) -> list[int]:
    """Choose the first `size` ranks, with at most `cap` texts of k >= 2 among them."""
    chosen: list[int] = []
    compound = 0
    for rank, k in enumerate(ks):
        if len(chosen) == size:
            break
        if k == 1 or compound < cap:
            chosen.append(rank)
            compound += k > 1
    return chosen


def _by_shares(ks: Sequence[int], size: int, shares: Mapping[int, float]) -> list[int]:
    """Choose ranks one by one, each from the k that is furthest behind its share.

    With this divisor method, unlike with rounded numbers for each k, a larger size only adds ranks.
    """
    queues = {k: [rank for rank, other in enumerate(ks) if other == k] for k in sorted(shares)}
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
        reason = f" Together, k = 2 and 3 must have fewer texts than the {ks.count(2)} of k = 2."
    elif recipe.shares:
        reason = f" Shares: {', '.join(f'k = {k}: {share:g}' for k, share in sorted(recipe.shares.items()))}."
    return UserError(
        f"The data set needs {recipe.size} texts, but only {reached} qualify: there are {counts or 'none'}.{reason}",
        hint="Generate more texts, or choose a smaller size.",
    )
