"""The lineage of a model: its root, and all training data of the model, its adapters and their bases.

`lineage_of` reads the `skillmix.json` of each folder in a spec and follows the bases up to the root; the names of
students and folders have no effect. `lineage_in` reads the same files for a model that runs elsewhere, and `lineage_on`
derives a lineage from data sets that the user lists.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

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


class TrainedPartition(NamedTuple):
    """A partition from which training data was drawn, and the name of its catalog if known."""

    catalog: str | None
    name: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """All training of a model, its adapters and their bases; seed, partition and steps describe the last run."""

    base: str  # the spec of the root, the first model that was tuned
    k: tuple[int, ...]  # the numbers of skills in the training texts
    seed: int | None
    partition: str | None
    datasets: tuple[str, ...]  # the hashes of the data sets, in training order
    combinations: frozenset[str]  # the ids of the combinations in the training texts
    skill_sets: SkillSets | None  # the sets of skills in the training texts; None if unknown
    rows: int | None  # the number of training conversations; None if unknown
    steps: int | None
    is_adapter: bool
    identity: str  # a hash of all files in the lineage, which changes with any data set, recipe or seed
    recipe: str = ""  # a hash of the recipes without seeds; models with equal recipes and data sets are replicates
    partitions: frozenset[TrainedPartition] = frozenset()
    """The partitions of all data sets, or of the trained models if a data set is missing."""
    requests: str | None = None  # `one` if every training prompt requests one skill, even if its text shows several


class _TunedModel(NamedTuple):
    """A tuned model's folder and lineage file, and the tuned models that make up its base."""

    folder: Path
    file: ModelFile
    before: tuple["_TunedModel", ...]


def lineage_of(spec: str, datasets: Mapping[str, DatasetFile] | None = None) -> Lineage | None:
    """Return the lineage of the model in a spec; None for a model that was not tuned or whose weights are elsewhere.

    `rows` and `skill_sets` are read from the data sets, which are found at the paths in the models' files or by hash in
    `datasets`. If `datasets` is None, no data set is read, and `rows` and `skill_sets` are None.
    """
    models = _tuned_models(parse_spec(spec))
    return _lineage_of_models(models, datasets) if models else None


def lineage_in(path: str, datasets: Mapping[str, DatasetFile] | None = None) -> Lineage:
    """Return the lineage of a model from its folder or its `skillmix.json`; the weights may be elsewhere."""
    folder = _folder_of(path)
    file = read_model_file(folder)
    if file is None and read_dataset_file(folder) is not None:
        raise UserError(f"{path} is a data set, not a model.", hint="List data sets under trained_on.")
    if file is None:
        raise UserError(
            f"There is no {LINEAGE_FILE} of a model in {path}.",
            hint="Give the folder of a model that skillmix trained, or its skillmix.json.",
        )
    before = _tuned_models(parse_spec(file.base.spec), extended_chain((), folder))
    return _lineage_of_models((_TunedModel(folder, file, before),), datasets)


def lineage_on(paths: Sequence[str], *, base: str) -> Lineage:
    """Return the lineage of a model tuned on data sets, given as folders or paths of their `skillmix.json`."""
    facts: list[DatasetFile] = []
    for path in paths:
        folder = _folder_of(path)
        file = read_dataset_file(folder)
        if file is None and read_model_file(folder) is not None:
            raise UserError(f"{path} is a model, not a data set.", hint="Name a model under lineage.")
        if file is None:
            raise UserError(
                f"There is no {LINEAGE_FILE} of a data set in {path}.",
                hint="Give a folder that `skillmix dataset` wrote, or its skillmix.json.",
            )
        facts.append(file)
    return Lineage(
        base=base,
        k=tuple(sorted({k for data in facts for k in data.k})),
        seed=None,
        partition=facts[-1].partition,
        datasets=tuple(data.hash for data in facts),
        combinations=frozenset[str]().union(*(data.combinations for data in facts)),
        steps=None,
        is_adapter=False,
        identity=short_id("declared", base, [data.hash for data in facts]),
        partitions=_partitions_of(facts),
        **_united(facts),
    )


def continued_lineage(before: Lineage, after: Lineage) -> Lineage:
    """Join the lineages of two consecutive training runs of a model."""
    return replace(
        after,
        base=before.base,
        k=tuple(sorted({*before.k, *after.k})),
        datasets=before.datasets + after.datasets,
        combinations=before.combinations | after.combinations,
        identity=short_id("continued", before.identity, after.identity),
        partitions=before.partitions | after.partitions,
        **_united([before, after]),
    )


def _lineage_of_models(models: Sequence[_TunedModel], datasets: Mapping[str, DatasetFile] | None) -> Lineage:
    files = list({model.folder.resolve(): model.file for model in _flattened(models, bases_first=True)}.values())
    newest = models[-1].file
    used = None if datasets is None else _datasets_of(files, datasets)
    # Journals contain identities, so the order of the files in this hash must not change.
    identity = short_id("lineage", *(model.file.document for model in _flattened(models, bases_first=False)))
    return Lineage(
        base=files[0].base.spec,
        k=tuple(sorted({k for file in files for k in file.k})),
        seed=newest.seed,
        partition=newest.partition,
        datasets=tuple(entry.hash for file in files for entry in file.dataset),
        combinations=frozenset(combination for file in files for combination in file.combinations),
        steps=newest.steps,
        is_adapter=newest.adapter,
        identity=identity,
        partitions=_partitions_of(used or files),
        recipe=short_id("recipe", *([file.recipe, file.adapter] for file in files)),
        **_united(used or []),
    )


def _folder_of(path: str) -> Path:
    return Path(path).parent if Path(path).name == LINEAGE_FILE else Path(path)


def _partitions_of(sources: Iterable[DatasetFile | ModelFile]) -> frozenset[TrainedPartition]:
    return frozenset(TrainedPartition(s.catalog, s.partition) for s in sources if s.partition is not None)


def trained_skill_sets(lineage: Lineage, known: Mapping[str, Combination]) -> SkillSets | None:
    """Return the sets of skills in a model's training texts; None if they are not fully known."""
    if lineage.skill_sets is not None:
        return lineage.skill_sets
    if not lineage.combinations or not lineage.combinations <= known.keys():
        return None
    return frozenset(frozenset(known[c].skills) for c in lineage.combinations)


def other_partitions(lineage: Lineage, partition: str, catalogs: Container[str]) -> frozenset[str]:
    """Return a model's training partitions other than `partition` whose catalog is in `catalogs` or unknown."""
    here = [p for p in lineage.partitions if p.catalog is None or p.catalog in catalogs]
    return frozenset(p.name for p in here if p.name != partition)


def short_name(k: Sequence[int]) -> str:
    """Return the paper's name for training data with these numbers of skills.

    >>> short_name([1, 2, 3]), short_name([])
    ('D(1,2,3)', 'base')
    """
    return f"D({','.join(map(str, k))})" if k else "base"


def _tuned_models(spec: ModelSpec, chain: tuple[Path, ...] = ()) -> tuple[_TunedModel, ...]:
    """Return the tuned models in a spec; `chain` lists the folders whose bases led to this spec."""
    if not provider_of(spec).has_checkpoint:
        return ()
    models = []
    for folder in named_folders(spec):
        file = read_model_file(folder)
        if file is not None:
            before = _tuned_models(parse_spec(file.base.spec), extended_chain(chain, folder))
            models.append(_TunedModel(folder, file, before))
    return tuple(models)


def _flattened(models: Iterable[_TunedModel], *, bases_first: bool) -> Iterator[_TunedModel]:
    """Yield each model and its bases; a shared base is yielded repeatedly."""
    for model in models:
        bases = _flattened(model.before, bases_first=bases_first)
        yield from (*bases, model) if bases_first else (model, *bases)


def _datasets_of(files: Iterable[ModelFile], known: Mapping[str, DatasetFile]) -> list[DatasetFile] | None:
    """Return the training data sets of models, preferably from the paths in their files; None if any is missing."""
    used: list[DatasetFile] = []
    for file in files:
        if not file.dataset:
            return None
        for entry in file.dataset:
            found = read_dataset_file(Path(entry.path)) if entry.path else None
            data = found if found and found.hash == entry.hash else known.get(entry.hash)
            if data is None:
                return None
            used.append(data)
    return used


def _united(sources: Sequence[DatasetFile | Lineage]) -> dict[str, Any]:
    """Combine the skill sets, row counts and request kinds of all sources; a value is None if a source lacks it."""
    sets = [None if source.skill_sets is None else map(frozenset, source.skill_sets) for source in sources]
    rows = [source.rows for source in sources]
    requests = {source.requests for source in sources}
    return {
        "skill_sets": SkillSets().union(*filter(None, sets)) if sets and None not in sets else None,
        "rows": sum(filter(None, rows)) if rows and None not in rows else None,
        "requests": requests.pop() if len(requests) == 1 else None,
    }
