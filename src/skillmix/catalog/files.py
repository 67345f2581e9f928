"""Load a catalog folder, whose YAML files are validated together. Its code is not run."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, TypeVar

from pydantic import AfterValidator, Field

from skillmix.catalog.catalog import (
    PATTERN,
    RESERVED_NAMES,
    SETTINGS,
    Catalog,
    EntailedPair,
    Figure,
    Partition,
    Side,
    Skill,
    WovenRule,
    fold_name,
    remember_figures,
)
from skillmix.catalog.grammar import FigureWord, Grammar, Name, Prose, Strict, filled, frame_faults
from skillmix.catalog.own_code import own_code_of
from skillmix.errors import UserError, faults_error
from skillmix.files import SHIPPED, accepted_if, checked_yaml, with_nearest
from skillmix.render import name_hint, shortened

Pattern = Annotated[
    str, accepted_if(re.compile(PATTERN).match, "must be words, marks and slots with single blanks between them")
]


_T = TypeVar("_T")
_GROUP_NAME: Final = re.compile(r"[a-z0-9]++(?:-[a-z0-9]++)*+")


class SkillEntry(Strict):
    """An entry of skills.yaml."""

    name: Name
    category: Name
    definition: Prose
    example: Prose
    figure: Name | None = None
    word: Name | None = None


class FigureEntry(Strict):
    """A figure in figures.yaml, which forms a skill with each word of its kind."""

    kind: str
    name: Name
    category: Name
    definition: Prose
    example: Prose
    patterns: list[Pattern] = []


class FiguresFile(Strict):
    """The content of figures.yaml."""

    words: dict[Name, Annotated[list[FigureWord], Field(min_length=1)]] = {}
    figures: dict[Name, FigureEntry] = {}


class SkillsEntry(Strict):
    """A list of skills, given as categories and as single skills."""

    categories: list[str] = []
    skills: list[str] = []


class SideEntry(SkillsEntry):
    """One side of a partition."""

    topics: list[str] | None = None
    """The topics. By default, a side has its topics under `topics:`, and a further group has the held-out topics."""


class GroupEntry(SideEntry):
    """A further group of a partition. Its combinations contain exactly one of the skills in `one`, if given."""

    one: SkillsEntry | None = None


class TopicSides(Strict):
    """The topics of both sides, for partitions that list no topics."""

    train: list[str]
    held_out: list[str] = Field(alias="held-out")


def _group_name(name: str) -> str:
    if name in SETTINGS or name.isdigit() or not _GROUP_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot be the name of a group; use lowercase letters, single dashes and digits (not alone), and "
            f"none of {', '.join(SETTINGS)}, which every partition has"
        )
    return name


class PartitionEntry(Strict):
    """The two sides of a partition, and its further groups."""

    train: SideEntry
    held_out: SideEntry = Field(alias="held-out")
    groups: dict[Annotated[str, AfterValidator(_group_name)], GroupEntry] = {}


class VocabularyEntry(Strict):
    """The words that show that a text is about a topic."""

    alone: list[str] = []
    together: list[str] = []
    near: list[str] = []


class TemplateEntry(Strict):
    """The template student's two clauses for one skill."""

    fixed: Prose
    slot: Prose


class EntailedEntry(Strict):
    """A measured pair of skills: texts that show the first usually show the second too."""

    skill: str
    brings: str
    texts: int = Field(ge=1)
    with_both: int = Field(alias="both", ge=0)
    source: Name


class PartitionsFile(Strict):
    """The content of partitions.yaml."""

    default: str
    partitions: dict[Name, PartitionEntry]
    topics: TopicSides
    exclude: dict[Name, list[str]] = {}
    impossible: list[Annotated[list[str], Field(min_length=2)]] = []
    """Groups of skills that no text can show together."""
    entailed: list[EntailedEntry] = []
    """Pairs of skills of which the first usually entails the second."""
    woven: WovenRule = "column"


def shipped_catalogs() -> list[str]:
    """Return the names of the shipped catalogs."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/partitions.yaml"))


def load_catalog(name: str, *others: str) -> Catalog:
    """Load a shipped catalog by name, or a folder by path; `others` add their skills and topics to the catalog."""
    if others:
        return _joined(load_catalog(name), {other: load_catalog(other) for other in others})
    shipped = SHIPPED / name
    is_shipped = name in shipped_catalogs()
    folder = shipped if is_shipped else Path(name)
    try:
        is_folder = folder.is_dir()
    except OSError:  # the name is too long for a path
        is_folder = False
    if not is_folder:
        shipped_names = f"Shipped: {', '.join(shipped_catalogs())}."
        known = f"{shipped_names} Or give a folder with skills.yaml, topics.yaml and partitions.yaml."
        hint = name_hint(name, shipped_catalogs(), otherwise=known)
        raise UserError(f"There is no catalog {shortened(name)!r}.", hint=hint)
    return _build(name if is_shipped else folder.resolve().name, folder)


def _joined(first: Catalog, others: Mapping[str, Catalog]) -> Catalog:
    """Join catalogs, so that prompts and graders can handle combinations from any of them."""
    skills = {skill.name: skill for skill in first.skills}
    words = dict(first.vocabulary)
    faults = []
    for name, other in others.items():
        faults += [
            f"{name}: the skill {skill.name!r} differs from the one in {first.name}"
            for skill in other.skills
            if skills.setdefault(skill.name, skill) != skill
        ]
        faults += [
            f"{name}: the words of the topic {topic!r} in vocabulary.yaml differ from those in {first.name}"
            for topic in {*other.topics}.intersection(first.topics)
            if other.vocabulary.get(topic) != first.vocabulary.get(topic)
        ]
        if other.code not in (None, first.code) or other.woven != first.woven:
            faults.append(f"{name}: checkers.py or the rule `woven` differs from the one in {first.name}")
        words |= other.vocabulary
    if faults:
        raise faults_error(f"A joined catalog with {first.name}", faults, hint="Use another catalog in another run.")
    both = (first, *others.values())
    return replace(
        first,
        skills=tuple(skills.values()),
        topics=tuple(dict.fromkeys(topic for c in both for topic in c.topics)),
        vocabulary=words,
        templates={skill: clauses for c in both for skill, clauses in c.templates.items()},
        controls={control: probe for c in both for control, probe in c.controls.items()},
        members={None: first, **dict[str | None, Catalog](others.items())},
    )


def _build(name: str, folder: Path) -> Catalog:
    faults: list[str] = []

    def read(file: str, shape: type[_T], *, is_needed: bool = False) -> _T | None:
        path = folder / file
        try:
            return checked_yaml(path, shape, hint="") if is_needed or path.is_file() else None
        except UserError as error:
            found = error.faults if len(error.faults) > 1 else [error.message.removeprefix(str(path)).lstrip(": ")]
            faults.extend(f"{file}: {fault}" for fault in found)
        return None

    figures = read("figures.yaml", FiguresFile) or FiguresFile()
    of_figures = [
        Skill(filled(e.name, word), e.category, filled(e.definition, word), filled(e.example, word), figure, word)
        for figure, e in figures.figures.items()
        for word in figures.words.get(e.kind, ())
    ]
    has_list = not (folder / "figures.yaml").is_file() or (folder / "skills.yaml").is_file()
    listed = read("skills.yaml", list[SkillEntry], is_needed=True) if has_list else []
    skills = None if listed is None else [*(Skill(**entry.model_dump()) for entry in listed), *of_figures]
    topics = read("topics.yaml", list[Name], is_needed=True)
    partitions = read("partitions.yaml", PartitionsFile, is_needed=True)
    words = read("vocabulary.yaml", dict[str, VocabularyEntry]) or {}
    templates = read("templates.yaml", dict[str, TemplateEntry]) or {}
    controls = read("controls.yaml", dict[str, str]) or {}
    grammar = read("grammar.yaml", Grammar)
    names = [skill.name for skill in skills or []]
    faults += _name_faults("figures.yaml" if of_figures else "skills.yaml", names)
    faults += _name_faults("topics.yaml", topics or [])
    faults += _figure_faults(figures, grammar, topics or [])
    faults += _unknown("templates.yaml", "skill", templates, names)
    faults += [
        f"templates.yaml, {skill}, slot: the clause has no {{topic}}"
        for skill, entry in templates.items()
        if "{topic}" not in entry.slot
    ]
    probes = Counter(topic for pair in controls.items() for topic in pair)
    faults += _unknown("controls.yaml", "topic", probes, topics or [])
    faults += [f"controls.yaml: the topic {topic!r} occurs {n} times" for topic, n in probes.items() if n > 1]
    faults += _unknown("vocabulary.yaml", "topic", words, topics or [])
    if skills == [] or topics == []:
        faults.append("skills.yaml and topics.yaml must each have an entry")
    elif skills and topics and partitions:
        faults += _partition_faults(partitions, skills, topics)
    if faults or not skills or not topics or not partitions:
        raise faults_error(f"Catalog {folder}", faults, hint="Correct the files in this folder.")
    made = tuple(
        Figure(figure, tuple(entry.patterns), tuple((s.word or "", s.name) for s in skills if s.figure == figure))
        for figure, entry in figures.figures.items()
    )
    remember_figures(name, made)
    return Catalog(
        name=name,
        skills=tuple(skills),
        topics=tuple(topics),
        partitions=tuple(
            Partition(
                name=partition,
                train=_side(entry.train, partitions.topics.train, skills),
                held_out=_side(entry.held_out, partitions.topics.held_out, skills),
                groups={g: _side(own, partitions.topics.held_out, skills) for g, own in entry.groups.items()},
            )
            for partition, entry in partitions.partitions.items()
        ),
        default_partition=partitions.default,
        exclude={n: tuple(names) for n, names in partitions.exclude.items()},
        vocabulary={
            n: tuple(map(tuple, (entry.alone, entry.together, *([entry.near] if entry.near else []))))
            for n, entry in words.items()
        },
        impossible=frozenset(frozenset(names) for names in partitions.impossible),
        entailed=tuple(EntailedPair(**entry.model_dump()) for entry in partitions.entailed),
        woven=partitions.woven,
        templates={n: entry.model_dump() for n, entry in templates.items()},
        controls={control: probe for probe, control in controls.items()},
        figures=made,
        grammar=grammar,
        code=own_code_of(folder, tuple(names)),
    )


def _unknown(at: str, kind: str, listed: Iterable[str], known: Collection[str]) -> Iterator[str]:
    for name in listed:
        if name not in known:
            yield with_nearest(f"{at}: there is no {kind} {name!r}", name, sorted(known))


def _name_faults(file: str, names: Sequence[str]) -> Iterator[str]:
    first: dict[str, int] = {}
    for number, name in enumerate(names, start=1):
        folded = fold_name(name)
        if not folded:
            yield f"{file}, entry {number}: the name {name!r} has no letters or digits"
        elif folded in RESERVED_NAMES and file != "topics.yaml":
            yield f"{file}, entry {number}: the name {name!r} is reserved for a criterion"
        elif folded in first:
            yield f"{file}, entry {number}: the name {name!r} is already used by entry {first[folded]}"
        first.setdefault(folded, number)


def _figure_faults(document: FiguresFile, grammar: Grammar | None, topics: Sequence[str]) -> Iterator[str]:
    for name, figure in document.figures.items():
        if figure.kind not in document.words:
            fault = f"figures.yaml, {name}: there are no words of kind {figure.kind!r}"
            yield with_nearest(fault, figure.kind, document.words)
        if "{word}" not in figure.name and "{a word}" not in figure.name:
            yield f"figures.yaml, {name}, name: {{word}} or {{a word}} is missing"
    if grammar is None:
        return
    for kind, listed, known in (("figure", grammar.figures, document.figures), ("topic", grammar.topics, topics)):
        yield from _unknown("grammar.yaml", kind, listed, known)
        yield from (f"grammar.yaml: the {kind} {name!r} is missing" for name in known if name not in listed)
    for name, entry in grammar.figures.items():
        if not entry.own:
            yield f"grammar.yaml, {name}: there is no clause"
        for frame in (*entry.own, *entry.before, *entry.after):
            yield from (f"grammar.yaml, {name}: {fault}" for fault in frame_faults(frame, has_word=True))
    for frame in grammar.plain:
        yield from (f"grammar.yaml, plain: {fault}" for fault in frame_faults(frame, has_word=False))


def _partition_faults(document: PartitionsFile, skills: Sequence[Skill], topics: Sequence[str]) -> Iterator[str]:
    names, categories = {s.name for s in skills}, {s.category for s in skills}
    shared = document.topics
    if document.default not in document.partitions:
        known = ", ".join(document.partitions) or "none"
        yield f"partitions.yaml, default: there is no partition {document.default!r}, only {known}"
    for label, listed in (("train", shared.train), ("held-out", shared.held_out)):
        yield from _unknown(f"partitions.yaml, topics, {label}", "topic", listed, topics)
    both_sides: list[tuple[str, Iterable[str], Iterable[str]]] = [("topics", shared.train, shared.held_out)]
    for pair in document.entailed:
        if pair.skill == pair.brings:
            yield f"partitions.yaml, entailed: {pair.skill!r} is paired with itself"
        if pair.with_both > pair.texts:
            yield f"partitions.yaml, entailed: {pair.skill!r} has more texts with both skills than with the first"
    lists = {"impossible": [n for group in document.impossible for n in group]}
    lists["entailed"] = [n for entry in document.entailed for n in (entry.skill, entry.brings)]
    for at, listed in {**lists, **{f"exclude, {name}": own for name, own in document.exclude.items()}}.items():
        yield from _unknown(f"partitions.yaml, {at}", "skill", listed, names)
    for name, entry in document.partitions.items():
        groups = {f"groups, {group}": side for group, side in entry.groups.items()}
        for label, side in {"train": entry.train, "held-out": entry.held_out, **groups}.items():
            at = f"partitions.yaml, {name}, {label}"
            made = _side(side, shared.train if side is entry.train else shared.held_out, skills)
            ones = side.one if isinstance(side, GroupEntry) else None
            for place, own in ((at, side), *([(f"{at}, one", ones)] if ones else [])):
                yield from _unknown(place, "category", own.categories, categories)
                yield from _unknown(place, "skill", own.skills, names)
            yield from _unknown(at, "topic", side.topics or [], topics)
            named = _named(side, skills)
            if not named:
                yield f"{at}: there is no skill"
            if not made.topics:
                yield f"{at}: there is no topic"
            if made.one is not None and not made.one:
                yield f"{at}, one: there is no skill"
            twice = sorted((made.one or frozenset()).intersection(named))
            yield from (f"{at}: {skill!r} is in `one` and in another list" for skill in twice)
        train, held_out = _side(entry.train, shared.train, skills), _side(entry.held_out, shared.held_out, skills)
        both_sides += [(name, train.skills, held_out.skills), (name, train.topics, held_out.topics)]
    for at, one, other in both_sides:
        yield from (f"partitions.yaml, {at}: {own!r} is on both sides" for own in sorted({*one}.intersection(other)))


def _named(listed: SkillsEntry, skills: Sequence[Skill]) -> tuple[str, ...]:
    """Return the listed skills, and the skills of the listed categories."""
    return tuple(s.name for s in skills if s.category in listed.categories or s.name in listed.skills)


def _side(entry: SideEntry, topics: Sequence[str], skills: Sequence[Skill]) -> Side:
    """Make a side with its own topics, or with the shared topics if it has none."""
    own = entry.one if isinstance(entry, GroupEntry) else None
    ones = _named(own, skills) if own else ()
    topics = topics if entry.topics is None else entry.topics
    return Side((*_named(entry, skills), *ones), tuple(topics), one=frozenset(ones) if own else None)
