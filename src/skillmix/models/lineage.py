"""Where a model comes from: its root, and everything that it, its adapters and the models before it were trained on.

`lineage_of` reads the `skillmix.json` of each folder that a spec names, goes on to the base that the file names, and so
on up to the root. Only these files count; the name of a student or a folder says nothing. `lineage_in` reads the same
files for a model that runs elsewhere, and `lineage_on` takes data sets that somebody names.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.hashing import short_id
from skillmix.models.checkpoints import named_folders
from skillmix.models.lineage_files import (
    LINEAGE_FILE,
    DatasetFile,
    ModelFile,
    extended_chain,
    read_dataset_file,
    read_model_file,
)
from skillmix.models.specs import ModelSpec, parse_spec, provider_of

SkillSets = frozenset[frozenset[str]]


class DatasetYield(NamedTuple):
    """How many conversations were written for one k, and how many of them had full marks."""

    written: int
    full_marks: int


class TrainedPartition(NamedTuple):
    """A partition that training data were made under."""

    catalog: str | None
    """The catalogue; None if unknown."""
    name: str


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """A data set, as its `skillmix.json` describes it."""

    name: str
    hash: str
    k: tuple[int, ...]
    partition: str | None
    writers: tuple[str, ...]
    combinations: frozenset[str]
    skill_sets: SkillSets | None
    """Sets of two skills or more; None if unknown."""
    rows: int | None
    """Conversations to train on."""
    yields: Mapping[int, DatasetYield]
    """By k."""
    catalog: str | None = None
    requests: str | None = None


@dataclass(frozen=True, slots=True)
class Lineage:
    """The training of a model, including that of its adapters and of the models before it."""

    base: str
    """The spec of the root: the model that was tuned first."""
    k: tuple[int, ...]
    """Numbers of skills in the training texts."""
    seed: int | None
    """The seed of the last training, as partition and steps are those of the last training."""
    partition: str | None
    datasets: tuple[str, ...]
    """Hashes of the data sets, in the order of training."""
    combinations: frozenset[str]
    """Ids of the combinations in the training texts."""
    skill_sets: SkillSets | None
    """Sets of skills in the training texts; None if unknown."""
    rows: int | None
    """Conversations in the data sets; None if unknown."""
    steps: int | None
    is_adapter: bool
    identity: str
    """A hash of all files of the lineage: another data set, recipe or seed makes another model."""
    recipe: str = ""
    """A hash of the recipes, without seeds: trainings that share it and their data sets repeat each other."""
    partitions: frozenset[TrainedPartition] = frozenset()
    """Those of all data sets, or of all trainings where a data set is not found."""
    requests: str | None = None
    """`one` if each request of the training texts names one skill, however many skills the texts show."""


class _TunedModel(NamedTuple):
    """The file of one folder, and the tuned models that its base consists of."""

    folder: Path
    file: ModelFile
    before: tuple["_TunedModel", ...]


def dataset_facts(name: str, file: DatasetFile) -> DatasetFacts:
    """The facts of a data set that is shown under a name."""
    sets, counts = file.skill_sets, file.counts
    both = sorted(map(int, counts.generated.keys() & counts.full_marks.keys()))
    return DatasetFacts(
        name=name,
        hash=file.hash,
        k=tuple(sorted(set(file.k))),
        partition=file.partition,
        writers=tuple(dict.fromkeys(file.writers or ())),
        combinations=frozenset(file.combinations),
        skill_sets=None if sets is None else frozenset(frozenset(skills) for skills in sets),
        rows=counts.train,
        yields={k: DatasetYield(counts.generated[str(k)], counts.full_marks[str(k)]) for k in both},
        catalog=file.catalog,
        requests=file.requests,
    )


def lineage_of(spec: str, datasets: Mapping[str, DatasetFacts] | None = None) -> Lineage | None:
    """The lineage of the model behind a spec; None for a model that was not tuned, or whose weights are elsewhere.

    `rows` and `skill_sets` come from the data sets: from `datasets`, by hash, or from where the models' files say that
    the data sets lie. Without `datasets` no data set is read, and both are None.
    """
    models = _tuned_models(parse_spec(spec))
    return _lineage_of_models(models, datasets) if models else None


def lineage_in(path: str, datasets: Mapping[str, DatasetFacts] | None = None) -> Lineage:
    """The lineage of a model from its folder or its `skillmix.json`, wherever its weights are."""
    folder = _folder_of(path)
    file = read_model_file(folder)
    if file is None:
        is_data = read_dataset_file(folder) is not None
        raise UserError(
            f"{path} is a data set and not a model." if is_data else f"{path} has no {LINEAGE_FILE} of a model.",
            hint="Name data sets with trained_on." if is_data else f"Give a model's folder or its {LINEAGE_FILE}.",
        )
    before = _tuned_models(parse_spec(file.base.spec), extended_chain((), folder))
    return _lineage_of_models((_TunedModel(folder, file, before),), datasets)


def lineage_on(paths: Sequence[str], *, base: str) -> Lineage:
    """The lineage of a model that was tuned from a base on data sets, given as folders or as their `skillmix.json`."""
    facts = [_named_dataset(path) for path in paths]
    return Lineage(
        base=base,
        k=tuple(sorted({k for data in facts for k in data.k})),
        seed=None,
        partition=facts[-1].partition,
        datasets=tuple(data.hash for data in facts),
        combinations=frozenset[str]().union(*(data.combinations for data in facts)),
        skill_sets=_united_sets(facts),
        rows=_total_rows(facts),
        steps=None,
        is_adapter=False,
        identity=short_id("declared", base, [data.hash for data in facts]),
        partitions=_partitions_of(facts),
        requests=_common_requests(facts),
    )


def continued_lineage(before: Lineage, after: Lineage) -> Lineage:
    """The lineage of a model that was trained as `before` says, and then as `after` says."""
    both = before.skill_sets is not None and after.skill_sets is not None
    return replace(
        after,
        base=before.base,
        k=tuple(sorted({*before.k, *after.k})),
        datasets=before.datasets + after.datasets,
        combinations=before.combinations | after.combinations,
        skill_sets=(before.skill_sets or frozenset()) | (after.skill_sets or frozenset()) if both else None,
        rows=None if before.rows is None or after.rows is None else before.rows + after.rows,
        identity=short_id("continued", before.identity, after.identity),
        partitions=before.partitions | after.partitions,
        requests=_common_requests([before, after]),
    )


def _lineage_of_models(models: Sequence[_TunedModel], datasets: Mapping[str, DatasetFacts] | None) -> Lineage:
    files = list({model.folder.resolve(): model.file for model in _oldest_first(models)}.values())
    newest = models[-1].file
    used = None if datasets is None else _datasets_of(files, datasets)
    return Lineage(
        base=files[0].base.spec,
        k=tuple(sorted({k for file in files for k in file.k})),
        seed=newest.seed,
        partition=newest.partition,
        datasets=tuple(entry.hash for file in files for entry in file.dataset),
        combinations=frozenset(combination for file in files for combination in file.combinations),
        skill_sets=_united_sets(used) if used else None,
        rows=_total_rows(used) if used else None,
        steps=newest.steps,
        is_adapter=newest.adapter,
        identity=short_id("lineage", *(model.file.document for model in _in_hash_order(models))),
        partitions=_partitions_of(used or files),
        requests=_common_requests(used) if used else None,
        recipe=short_id("recipe", *([file.recipe, file.adapter] for file in files)),
    )


def _folder_of(path: str) -> Path:
    return Path(path).parent if Path(path).name == LINEAGE_FILE else Path(path)


def _named_dataset(path: str) -> DatasetFacts:
    folder = _folder_of(path)
    file = read_dataset_file(folder)
    if file is None:
        is_model = read_model_file(folder) is not None
        raise UserError(
            f"{path} is a model and not a data set." if is_model else f"{path} has no {LINEAGE_FILE} of a data set.",
            hint="Name the file of a model with lineage."
            if is_model
            else f"Give the folder of a data set, which `skillmix dataset` wrote, or its {LINEAGE_FILE}.",
        )
    return dataset_facts(folder.name, file)


def _partitions_of(sources: Iterable[DatasetFacts | ModelFile]) -> frozenset[TrainedPartition]:
    return frozenset(TrainedPartition(s.catalog, s.partition) for s in sources if s.partition is not None)


def trained_skill_sets(lineage: Lineage, known: Mapping[str, Combination]) -> SkillSets | None:
    """The sets of skills that a model was trained on; None if neither its data sets nor `known` combinations tell."""
    if lineage.skill_sets is not None:
        return lineage.skill_sets
    if not lineage.combinations or not lineage.combinations <= known.keys():
        return None
    return frozenset(frozenset(known[c].skills) for c in lineage.combinations)


def other_partitions(lineage: Lineage, partition: str, catalogs: Container[str]) -> frozenset[str]:
    """The partitions other than this one that training data were made under, if their catalogue is one of these."""
    here = [p for p in lineage.partitions if p.catalog is None or p.catalog in catalogs]
    return frozenset(p.name for p in here if p.name != partition)


def short_name(k: Sequence[int]) -> str:
    """Training data as the paper names it.

    >>> short_name([1, 2, 3]), short_name([])
    ('D(1,2,3)', 'base')
    """
    return f"D({','.join(map(str, k))})" if k else "base"


def _tuned_models(spec: ModelSpec, chain: tuple[Path, ...] = ()) -> tuple[_TunedModel, ...]:
    """The tuned models among the folders that a spec names; `chain` holds the models that led to the spec."""
    if not provider_of(spec).has_checkpoint:
        return ()
    models = []
    for folder in named_folders(spec):
        file = read_model_file(folder)
        if file is not None:
            before = _tuned_models(parse_spec(file.base.spec), extended_chain(chain, folder))
            models.append(_TunedModel(folder, file, before))
    return tuple(models)


def _oldest_first(models: Iterable[_TunedModel]) -> Iterator[_TunedModel]:
    """All models in the order of their training; a model that two others name comes twice."""
    for model in models:
        yield from _oldest_first(model.before)
        yield model


def _in_hash_order(models: Iterable[_TunedModel]) -> Iterator[_TunedModel]:
    """All models, each followed by those before it; journals hold identities, so this order must not change."""
    for model in models:
        yield model
        yield from _in_hash_order(model.before)


def _datasets_of(files: Iterable[ModelFile], known: Mapping[str, DatasetFacts]) -> list[DatasetFacts] | None:
    """The data sets that models were trained on; None unless every model names its data sets and all are found.

    A data set that still lies where a model's file says, with the hash that it names, counts before a known one.
    """
    used: list[DatasetFacts] = []
    for file in files:
        if not file.dataset:
            return None
        for entry in file.dataset:
            folder = Path(entry.path) if entry.path else None
            data = read_dataset_file(folder) if folder else None
            if folder and data and data.hash == entry.hash:
                used.append(dataset_facts(folder.name, data))
            elif entry.hash in known:
                used.append(known[entry.hash])
            else:
                return None
    return used


def _united_sets(datasets: Sequence[DatasetFacts]) -> SkillSets | None:
    sets = [facts.skill_sets for facts in datasets if facts.skill_sets is not None]
    return SkillSets().union(*sets) if len(sets) == len(datasets) else None


def _common_requests(sources: Iterable[DatasetFacts | ModelFile | Lineage]) -> str | None:
    """`one` if each request of every source names one skill."""
    kinds = {source.requests for source in sources}
    return kinds.pop() if len(kinds) == 1 else None


def _total_rows(datasets: Sequence[DatasetFacts]) -> int | None:
    rows = [facts.rows for facts in datasets if facts.rows is not None]
    return sum(rows) if len(rows) == len(datasets) else None
