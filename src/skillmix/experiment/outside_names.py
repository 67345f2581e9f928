"""Check the names in an experiment that lead outside its file: a catalog, a partition, excluded skills and prompts."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from skillmix.catalog.catalog import Catalog, Partition
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.experiment.step_base import DrawingStep
from skillmix.experiment.steps import EvaluateStep, GenerateStep
from skillmix.prompts.files import load_prompts
from skillmix.render.nearest import did_you_mean


@dataclass(frozen=True, slots=True)
class PlaceNames:
    """What the experiment or one of its steps draws from."""

    at: str
    """Location of the step, with a dot at its end; empty for the experiment."""
    catalog: str
    partition: str | None
    own: Collection[str]
    """Those of `catalog` and `partition` that stand at this location."""
    exclude: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    """Groups of the partition, by location."""
    pool: str | None = None
    without_skills: Sequence[str] = ()
    """Locations of k = 0, which only catalogs of probes have."""

    def faults(self) -> Iterator[str]:
        """Every name that leads nowhere; those of the experiment are not reported again for its steps."""
        catalogs: list[Catalog] = []
        partitions: list[Partition] = []
        faults = list(_fault(f"{self.at}catalog", lambda: catalogs.append(load_catalog(self.catalog))))
        yield from faults if "catalog" in self.own else ()
        for catalog in catalogs:
            yield from (f"{at}: 0 is below 1" for at in self.without_skills if not catalog.controls)
            for name in self.exclude:
                yield from _fault(f"{self.at}exclude", partial(catalog.excluded, [name]))
            faults = list(
                _fault(f"{self.at}partition", lambda: partitions.append(catalogs[0].partition(self.partition)))
            )
            yield from faults if "partition" in self.own else ()
        for partition in partitions:
            for at, setting in self.settings.items():
                yield from _fault(f"{self.at}{at}", partial(partition.side, setting))
            if self.pool is not None and self.pool not in partition.groups:
                known = ", ".join(partition.groups) or "no further groups"
                question = did_you_mean(self.pool, partition.groups)
                yield f"{self.at}pool: {partition.name} has {known}, and not {self.pool!r}. {question}".rstrip(". ")


def names_of_step(step: DrawingStep, catalog: str, partition: str | None) -> PlaceNames:
    """What a step draws from: its own catalog and partition, or else those of the experiment."""
    draws = step if isinstance(step, EvaluateStep | GenerateStep) else None
    return PlaceNames(
        at=f"steps.{step.name}.",
        catalog=step.catalog or catalog,
        partition=step.partition or (None if step.catalog else partition),
        own=[key for key in ("catalog", "partition") if getattr(step, key) is not None],
        exclude=getattr(step, "exclude", ()),
        settings={f"settings.{place}": name for place, name in enumerate(draws.settings, start=1)} if draws else {},
        pool=getattr(step, "pool", None),
        without_skills=[f"steps.{step.name}.k.{n}" for n, k in enumerate(draws.k, start=1) if k == 0] if draws else [],
    )


@dataclass(frozen=True, slots=True)
class OutsideNames:
    """The names of an experiment."""

    places: Sequence[PlaceNames]
    """Of the experiment, then of its steps."""
    prompts: Mapping[str, str]
    """Prompt sets by location."""

    def faults(self) -> Iterator[str]:
        """Every name that leads nowhere, with its location."""
        found = [fault for place in self.places for fault in place.faults()]
        yield from found
        names = dict.fromkeys(place.catalog for place in self.places)
        if len(names) > 1 and not found:
            yield from _fault("catalog", lambda: load_catalog(*names))
        for at, name in self.prompts.items():
            yield from _fault(at, partial(load_prompts, name))


def _fault(at: str, use: Callable[[], object]) -> Iterator[str]:
    """The fault of a name, if using it fails."""
    try:
        use()
    except UserError as error:
        yield f"{at}: {error.message} {error.hint or ''}".rstrip()
    except (OSError, ValueError) as error:  # a name too long for a path, or one with a null character
        yield f"{at}: the name cannot be a folder: {getattr(error, 'strerror', None) or error}"
