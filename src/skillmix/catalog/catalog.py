"""Skills, topics, and their partitions into a train and a held-out side."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, get_args

from skillmix.catalog.names import before_parenthesis, fold_name
from skillmix.catalog.own_code import OwnCode
from skillmix.errors import UserError
from skillmix.hashing import ranked, short_id
from skillmix.render.nearest import name_hint

RESERVED_NAMES: Final = ("topic", "sense", "length")
"""Names of the three criteria besides the skills, as every output spells them."""


WovenRule = Literal["column", "required"]
"""What `woven` decides: a column beside full marks, or the points of skills themselves."""
Setting = Literal["train", "held-out", "all"]
SETTINGS: Final[tuple[Setting, ...]] = get_args(Setting)


@dataclass(frozen=True, slots=True)
class Skill:
    """One language skill, with the definition and the example that prompts show."""

    name: str
    category: str
    definition: str
    example: str


@dataclass(frozen=True, slots=True)
class EntailedPair:
    """A measured pair of skills: texts that show the first mostly show the second too."""

    skill: str
    brings: str
    texts: int
    """Texts that show the first skill, without the second having been requested."""
    with_both: int
    """Those of them that show the second skill too."""
    source: str
    """The kind of texts: natural prose, or texts of models."""


@dataclass(frozen=True, slots=True)
class Side:
    """The skills and topics on one side of a partition."""

    skills: tuple[str, ...]
    topics: tuple[str, ...]
    impossible: frozenset[frozenset[str]] = frozenset()
    """Groups of skills that a draw does not combine."""
    may_be_plain: bool = False
    """Whether a combination may have no skills: a topic of a catalog of probes is a request by itself."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A split into a train side and a held-out side; a skill may be on neither."""

    name: str
    train: Side
    held_out: Side

    def side(self, setting: Setting) -> Side:
        """The side that a setting draws from; `all` joins both sides."""
        if setting == "train":
            return self.train
        if setting == "held-out":
            return self.held_out
        return Side(skills=self.train.skills + self.held_out.skills, topics=self.train.topics + self.held_out.topics)


@dataclass(frozen=True)
class Catalog:
    """A named set of skills, topics and partitions; every instance is valid."""

    name: str
    skills: tuple[Skill, ...]
    topics: tuple[str, ...]
    partitions: tuple[Partition, ...]
    default_partition: str
    exclude: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    vocabulary: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)
    """For the topic checker, by topic: words of which one is enough, and words of which two are needed."""
    impossible: frozenset[frozenset[str]] = frozenset()
    """Groups of skills that no text can show together; never drawn."""
    entailed: tuple[EntailedPair, ...] = ()
    """Pairs of skills, never drawn together: texts that show the first mostly show the second too."""
    woven: WovenRule = "column"
    templates: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The clauses of the template student, by skill and form."""
    controls: Mapping[str, str] = field(default_factory=dict)
    """For a catalog of probes, by topic that is a control: the probe whose harmless twin it is."""
    code: OwnCode | None = None
    """The `checkers.py` in the folder of the catalog; None if there is none."""

    @cached_property
    def not_combined(self) -> frozenset[frozenset[str]]:
        """Groups of skills that no draw combines: impossible ones, and pairs in which one skill entails the other."""
        return self.impossible | {frozenset((pair.skill, pair.brings)) for pair in self.entailed}

    def content_hash(self) -> str:
        """A hash of everything that reaches a prompt or a draw."""
        skills = [[s.name, s.category, s.definition, s.example] for s in self.skills]
        sides = [[p.name, [[s.skills, s.topics] for s in (p.train, p.held_out)]] for p in self.partitions]
        parts: list[object] = [skills, self.topics, sides, self.default_partition, dict(self.exclude)]
        if self.not_combined:
            parts.append(sorted(sorted(pair) for pair in self.not_combined))
        if self.woven != "column":
            parts.append(["woven", self.woven])
        if self.controls:
            parts.append(["controls", dict(self.controls)])
        return short_id("catalog", *parts)

    @cached_property
    def _by_name(self) -> dict[str, Skill]:
        return {fold_name(skill.name): skill for skill in self.skills}

    def skill(self, name: str) -> Skill:
        """The skill with this name, or the only skill with this short form."""
        folded = fold_name(name)
        exact = self._by_name.get(folded)
        if exact is not None:
            return exact
        matches = [s for s in self.skills if fold_name(before_parenthesis(s.name)) == folded]
        if len(matches) == 1:
            return matches[0]
        raise UserError(
            f"No skill named {name!r} in catalogue {self.name!r}."
            if not matches
            else f"{name!r} is the short form of {len(matches)} skills.",
            hint=name_hint(name, [s.name for s in (matches or self.skills)], otherwise=self._lists_them),
        )

    @property
    def _lists_them(self) -> str:
        return f"`skillmix catalog {self.name}` lists them."

    def topic(self, name: str) -> str:
        """The topic with this name, in the catalog's spelling."""
        for topic in self.topics:
            if fold_name(topic) == fold_name(name):
                return topic
        raise UserError(
            f"No topic named {name!r} in catalogue {self.name!r}.",
            hint=name_hint(name, self.topics, otherwise=self._lists_them),
        )

    def partition(self, name: str | None = None) -> Partition:
        """A partition by name; `random-skills:SEED` and `random-categories:SEED` are computed from the default one."""
        wanted = name or self.default_partition
        for partition in self.partitions:
            if partition.name == wanted:
                return partition
        kind, _, seed = wanted.partition(":")
        if kind in _RANDOM_PARTITIONS and seed.isdecimal() and len(seed) < 19:
            return _RANDOM_PARTITIONS[kind](self, int(seed))
        known = [p.name for p in self.partitions] + [f"{kind}:SEED" for kind in _RANDOM_PARTITIONS]
        raise UserError(
            f"No partition named {wanted!r} in catalogue {self.name!r}.",
            hint=name_hint(wanted, known, otherwise=f"Known: {', '.join(known)}."),
        )

    def excluded(self, names: Iterable[str]) -> frozenset[str]:
        """Resolve exclude lists and single skills to skill names."""
        skills: set[str] = set()
        for name in names:
            skills |= set(self.exclude[name]) if name in self.exclude else {self.skill(name).name}
        return frozenset(skills)

    def pool(self, setting: Setting, *, partition: str | None = None, exclude: Iterable[str] = ()) -> Side:
        """The skills and topics that a setting draws from, less the excluded skills."""
        side = self.partition(partition).side(setting)
        excluded = self.excluded(exclude)
        skills = tuple(s for s in side.skills if s not in excluded)
        return Side(skills, side.topics, impossible=self.not_combined, may_be_plain=bool(self.controls))

    def pools(self, *, partition: str | None = None, exclude: Sequence[str] = ()) -> list[tuple[Setting, Side]]:
        """The pool of every setting."""
        return [(setting, self.pool(setting, partition=partition, exclude=exclude)) for setting in SETTINGS]


def _random_skills(catalog: Catalog, seed: int) -> Partition:
    """Shuffle the skills between two sides of the default partition's sizes; topics stay where they are."""
    base = catalog.partition()
    names = ranked([*base.train.skills, *base.held_out.skills], "random-skills", seed)
    chosen = set(names[: len(base.train.skills)])
    return _split(catalog, f"random-skills:{seed}", base, chosen)


def _random_categories(catalog: Catalog, seed: int) -> Partition:
    """Shuffle whole categories; the train side takes categories while they bring it closer to half of the skills."""
    base = catalog.partition()
    on_a_side = {*base.train.skills, *base.held_out.skills}
    members: dict[str, set[str]] = {}
    for skill in catalog.skills:
        if skill.name in on_a_side:
            members.setdefault(skill.category, set()).add(skill.name)
    chosen: set[str] = set()
    half = len(on_a_side) / 2
    for category in ranked(list(members), "random-categories", seed):
        grown = chosen | members[category]
        if abs(len(grown) - half) < abs(len(chosen) - half):
            chosen = grown
    return _split(catalog, f"random-categories:{seed}", base, chosen)


def _split(catalog: Catalog, name: str, base: Partition, train: set[str]) -> Partition:
    on_a_side = {*base.train.skills, *base.held_out.skills}
    names = [s.name for s in catalog.skills if s.name in on_a_side]
    return Partition(
        name=name,
        train=Side(skills=tuple(n for n in names if n in train), topics=base.train.topics),
        held_out=Side(skills=tuple(n for n in names if n not in train), topics=base.held_out.topics),
    )


_RANDOM_PARTITIONS: Final = {"random-skills": _random_skills, "random-categories": _random_categories}
