"""Where a model and its training data come from, as the files beside them say; names decide nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from skillmix.catalog.combinations import Combination


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What a data set's `skillmix.json` says."""

    name: str
    hash: str | None
    k: tuple[int, ...]
    partition: str | None
    writers: tuple[str, ...]
    combinations: frozenset[str]
    skill_sets: frozenset[frozenset[str]] | None
    """Sets of two skills or more; None if the file does not say."""
    rows: int | None
    """Conversations to train on."""
    yields: Mapping[int, "DatasetYield"]
    """By k."""


@dataclass(frozen=True, slots=True)
class DatasetYield:
    """How many conversations were written for one k, and how many of them had full marks."""

    written: int
    full_marks: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a model's `skillmix.json` says."""

    base: str
    """The spec of the model that was tuned."""
    k: tuple[int, ...]
    """Numbers of skills in its training texts."""
    seed: int | None
    partition: str | None
    datasets: tuple[str, ...]
    """Their hashes."""
    combinations: frozenset[str]
    """Ids of the combinations it was trained on."""
    skill_sets: frozenset[frozenset[str]] | None
    """Sets of skills it was trained on; None if the file does not say."""
    rows: int | None
    """Conversations it was trained on, counted once; None if nothing says."""
    steps: int | None
    is_adapter: bool


LOSSES: Final = ("answers", "validation", "replay")
"""What a training log holds of each step: the loss on answers, on data held back, on replayed text."""


@dataclass(frozen=True, slots=True)
class TrainingCurve:
    """What a training step logged: a series of (step, value) for each loss."""

    name: str
    series: Mapping[str, Sequence[tuple[int, float]]]


def dataset_facts(name: str, document: Mapping[str, object]) -> DatasetFacts:
    """Read a data set's file; what it does not say is unknown."""
    counts = _mapping(document.get("counts"))
    return DatasetFacts(
        name=name,
        hash=_text(document.get("hash")),
        k=_numbers(document.get("k")),
        partition=_text(document.get("partition")),
        writers=_writers(document.get("writers")),
        combinations=frozenset(_texts(document.get("combinations"))),
        skill_sets=_sets(document.get("skill_sets")),
        rows=_rows(counts),
        yields=_yields(counts),
    )


def lineage_of(document: Mapping[str, object], datasets: Mapping[str, DatasetFacts]) -> Lineage:
    """Read a model's file; `datasets` by hash tell how many conversations it was trained on."""
    base = _mapping(document.get("base"))
    listed = document.get("dataset")
    used = [_mapping(entry) for entry in (listed if isinstance(listed, list) else [listed])]
    hashes = tuple(str(entry["hash"]) for entry in used if "hash" in entry)
    known = [datasets[h] for h in hashes if h in datasets]
    is_known = bool(known) and len(known) == len(hashes)
    rows = [facts.rows for facts in known if facts.rows is not None]
    sets = [facts.skill_sets for facts in known if facts.skill_sets is not None]
    recipe = _mapping(document.get("recipe"))
    return Lineage(
        base=_text(base.get("spec")) or "unknown",
        k=_numbers(document.get("k")),
        seed=_whole(document.get("seed")),
        partition=_text(document.get("partition")),
        datasets=hashes,
        combinations=frozenset(_texts(document.get("combinations"))),
        skill_sets=frozenset[frozenset[str]]().union(*sets) if is_known and len(sets) == len(known) else None,
        rows=sum(rows) if is_known and len(rows) == len(known) else None,
        steps=_whole(recipe.get("steps_taken", recipe.get("steps"))),
        is_adapter=document.get("adapter") is True,
    )


def trained_skill_sets(lineage: Lineage, known: Mapping[str, Combination]) -> frozenset[frozenset[str]] | None:
    """The sets of skills that a model saw together; None where neither its data sets nor a journal tell them."""
    if lineage.skill_sets is not None:
        return lineage.skill_sets
    if not lineage.combinations or not lineage.combinations <= known.keys():
        return None
    return frozenset(frozenset(known[c].skills) for c in lineage.combinations)


def short_name(k: Sequence[int]) -> str:
    """Training data as the paper names it.

    >>> short_name([1, 2, 3]), short_name([])
    ('D(1,2,3)', 'base')
    """
    return f"D({','.join(map(str, k))})" if k else "base"


def continued(lineage: Lineage, before: Lineage) -> Lineage:
    """The lineage of a model that was trained from a trained one: its root, and all that both saw."""
    return replace(
        lineage,
        base=before.base,
        k=tuple(sorted({*lineage.k, *before.k})),
        datasets=(*before.datasets, *lineage.datasets),
        combinations=lineage.combinations | before.combinations,
        skill_sets=None if None in (lineage.skill_sets, before.skill_sets) else _both(lineage, before),
        rows=None if lineage.rows is None or before.rows is None else lineage.rows + before.rows,
    )


def _both(lineage: Lineage, before: Lineage) -> frozenset[frozenset[str]]:
    return (lineage.skill_sets or frozenset()) | (before.skill_sets or frozenset())


def _rows(counts: Mapping[str, object]) -> int | None:
    return _whole(counts.get("train"))


def _yields(counts: Mapping[str, object]) -> dict[int, DatasetYield]:
    """From {"generated": {k: n}, "full_marks": {k: n}}."""
    generated, full_marks = _mapping(counts.get("generated")), _mapping(counts.get("full_marks"))
    found = {}
    for k, written in generated.items():
        had = _whole(full_marks.get(k))
        if k.isdecimal() and isinstance(written, int) and had is not None:
            found[int(k)] = DatasetYield(written, had)
    return dict(sorted(found.items()))


def _writers(value: object) -> tuple[str, ...]:
    """From names, or from [{"student", …}]."""
    listed = value if isinstance(value, list) else []
    names = [_text(_mapping(entry).get("student")) or _text(entry) for entry in listed]
    return tuple(dict.fromkeys(name for name in names if name))


def _sets(value: object) -> frozenset[frozenset[str]] | None:
    return frozenset(frozenset(_texts(skills)) for skills in value) if isinstance(value, list) else None


def _mapping(value: object) -> dict[str, object]:
    return {str(k): v for k, v in value.items()} if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _numbers(value: object) -> tuple[int, ...]:
    return tuple(sorted({v for v in value if isinstance(v, int)})) if isinstance(value, list | tuple) else ()
