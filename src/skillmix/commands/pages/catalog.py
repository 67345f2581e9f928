"""The plain form of `skillmix catalog`."""

from collections.abc import Sequence

from skillmix.catalog.catalog import Catalog
from skillmix.render.markdown import markdown_table


def catalog_page(catalog: Catalog, *, shipped: Sequence[str]) -> str:
    """Skills by category, the partitions' sizes, the topics."""
    categories = len({skill.category for skill in catalog.skills})
    skills = [[s.category, s.name, s.definition] for s in sorted(catalog.skills, key=lambda s: s.category)]
    partitions = [
        [
            p.name,
            *(str(len(x)) for x in (p.train.skills, p.held_out.skills, p.train.topics, p.held_out.topics)),
        ]
        for p in catalog.partitions
    ]
    header = ["partition", "train skills", "held-out skills", "train topics", "held-out topics"]
    return "\n\n".join(
        [
            f"{catalog.name}: {len(catalog.skills)} skills in {categories} categories, {len(catalog.topics)} topics",
            markdown_table(["category", "skill", "definition"], skills),
            markdown_table(header, partitions, right=frozenset({1, 2, 3, 4})),
            f"Default partition: {catalog.default_partition}. Exclude lists: {', '.join(catalog.exclude) or 'none'}.",
            f"Topics: {'; '.join(catalog.topics)}",
            f"Shipped catalogues: {', '.join(shipped)}",
        ]
    )
