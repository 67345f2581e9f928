"""Skills, topics, and their partitions into groups: a train side, a held-out side, and further groups.

In a nested partition, training never combines some figures and some words with other skills. Of the remaining cells
(pairs of a figure and a word), it combines half. A single student thus shows what transfers to new cells, new words and
new figures.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import combinations
from math import ceil
from typing import Final, Literal

from skillmix.catalog.grammar import Grammar
from skillmix.catalog.own_code import OwnCode
from skillmix.errors import UserError, errors_of, refuse
from skillmix.hashing import digest, ranked, short_id
from skillmix.render import name_hint

APOSTROPHES = re.compile(r"['’‘ʼ′`´]")
_ACCENTS = re.compile(r"[\u0300-\u036f]")
INVISIBLE = re.compile(r"[\u200b-\u200f\u2060\ufeff\u00ad]")
_NOT_A_WORD = re.compile(r"[\W_]+")


@lru_cache(maxsize=1 << 13)
def fold_name(text: str) -> str:
    """Reduce a name to lowercase words separated by single blanks, for comparisons.

    >>> fold_name("**Self-serving Bias**"), fold_name("cliché"), fold_name("one’s (own)")
    ('self serving bias', 'cliche', 'ones own')
    """
    if not text.isascii():
        # Drop only Latin accents, because combining marks distinguish letters in other scripts.
        text = _ACCENTS.sub("", unicodedata.normalize("NFKD", INVISIBLE.sub("", text)))
        text = unicodedata.normalize("NFKC", text)
    return _NOT_A_WORD.sub(" ", APOSTROPHES.sub("", text.casefold())).strip()


@lru_cache(maxsize=1 << 12)
def before_parenthesis(name: str) -> str:
    """Return the part of a skill's name before a parenthesis, which is its short form.

    >>> before_parenthesis("accident (fallacy)")
    'accident'
    """
    return name.partition("(")[0].strip() or name


PIECE: Final = re.compile(r"(?:\{word\}|\{a word\}|\*|\.\.\.|[,?!:;\"]|[a-z']+(?:\|[a-z']+)*)")
PATTERN: Final = rf"^{PIECE.pattern}(?: {PIECE.pattern})*$"
"""Matches a pattern of a figure: words, punctuation and slots, separated by single blanks for fast searches."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure, its skills by word, and the patterns by which `checkers/registry.py` finds them in a text."""

    name: str
    patterns: tuple[str, ...]
    skills: tuple[tuple[str, str], ...]
    """Pairs of a word and the skill that it forms with the figure."""


_remembered: Final[dict[str, tuple[Figure, ...]]] = {}


def remember_figures(catalog: str, figures: tuple[Figure, ...]) -> None:
    """Make the figures of a loaded catalog available to `checker_of`."""
    if figures:
        _remembered[catalog] = figures


def remembered_figures() -> tuple[Figure, ...]:
    """Return the figures of the catalogs loaded in this process."""
    return tuple(figure for figures in _remembered.values() for figure in figures)


GROUPS_OF_CELLS: Final = ("train", "random-cells", "new-words", "new-figures", "both-new")
_Cell = tuple[str, str]


def cells_by_group(parts: Mapping[str, _Cell], seed: int) -> dict[str, tuple[str, ...]]:
    """Divide skills into groups by figure and word, pseudo-randomly by a hash of the seed and the names.

    Figures with the same words belong to one kind. About a third of the figures and a quarter of the words of each kind
    are new; all other figures and words have train cells.
    """
    words_of: dict[str, set[str]] = {}
    for figure, word in parts.values():
        words_of.setdefault(figure, set()).add(word)
    kinds: dict[frozenset[str], list[str]] = {}
    for figure in sorted(words_of):
        kinds.setdefault(frozenset(words_of[figure]), []).append(figure)
    new_figures: set[str] = set()
    wanted = sum(map(len, kinds.values())) // 3
    for figure in ranked([figure for figures in kinds.values() for figure in figures], "nested figures", seed):
        kind = next(figures for figures in kinds.values() if figure in figures)
        most = min(ceil(len(kind) / 3), len(kind) - 2)
        if len(new_figures) < wanted and len(new_figures.intersection(kind)) < most:
            new_figures.add(figure)
    by_rank = {words: ranked(sorted(words), "nested words", seed) for words in kinds}
    new_words = {word for words in by_rank.values() for word in words[: len(words) // 4]}
    train: set[_Cell] = set()
    for words, figures in kinds.items():
        known = [figure for figure in ranked(figures, "nested rows", seed) if figure not in new_figures]
        train |= _half_of_cells(known, [word for word in by_rank[words] if word not in new_words], seed)
    groups: dict[str, list[str]] = {name: [] for name in GROUPS_OF_CELLS}
    for skill, cell in parts.items():
        composed = "train" if cell in train else "random-cells"
        with_known_figure = "new-words" if cell[1] in new_words else composed
        with_new_figure = "both-new" if cell[1] in new_words else "new-figures"
        groups[with_new_figure if cell[0] in new_figures else with_known_figure].append(skill)
    figures_left = {cell[0] for cell in parts.values()} - new_figures
    words_left = {cell[1] for cell in parts.values()} - new_words
    if not all(groups.values()) or {f for f, _ in train} != figures_left or {w for _, w in train} != words_left:
        hint = "It needs three or more figures that share four or more words, and every figure needs two or more words."
        raise UserError(f"The figures and words of this catalog do not allow the partition nested:{seed}.", hint=hint)
    return {name: tuple(skills) for name, skills in groups.items()}


def _half_of_cells(figures: list[str], words: list[str], seed: int) -> set[_Cell]:
    """Choose half of the cells in a chessboard pattern, then swap cells without changing row or column counts."""
    chosen = {(f, w): (row + column) % 2 == 0 for row, f in enumerate(figures) for column, w in enumerate(words)}
    for one, other in combinations(figures, 2):
        for first, second in combinations(words, 2):
            square = [(one, first), (other, second), (one, second), (other, first)]
            is_exchangeable = [chosen[cell] for cell in square] in (
                [True, True, False, False],
                [False, False, True, True],
            )
            if is_exchangeable and digest("nested exchange", seed, one, other, first, second)[0] % 2:
                chosen |= {cell: not chosen[cell] for cell in square}
    return {cell for cell, is_chosen in chosen.items() if is_chosen}


RESERVED_NAMES: Final = ("topic", "sense", "length")
"""The names of the three criteria besides the skills, in every output."""
WovenRule = Literal["column", "required"]
"""Whether woven full marks are a separate column, or weaving is required for the points of skills."""
Setting = str
"""The name of a group in a partition."""
SETTINGS: Final[tuple[Setting, ...]] = ("train", "held-out", "all")
"""The groups that every partition has."""


@dataclass(frozen=True, slots=True)
class Skill:
    """One language skill, with the definition and the example that prompts show."""

    name: str
    category: str
    definition: str
    example: str
    figure: str | None = None
    """The figure of a skill that consists of a figure and a word."""
    word: str | None = None


@dataclass(frozen=True, slots=True)
class EntailedPair:
    """A measured pair of skills: texts that show the first usually show the second too."""

    skill: str
    brings: str
    texts: int
    """The number of texts that show the first skill although it was not requested."""
    with_both: int
    """The number of these texts that also show the second skill."""
    source: str
    """The kind of texts: natural prose, or model output."""


@dataclass(frozen=True, slots=True)
class Side:
    """The skills and topics of one group of a partition, and the rules for combining them."""

    skills: tuple[str, ...]
    topics: tuple[str, ...]
    impossible: frozenset[frozenset[str]] = frozenset()
    """Groups of skills that are never combined."""
    may_be_plain: bool = False
    """Whether a combination may have no skills, because the topic of a probe is a complete request."""
    one: frozenset[str] | None = None
    """Skills of which each combination must contain exactly one; None without this rule."""
    one_of_each: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The figure of each skill. The skills of a combination must have different figures."""

    @property
    def most_skills(self) -> int:
        """Return the largest k."""
        ones = self.one or frozenset()
        rest = {self.one_of_each.get(skill, skill) for skill in self.skills if skill not in ones}
        if self.one is None or any(self.one_of_each.get(skill, skill) not in rest for skill in ones):
            return len(rest) + (self.one is not None)
        return len(rest) if ones else 0

    def holds(self, skills: Collection[str]) -> bool:
        """Return whether this side allows a combination of these skills."""
        figures = {self.one_of_each.get(skill, skill) for skill in skills}
        is_composed = self.one is None or sum(skill in self.one for skill in skills) == 1
        return is_composed and len(figures) == len(skills) and set(skills) <= set(self.skills)


@dataclass(frozen=True, slots=True)
class Partition:
    """A split into a train side, a held-out side and further groups; skills may be in several groups or in none."""

    name: str
    train: Side
    held_out: Side
    groups: Mapping[str, Side] = field(default_factory=dict, hash=False)
    """Further groups, by name."""
    any_topic_at_one: bool = False
    """Whether training texts with one skill may be about held-out topics, unlike other training texts."""

    @property
    def _sides(self) -> dict[Setting, Side]:
        return {"train": self.train, "held-out": self.held_out, **self.groups}

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Return the names of all groups."""
        return (*self._sides, "all")

    def side(self, setting: Setting) -> Side:
        """Return the group with this name; `all` joins all groups."""
        sides = self._sides
        if setting in sides:
            return sides[setting]
        if setting != "all":
            hint = name_hint(setting, self.settings, otherwise=f"Its groups: {', '.join(self.settings)}.")
            raise UserError(f"The partition {self.name} has no group {setting!r}.", hint=hint)
        skills, topics = (
            {n: None for side in sides.values() for n in getattr(side, of)} for of in ("skills", "topics")
        )
        return Side(tuple(skills), tuple(topics))

    @property
    def never_composed(self) -> frozenset[str]:
        """Skills outside the train side, which only data sets from their group combine with other skills."""
        return frozenset(self.side("all").skills).difference(self.train.skills)

    @property
    def held_out_topics(self) -> frozenset[str]:
        """Topics outside the train side."""
        return frozenset(self.side("all").topics).difference(self.train.topics)


@dataclass(frozen=True)
class Catalog:
    """A valid set of skills, topics and partitions."""

    name: str
    skills: tuple[Skill, ...]
    topics: tuple[str, ...]
    partitions: tuple[Partition, ...]
    default_partition: str
    exclude: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    vocabulary: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    """For each topic, the words of which one suffices, the words of which two are needed, and optionally near words."""
    impossible: frozenset[frozenset[str]] = frozenset()
    """Groups of skills that no text can show together."""
    entailed: tuple[EntailedPair, ...] = ()
    """Pairs of skills of which the first usually entails the second."""
    woven: WovenRule = "column"
    templates: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The clauses of the template student, by skill and form."""
    controls: Mapping[str, str] = field(default_factory=dict)
    """The probe that corresponds to each harmless control topic, in a catalog of probes."""
    figures: tuple[Figure, ...] = ()
    """The figures of skills made of a figure and a word; full marks then require exactly the requested skills."""
    grammar: Grammar | None = None
    """The phrasings of the teacher `composer:`, if any."""
    code: OwnCode | None = None
    """The `checkers.py` in the folder of the catalog, if any."""
    members: Mapping[str | None, "Catalog"] = field(default_factory=dict)
    """The members of a joined catalog, from which individual steps draw; None is the key of the main catalog."""

    def member(self, name: str | None) -> "Catalog":
        """Return a member by name; None is the name of the experiment's catalog."""
        if name in self.members or name is None:
            return self.members.get(name, self)
        known = [str(member) for member in self.members if member is not None]
        hint = name_hint(name, known, otherwise=f"Known: {', '.join(known) or 'only the catalog of the experiment'}.")
        raise UserError(f"The experiment has no catalog {name!r} besides {self.name!r}.", hint=hint)

    @cached_property
    def not_combined(self) -> frozenset[frozenset[str]]:
        """Return the groups of skills that are never combined."""
        return self.impossible | {frozenset((pair.skill, pair.brings)) for pair in self.entailed}

    def content_hash(self) -> str:
        """Hash everything that affects prompts and draws."""
        if self.members:
            return self.members[None].content_hash()
        skills = [[s.name, s.category, s.definition, s.example] for s in self.skills]
        sides = [[p.name, [[s.skills, s.topics] for s in (p.train, p.held_out)]] for p in self.partitions]
        parts: list[object] = [skills, self.topics, sides, self.default_partition, dict(self.exclude)]
        if self.not_combined:
            parts.append(sorted(sorted(pair) for pair in self.not_combined))
        if self.woven != "column":
            parts.append(["woven", self.woven])
        if self.controls:
            parts.append(["controls", dict(self.controls)])
        if self.figure_of:
            parts.append(["figures", [[s.figure, s.word] for s in self.skills]])
        if any(p.groups for p in self.partitions):
            groups = [
                [p.name, [[n, g.skills, g.topics, sorted(g.one or ())] for n, g in p.groups.items()]]
                for p in self.partitions
            ]
            parts.append(["groups", groups])
        return short_id("catalog", *parts)

    @cached_property
    def figure_of(self) -> Mapping[str, str]:
        """Return the figure of each skill that has one. A combination contains each figure at most once."""
        return {skill.name: skill.figure for skill in self.skills if skill.figure}

    @cached_property
    def _partitions(self) -> dict[str, Partition]:
        """All partitions by name, including the computed ones."""
        return {partition.name: partition for partition in self.partitions}

    @cached_property
    def _by_name(self) -> dict[str, Skill]:
        return {fold_name(skill.name): skill for skill in self.skills}

    def skill(self, name: str) -> Skill:
        """Find a skill by its name, or by its short form if that is unique."""
        folded = fold_name(name)
        exact = self._by_name.get(folded)
        if exact is not None:
            return exact
        matches = [s for s in self.skills if fold_name(before_parenthesis(s.name)) == folded]
        if len(matches) == 1:
            return matches[0]
        raise UserError(
            f"No skill named {name!r} in catalog {self.name!r}."
            if not matches
            else f"{name!r} is the short form of {len(matches)} skills.",
            hint=name_hint(name, [s.name for s in (matches or self.skills)], otherwise=self._lists_them),
        )

    def require_skills(self, names: Iterable[str]) -> list[Skill]:
        """Find skills by their names; one error reports all unknown names."""
        names = list(names)
        refuse(f"Catalog {self.name!r}", errors_of(partial(self.skill, name) for name in names), hint=self._lists_them)
        return [self.skill(name) for name in names]

    @property
    def _lists_them(self) -> str:
        return f"`skillmix catalog {self.name}` lists all skills and topics."

    def topic(self, name: str) -> str:
        """Find a topic by its name, and return it in the catalog's spelling."""
        for topic in self.topics:
            if fold_name(topic) == fold_name(name):
                return topic
        hint = name_hint(name, self.topics, otherwise=self._lists_them)
        raise UserError(f"No topic named {name!r} in catalog {self.name!r}.", hint=hint)

    def partition(self, name: str | None = None) -> Partition:
        """Find a partition by its name, or compute `random-skills:SEED`, `random-categories:SEED` or `nested:SEED`."""
        wanted = name or self.default_partition
        if wanted in self._partitions:
            return self._partitions[wanted]
        kind, _, seed = wanted.partition(":")
        if kind in _COMPUTED and seed.isdecimal() and len(seed) < 19:
            made = _nested(self, int(seed)) if kind == "nested" else _random_split(self, kind, int(seed))
            return self._partitions.setdefault(wanted, made)
        known = [p.name for p in self.partitions] + [f"{kind}:SEED" for kind in _COMPUTED]
        hint = name_hint(wanted, known, otherwise=f"Known: {', '.join(known)}.")
        raise UserError(f"No partition named {wanted!r} in catalog {self.name!r}.", hint=hint)

    def excluded(self, names: Iterable[str]) -> frozenset[str]:
        """Return all excluded skills: those in the named exclude lists, and those named directly."""
        skills: set[str] = set()
        for name in names:
            skills |= set(self.exclude[name]) if name in self.exclude else {self.skill(name).name}
        return frozenset(skills)

    def pool(self, setting: Setting, *, partition: str | None = None, exclude: Iterable[str] = ()) -> Side:
        """Return the skills and topics of a setting without the excluded skills."""
        side = self.partition(partition).side(setting)
        excluded = self.excluded(exclude)
        return replace(
            side,
            skills=tuple(s for s in side.skills if s not in excluded),
            one=None if side.one is None else side.one - excluded,
            impossible=self.not_combined,
            may_be_plain=bool(self.controls),
            one_of_each=self.figure_of,
        )

    def pools(self, *, partition: str | None = None, exclude: Sequence[str] = ()) -> list[tuple[Setting, Side]]:
        """Return the pool of every setting."""
        settings = self.partition(partition).settings
        return [(setting, self.pool(setting, partition=partition, exclude=exclude)) for setting in settings]


def _random_split(catalog: Catalog, kind: str, seed: int) -> Partition:
    """Shuffle skills or whole categories between the two sides of the default partition, and keep the topics.

    Random skills keep the sizes of the sides. Random categories go to the train side as long as they bring it closer to
    half of the skills.
    """
    base = catalog.partition()
    names = [s.name for s in catalog.skills if s.name in {*base.train.skills, *base.held_out.skills}]
    chosen: set[str] = set()
    if kind == "random-skills":
        order = ranked([*base.train.skills, *base.held_out.skills], kind, seed)
        chosen.update(order[: len(base.train.skills)])
    else:
        members: dict[str, set[str]] = {}
        for name in names:
            members.setdefault(catalog.skill(name).category, set()).add(name)
        for category in ranked(list(members), kind, seed):
            grown = chosen | members[category]
            if abs(len(grown) - len(names) / 2) < abs(len(chosen) - len(names) / 2):
                chosen = grown
    train = Side(skills=tuple(name for name in names if name in chosen), topics=base.train.topics)
    held_out = Side(skills=tuple(name for name in names if name not in chosen), topics=base.held_out.topics)
    return Partition(f"{kind}:{seed}", train, held_out)


def _nested(catalog: Catalog, seed: int) -> Partition:
    """Group skills by their new part: the figure, the word, both, or only the combination of figure and word."""
    without = [skill.name for skill in catalog.skills if not (skill.figure and skill.word)]
    if without:
        raise UserError(
            f"nested:{seed} needs skills with a figure and a word, and {len(without)} skills of catalog "
            f"{catalog.name!r} have none, such as {without[0]!r}.",
            hint="Choose another partition, or give every skill a figure and a word.",
        )
    cells = cells_by_group({s.name: (str(s.figure), str(s.word)) for s in catalog.skills}, seed)
    composed = set(ranked(list(catalog.topics), "nested topics", seed)[: (len(catalog.topics) + 1) // 2])
    others = tuple(topic for topic in catalog.topics if topic not in composed)
    beside = Side((*cells["train"], *cells["new-figures"]), others, one=frozenset(cells["new-figures"]))
    return Partition(
        name=f"nested:{seed}",
        train=Side(cells["train"], tuple(topic for topic in catalog.topics if topic in composed)),
        held_out=Side(cells["random-cells"], others),
        groups={
            **{name: Side(cells[name], others) for name in GROUPS_OF_CELLS if name != "train"},
            "new-figure-beside-trained": beside,
        },
        any_topic_at_one=True,
    )


_COMPUTED: Final = ("random-skills", "random-categories", "nested")
"""The kinds of partitions that are computed from a seed."""
