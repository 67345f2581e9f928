"""Check the names in an experiment that lead outside its file: a catalog, a partition, excluded skills and prompts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from skillmix.catalog.catalog import Catalog, Partition
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.experiment.step_base import DrawingStep
from skillmix.prompts.files import load_prompts
from skillmix.render import did_you_mean


@dataclass(frozen=True, slots=True)
class OutsideNames:
    """The names, by their locations in the experiment where there may be several."""

    catalog: str
    partition: str | None
    exclude: Sequence[str]
    prompts: Mapping[str, str]
    steps: Sequence[DrawingStep] = ()

    def faults(self) -> Iterator[str]:
        """Every name that leads nowhere, with its location."""
        places = [self._place_faults("", self, self.exclude)]
        places += [self._place_faults(f"steps.{step.name}.", step, getattr(step, "exclude", ())) for step in self.steps]
        found = [fault for faults in places for fault in faults]
        yield from found
        others = dict.fromkeys(step.catalog for step in self.steps if step.catalog)
        if others and not found:
            yield from _fault("catalog", lambda: load_catalog(self.catalog, *others))
        for at, name in self.prompts.items():
            yield from _fault(at, partial(load_prompts, name))

    def _place_faults(self, at: str, place: "DrawingStep | OutsideNames", exclude: Sequence[str]) -> Iterator[str]:
        """Names of a catalog and its partition, those of the experiment unless the place has its own."""
        name, partition = place.catalog or self.catalog, place.partition or (None if place.catalog else self.partition)
        catalogs: list[Catalog] = []
        partitions: list[Partition] = []
        faults = list(_fault(f"{at}catalog", lambda: catalogs.append(load_catalog(name))))
        yield from faults if place.catalog else ()
        for catalog in catalogs:
            for number, k in enumerate(getattr(place, "k", ()), start=1):
                if k == 0 and not catalog.controls:
                    yield f"{at}k.{number}: 0 is below 1"
            for skill in exclude:
                yield from _fault(f"{at}exclude", partial(catalog.excluded, [skill]))
            faults = list(_fault(f"{at}partition", lambda: partitions.append(catalogs[0].partition(partition))))
            yield from faults if place.partition or place.catalog else ()
        for split in partitions:
            for number, setting in enumerate(getattr(place, "settings", ()), start=1):
                yield from _fault(f"{at}settings.{number}", partial(split.side, setting))
            pool = getattr(place, "pool", None)
            if pool is not None and pool not in split.groups:
                known = ", ".join(split.groups) or "no further groups"
                question = did_you_mean(pool, split.groups)
                yield f"{at}pool: {split.name} has {known}, and not {pool!r}. {question}".rstrip(". ")


def _fault(at: str, use: Callable[[], object]) -> Iterator[str]:
    """The fault of a name, if using it fails."""
    try:
        use()
    except UserError as error:
        yield f"{at}: {error.message} {error.hint or ''}".rstrip()
    except (OSError, ValueError) as error:  # a name too long for a path, or one with a null character
        yield f"{at}: the name cannot be a folder: {getattr(error, 'strerror', None) or error}"
