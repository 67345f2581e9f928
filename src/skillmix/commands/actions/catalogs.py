"""`skillmix catalog` and `skillmix combinations`: what there is to draw from, and what is drawn."""

from dataclasses import dataclass

from skillmix.catalog.catalog import Catalog, Setting, Side
from skillmix.catalog.combinations import Combination, Draw, Purpose, draw_combinations, draw_ladder
from skillmix.catalog.files import load_catalog, shipped_catalogs
from skillmix.checkers.registry import checker_of


@dataclass(frozen=True, slots=True)
class CatalogView:
    """A catalogue, and the names of the shipped ones."""

    catalog: Catalog
    shipped: list[str]

    def as_json(self) -> dict[str, object]:
        """The documented form of `catalog --json`."""
        return {
            "skills": [
                {
                    "name": skill.name,
                    "category": skill.category,
                    "definition": skill.definition,
                    "example": skill.example,
                    "checkable": checker_of(skill.name) is not None,
                }
                for skill in self.catalog.skills
            ],
            "topics": list(self.catalog.topics),
            "partitions": {
                partition.name: {"train": _side(partition.train), "held-out": _side(partition.held_out)}
                for partition in self.catalog.partitions
            },
        }


def show_catalog(name: str) -> CatalogView:
    """Load and validate a catalogue."""
    return CatalogView(load_catalog(name), shipped_catalogs())


@dataclass(frozen=True, slots=True)
class CombinationsWanted:
    """What `skillmix combinations` was asked for."""

    catalog: str
    setting: Setting
    k: int
    count: int
    seed: int
    partition: str | None = None
    exclude: tuple[str, ...] = ()
    purpose: Purpose = "evaluation"
    ladder: bool = False


def draw(wanted: CombinationsWanted) -> list[Combination]:
    """Draw combinations from a catalogue."""
    catalog = load_catalog(wanted.catalog)
    pool = catalog.pool(wanted.setting, partition=wanted.partition, exclude=wanted.exclude)
    spec = Draw(side=pool, setting=wanted.setting, k=wanted.k, seed=wanted.seed, purpose=wanted.purpose)
    return draw_ladder(spec, wanted.count) if wanted.ladder else draw_combinations(spec, wanted.count)


def combination_json(combination: Combination) -> dict[str, object]:
    """The documented form of an entry of `combinations --json`."""
    return {
        "id": combination.id,
        "k": combination.k,
        "skills": list(combination.skills),
        "topic": combination.topic,
    }


def _side(side: Side) -> dict[str, list[str]]:
    return {"skills": list(side.skills), "topics": list(side.topics)}
