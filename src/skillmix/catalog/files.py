"""Load a catalog folder, and find what users name: exclude lists and the experiments that ship.

A catalog is three YAML files and optional ones, validated together; its code is read and not run.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from skillmix.catalog.catalog import (
    PATTERN,
    RESERVED_NAMES,
    SETTINGS,
    Catalog,
    EntailedPair,
    Figure,
    Frames,
    Grammar,
    Partition,
    Side,
    Skill,
    WovenRule,
    filled,
    fold_name,
    frame_faults,
    remember_figures,
    with_article,
)
from skillmix.catalog.own_code import own_code_of
from skillmix.errors import UserError, faults_error
from skillmix.files import fault_words, known_keys, read_shared_yaml, read_yaml, with_nearest
from skillmix.render import name_hint

PREFIX: Final = "file:"
_KEYS: Final = ("catalog", "source", "threshold", "skills")
_HINT: Final = "A list is `skills: [a, b]`, or `[a, b]` alone; `skillmix frequency` writes one."


def skills_in(path: Path) -> list[str]:
    """The skills that an exclude list names."""
    document = read_yaml(path)
    faults = []
    if isinstance(document, dict):
        unknown = [key for key in document if key not in _KEYS]
        faults += [with_nearest(f"there is no key {key!r}", str(key), _KEYS) for key in unknown]
        if "skills" not in document:
            faults.append("the key 'skills' is missing")
        document = document.get("skills", [])
    if document is None:
        document = []
    if not isinstance(document, list):
        faults.append("skills is not a list")
        document = []
    faults += [f"{entry!r} is not the name of a skill" for entry in document if not isinstance(entry, str) or not entry]
    if faults:
        raise faults_error(str(path), faults, hint=_HINT)
    return [str(entry) for entry in document]


def with_listed_skills(names: Iterable[str]) -> list[str]:
    """The names, with every `file:PATH` replaced by the skills of its list, so that the content decides draws.

    >>> with_listed_skills(["common", "metaphor"])
    ['common', 'metaphor']
    """
    found: list[str] = []
    for name in names:
        if not name.startswith(PREFIX):
            found.append(name)
            continue
        path = Path(name.removeprefix(PREFIX)).expanduser()
        if path.is_dir() or not path.name:
            raise UserError(f"{name!r} does not name a file.", hint=_HINT)
        found += [skill for skill in skills_in(path) if skill not in found]
    return found


def document_with_lists(document: object) -> tuple[object, Sequence[str]]:
    """An experiment as plain data with every `file:PATH` of its exclude lists replaced, and the faults found."""
    if not isinstance(document, dict):
        return document, ()
    faults: list[str] = []
    result = _section(document, "exclude", faults)
    steps = result.get("steps")
    if isinstance(steps, list):
        named = [s.get("name") if isinstance(s, dict) else None for s in steps]
        result["steps"] = [
            _section(step, f"steps.{name}.exclude", faults) if isinstance(step, dict) else step
            for step, name in zip(steps, named, strict=True)
        ]
    return result, faults


def _section(section: dict[object, object], at: str, faults: list[str]) -> dict[object, object]:
    names = section.get("exclude")
    if not isinstance(names, list) or not any(isinstance(name, str) and name.startswith(PREFIX) for name in names):
        return dict(section)
    found: list[object] = []
    for name in names:
        if not isinstance(name, str):
            found.append(name)  # the check of the section reports it
            continue
        try:
            found += [skill for skill in with_listed_skills([name]) if skill not in found]
        except UserError as error:
            faults.append(f"{at}: {error.message} {error.hint or ''}".rstrip())
    return {**section, "exclude": found}


SHIPPED = Path(str(files("skillmix"))) / "data"
"""The folder of the package's own catalogs and prompt sets."""
_EXPERIMENTS: Final = "experiments"


def _root() -> Path:
    """The folder with `experiments/`: in the wheel, or else the root of the checkout."""
    return SHIPPED / "shipped" if (SHIPPED / "shipped").is_dir() else SHIPPED.parents[2]


def shipped_experiments() -> dict[str, Path]:
    """The files of the experiments that ship, by name."""
    return {file.stem: file for file in sorted((_root() / _EXPERIMENTS).glob("*.yaml"))}


def experiment_file(name: Path) -> Path:
    """The file that a user means: one of their own, or else one that ships: `smoke` or `experiments/smoke.yaml`."""
    try:
        is_own = bool(name.suffix) or len(name.parts) != 1 or name.is_file()
    except OSError:  # the name is too long
        is_own = False
    if is_own:
        return own_or_shipped(name)
    shipped = shipped_experiments()
    if name.name in shipped:
        return shipped[name.name]
    others = f"Shipped: {', '.join(shipped)}. Or give the path of a file."
    raise UserError(
        f"There is no experiment {name.name!r}, and no file of this name.",
        hint=name_hint(name.name, list(shipped), otherwise=others),
    )


def own_or_shipped(name: str | Path) -> Path:
    """The path that a name leads to; the user's own file or folder comes before an experiment that ships.

    >>> own_or_shipped("experiments/smoke.yaml").is_file(), own_or_shipped("experiments/unknown.yaml").is_file()
    (True, False)
    """
    path = Path(name).expanduser()
    try:
        is_own = path.exists() or ".." in path.parts
    except (OSError, ValueError):  # the name is too long, for instance
        is_own = True
    if is_own:
        return path
    packed = _root() / path
    return packed if len(path.parts) == 2 and path.parts[0] == _EXPERIMENTS and packed.exists() else path


_NAME = r"^[^\s;|\x00-\x1f\x7f]([^;|\x00-\x1f\x7f]*[^\s;|\x00-\x1f\x7f])?$"
Name = Annotated[str, StringConstraints(pattern=_NAME, max_length=500)]
"""A name is one line without outer blanks, without ';' (it separates names on the command line) and without '|'."""
FigureWord = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]+$")]
Pair = Annotated[list[Name], Field(min_length=2, max_length=2)]
Pattern = Annotated[str, StringConstraints(pattern=PATTERN)]
Prose = Annotated[str, StringConstraints(min_length=1, pattern=r"\S")]


_T = TypeVar("_T")

_GROUP_NAME: Final = re.compile(r"[a-z0-9]++(?:-[a-z0-9]++)*+")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SkillEntry(_Strict):
    """An entry of skills.yaml."""

    name: Name
    category: Name
    definition: Prose
    example: Prose
    figure: Name | None = None
    word: Name | None = None


class FigureEntry(_Strict):
    """A figure of figures.yaml: a skill with each word of its kind."""

    kind: str
    name: Name
    category: Name
    definition: Prose
    example: Prose
    patterns: list[Pattern] = []


class FiguresFile(_Strict):
    """The content of figures.yaml."""

    words: dict[Name, Annotated[list[FigureWord], Field(min_length=1)]] = {}
    figures: dict[Name, FigureEntry] = {}


class FramesEntry(_Strict):
    """The frames of one figure."""

    events: list[Prose] = []
    clauses: list[Prose] = []
    closed: list[Prose] = []
    before: list[Prose] = []
    after: list[Prose] = []
    fits: Literal["events", "any"] = "events"

    def frames(self) -> Frames:
        """The frames as the teacher uses them."""
        events, hosts = tuple(self.events), (*self.events, *self.clauses)
        parts = tuple(self.before), tuple(self.after)
        return Frames((*hosts, *self.closed), hosts, events, *parts, self.fits == "any")


class TopicSlotsEntry(_Strict):
    """The words of one topic for the slots of frames."""

    who: Name
    verb: Pair
    """The base form and the past."""
    things: Annotated[list[Pair], Field(min_length=2)]
    """Singular and plural of each."""
    tool: Name
    place: Name
    at: Name

    def slots(self) -> Iterator[dict[str, str]]:
        """The words by slot, once for each of the things."""
        own = {"who": self.who, "base": self.verb[0], "past": self.verb[1], "tool": self.tool, "place": self.place}
        for number, (thing, things) in enumerate(self.things):
            _, others = self.things[number - 1]
            yield {
                **own,
                "at": self.at,
                "thing": thing,
                "a thing": with_article(thing),
                "things": things,
                "others": others,
            }


class GrammarFile(_Strict):
    """The content of grammar.yaml."""

    plain: Annotated[list[Prose], Field(min_length=1)]
    joints: Annotated[list[Prose], Field(min_length=1)]
    adjectives: list[FigureWord] = []
    figures: dict[str, FramesEntry]
    topics: dict[str, TopicSlotsEntry]

    def grammar(self) -> Grammar:
        """The grammar as the teacher uses it."""
        figures = {name: entry.frames() for name, entry in self.figures.items()}
        topics = {name: tuple(entry.slots()) for name, entry in self.topics.items()}
        return Grammar(tuple(self.plain), tuple(self.joints), tuple(self.adjectives), figures, topics)


class SkillsEntry(_Strict):
    """Whole categories, single skills, or both."""

    categories: list[str] = []
    skills: list[str] = []


class SideEntry(SkillsEntry):
    """One side of a partition."""

    topics: list[str] | None = None
    """Default: the topics of the same side under `topics:`; those of a further group are held-out topics."""


class GroupEntry(SideEntry):
    """A further group of a partition; with `one`, its other keys name the skills beside that one."""

    one: SkillsEntry | None = None


class TopicSides(_Strict):
    """The topics of both sides, for partitions without topics of their own."""

    train: list[str]
    held_out: list[str] = Field(alias="held-out")


def _group_name(name: str) -> str:
    if name in SETTINGS or name.isdigit() or not _GROUP_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot be the name of a group: small letters, digits and single dashes, not digits alone, and "
            f"not one of {', '.join(SETTINGS)}, which every partition has"
        )
    return name


class PartitionEntry(_Strict):
    """The two sides of a partition, and further groups."""

    train: SideEntry
    held_out: SideEntry = Field(alias="held-out")
    groups: dict[Annotated[str, AfterValidator(_group_name)], GroupEntry] = {}


class VocabularyEntry(_Strict):
    """The words that put a text on one topic."""

    alone: list[str] = []
    together: list[str] = []


class TemplateEntry(_Strict):
    """The two clauses of the template student for one skill."""

    fixed: Prose
    slot: Prose


class EntailedEntry(_Strict):
    """A measured pair of skills: texts that show the first mostly show the second too."""

    skill: str
    brings: str
    texts: int = Field(ge=1)
    with_both: int = Field(alias="both", ge=0)
    source: Name


class PartitionsFile(_Strict):
    """The content of partitions.yaml."""

    default: str
    partitions: dict[Name, PartitionEntry]
    topics: TopicSides
    exclude: dict[Name, list[str]] = {}
    impossible: list[Annotated[list[str], Field(min_length=2)]] = []
    """Groups of skills that no text can show together."""
    entailed: list[EntailedEntry] = []
    """Pairs of skills; texts that show the first mostly show the second too."""
    woven: WovenRule = "column"


def shipped_catalogs() -> list[str]:
    """Names of the catalogs in the package."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/partitions.yaml"))


def load_catalog(name: str, *others: str) -> Catalog:
    """Load a shipped catalog by name, or any folder by path.

    With others, the skills and topics of all of them are in one catalog, which has its partitions from the first.
    """
    if others:
        return _joined(load_catalog(name), {other: load_catalog(other) for other in others})
    shipped = SHIPPED / name
    is_shipped = name in shipped_catalogs()
    folder = shipped if is_shipped else Path(name)
    if not folder.is_dir():
        raise UserError(
            f"There is no catalogue {name!r}.",
            hint=name_hint(
                name,
                shipped_catalogs(),
                otherwise=f"Shipped: {', '.join(shipped_catalogs())}. "
                "Or give a folder with skills.yaml, topics.yaml and partitions.yaml.",
            ),
        )
    return _build(name if is_shipped else folder.resolve().name, folder)


def _joined(first: Catalog, others: Mapping[str, Catalog]) -> Catalog:
    """One catalog that prompts and graders of an experiment can use, whatever catalog a combination is from."""
    skills = {skill.name: skill for skill in first.skills}
    words = dict(first.vocabulary)
    faults = []
    for name, other in others.items():
        faults += [
            f"{name}: the skill {skill.name!r} is another one in {first.name}"
            for skill in other.skills
            if skills.setdefault(skill.name, skill) != skill
        ]
        faults += [
            f"{name}: the topic {topic!r} has other words in vocabulary.yaml than in {first.name}"
            for topic in {*other.topics}.intersection(first.topics)
            if other.vocabulary.get(topic) != first.vocabulary.get(topic)
        ]
        if other.code not in (None, first.code) or other.woven != first.woven:
            faults.append(f"{name}: its checkers.py, or its rule for woven texts, is not that of {first.name}")
        words |= other.vocabulary
    if faults:
        raise faults_error(f"A run with {first.name}", faults, hint="Use a run of its own for such a catalogue.")
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
    has_figures = (folder / "figures.yaml").is_file()
    figures = _optional(folder / "figures.yaml", FiguresFile, faults) or FiguresFile()
    faults += _kind_faults(figures)
    of_figures = _figure_skills(figures)
    skills: list[Skill] | None = of_figures
    if not has_figures or (folder / "skills.yaml").is_file():
        entries = _validated(folder / "skills.yaml", list[SkillEntry], faults)
        plain = [Skill(**s.model_dump()) for s in entries or []]
        skills = None if entries is None else [*plain, *of_figures]
    topics = _validated(folder / "topics.yaml", list[Name], faults)
    partitions = _validated(folder / "partitions.yaml", PartitionsFile, faults)
    words = _optional(folder / "vocabulary.yaml", dict[str, VocabularyEntry], faults) or {}
    templates = _optional(folder / "templates.yaml", dict[str, TemplateEntry], faults) or {}
    faults += _template_faults(templates, {s.name for s in skills or []})
    controls = _optional(folder / "controls.yaml", dict[str, str], faults) or {}
    faults += _control_faults(controls, set(topics or []))
    grammar = _optional(folder / "grammar.yaml", GrammarFile, faults)
    if grammar is not None:
        known = {"figure": list(figures.figures), "topic": topics or []}
        faults += [*_grammar_gaps(grammar, known), *_frame_faults(grammar)]
    faults += [
        with_nearest(f"vocabulary.yaml: there is no topic {name!r}", name, topics or [])
        for name in words
        if name not in (topics or [])
    ]
    faults += _name_faults("figures.yaml" if of_figures else "skills.yaml", [s.name for s in skills or []])
    faults += _name_faults("topics.yaml", topics or [])
    if skills == [] or topics == []:
        faults.append("skills.yaml and topics.yaml must each have an entry")
    elif skills and topics and partitions:
        faults += _partition_faults(partitions, skills, topics)
    if faults or not skills or not topics or not partitions:
        raise faults_error(f"Catalogue {folder}", faults, hint="Correct the files; nothing was loaded.")
    made = tuple(
        Figure(name, tuple(entry.patterns), tuple((s.word or "", s.name) for s in skills if s.figure == name))
        for name, entry in figures.figures.items()
    )
    remember_figures(name, made)
    return Catalog(
        name=name,
        skills=tuple(skills),
        topics=tuple(topics),
        partitions=tuple(_partition(n, entry, partitions.topics, skills) for n, entry in partitions.partitions.items()),
        default_partition=partitions.default,
        exclude={n: tuple(names) for n, names in partitions.exclude.items()},
        vocabulary={n: (tuple(entry.alone), tuple(entry.together)) for n, entry in words.items()},
        impossible=frozenset(frozenset(names) for names in partitions.impossible),
        entailed=tuple(EntailedPair(e.skill, e.brings, e.texts, e.with_both, e.source) for e in partitions.entailed),
        woven=partitions.woven,
        templates={n: {"fixed": entry.fixed, "slot": entry.slot} for n, entry in templates.items()},
        controls={control: probe for probe, control in controls.items()},
        figures=made,
        grammar=grammar.grammar() if grammar else None,
        code=own_code_of(folder, tuple(s.name for s in skills)),
    )


def _kind_faults(document: FiguresFile) -> Iterator[str]:
    for name, entry in document.figures.items():
        if entry.kind not in document.words:
            yield with_nearest(f"figures.yaml, {name}: no words of kind {entry.kind!r}", entry.kind, document.words)
        if "{word}" not in entry.name and "{a word}" not in entry.name:
            yield f"figures.yaml, {name}, name: has neither {{word}} nor {{a word}}"


def _figure_skills(document: FiguresFile) -> list[Skill]:
    skills = []
    for figure, entry in document.figures.items():
        for word in document.words.get(entry.kind, ()):
            name, definition, example = (filled(part, word) for part in (entry.name, entry.definition, entry.example))
            skills.append(Skill(name, entry.category, definition, example, figure, word))
    return skills


def _grammar_gaps(grammar: GrammarFile, known: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Figures and topics that the grammar lacks, or that the catalog does not have."""
    for kind, listed in (("figure", grammar.figures), ("topic", grammar.topics)):
        for name in listed:
            if name not in known[kind]:
                yield with_nearest(f"grammar.yaml: there is no {kind} {name!r}", name, known[kind])
        yield from (f"grammar.yaml: the {kind} {name!r} is missing" for name in known[kind] if name not in listed)


def _frame_faults(grammar: GrammarFile) -> Iterator[str]:
    for name, entry in grammar.figures.items():
        frames = entry.frames()
        if not frames.own:
            yield f"grammar.yaml, {name}: has no whole clause"
        for frame in (*frames.own, *frames.before, *frames.after):
            yield from (f"grammar.yaml, {name}: {fault}" for fault in frame_faults(frame, has_word=True))
    for frame in grammar.plain:
        yield from (f"grammar.yaml, plain: {fault}" for fault in frame_faults(frame, has_word=False))


def _validated(path: Path, shape: type[_T], faults: list[str]) -> _T | None:
    try:
        return TypeAdapter(shape).validate_python(read_shared_yaml(path))
    except UserError as error:
        faults.append(f"{path.name}: {error.message.removeprefix(f'{path} ')}")
    except ValidationError as error:
        for fault in error.errors():
            # Entries count from 1.
            at = "".join(f", entry {p + 1}" if isinstance(p, int) else f", {p}" for p in fault["loc"])
            words = _WORDS.get(fault["type"]) or fault_words(fault)
            if fault["type"] == "extra_forbidden":
                words = with_nearest("is not a known key", str(fault["loc"][-1]), known_keys(shape, fault["loc"]))
            faults.append(f"{path.name}{at}: {words}")
    return None


def _optional(path: Path, shape: type[_T], faults: list[str]) -> _T | None:
    return _validated(path, shape, faults) if path.is_file() else None


_WORDS: Final = {
    "string_pattern_mismatch": "must be one line of text without outer blanks, ';' or '|', and not empty",
    "missing": "is missing",
}


def _name_faults(file: str, names: Sequence[str]) -> Iterator[str]:
    first: dict[str, int] = {}
    for number, name in enumerate(names, start=1):
        folded = fold_name(name)
        if not folded:
            yield f"{file}, entry {number}: the name {name!r} has no letters or digits"
        elif folded in RESERVED_NAMES and file != "topics.yaml":
            yield f"{file}, entry {number}: the name {name!r} is reserved for a criterion"
        elif folded in first:
            yield f"{file}, entry {number}: the name {name!r} is that of entry {first[folded]}"
        first.setdefault(folded, number)


def _partition_faults(document: PartitionsFile, skills: Sequence[Skill], topics: Sequence[str]) -> Iterator[str]:
    names = {s.name for s in skills}
    if document.default not in document.partitions:
        yield f"partitions.yaml, default: {document.default!r} is not one of {', '.join(document.partitions) or 'none'}"
    for label, listed in (("train", document.topics.train), ("held-out", document.topics.held_out)):
        yield from _unknown(f"topics, {label}", "topic", listed, set(topics))
    yield from _overlap("topics", document.topics.train, document.topics.held_out)
    lists = {"impossible": [n for group in document.impossible for n in group]}
    for pair in document.entailed:
        if pair.skill == pair.brings:
            yield f"partitions.yaml: entailed: {pair.skill!r} is paired with itself, so no draw would have it"
        if pair.with_both > pair.texts:
            yield f"partitions.yaml: entailed: {pair.skill!r} has more texts with both skills than texts"
    lists["entailed"] = [n for entry in document.entailed for n in (entry.skill, entry.brings)]
    lists |= {f"exclude, {list_name}": listed for list_name, listed in document.exclude.items()}
    for location, listed in lists.items():
        yield from _unknown(location, "skill", listed, names)
    for name, entry in document.partitions.items():
        yield from _faults_of_groups(name, entry, document.topics, skills, topics)


def _faults_of_groups(
    name: str, entry: PartitionEntry, shared: TopicSides, skills: Sequence[Skill], topics: Sequence[str]
) -> Iterator[str]:
    further = {f"groups, {group}": side for group, side in entry.groups.items()}
    for label, side in {"train": entry.train, "held-out": entry.held_out, **further}.items():
        yield from _unknown_skills(f"{name}, {label}", side, skills)
        yield from _unknown(f"{name}, {label}", "topic", side.topics or [], set(topics))
        if not _skills_of(side, skills):
            yield f"partitions.yaml, {name}, {label}: no skill is on this side"
        if not _topics_of(side, label, shared):
            yield f"partitions.yaml, {name}, {label}: no topic is on this side"
        if isinstance(side, GroupEntry) and side.one:
            yield from _unknown_skills(f"{name}, {label}, one", side.one, skills)
            if not _skills_of(side.one, skills):
                yield f"partitions.yaml, {name}, {label}, one: no skill is named"
            both = {*_skills_of(side.one, skills)}.intersection(_skills_of(side, skills))
            yield from (
                f"partitions.yaml, {name}, {label}: {skill!r} is in `one` and beside it" for skill in sorted(both)
            )
    train, held_out = (
        _topics_of(side, at, shared) for side, at in ((entry.train, "train"), (entry.held_out, "held-out"))
    )
    yield from _overlap(name, _skills_of(entry.train, skills), _skills_of(entry.held_out, skills))
    yield from _overlap(name, train, held_out)


def _unknown_skills(at: str, listed: SkillsEntry, skills: Sequence[Skill]) -> Iterator[str]:
    yield from _unknown(at, "category", listed.categories, {s.category for s in skills})
    yield from _unknown(at, "skill", listed.skills, {s.name for s in skills})


def _template_faults(templates: Mapping[str, TemplateEntry], skills: set[str]) -> Iterator[str]:
    for name, entry in templates.items():
        if name not in skills:
            yield with_nearest(f"templates.yaml: there is no skill {name!r}", name, sorted(skills))
        if "{topic}" not in entry.slot:
            yield f"templates.yaml, {name}, slot: the clause has no {{topic}}"


def _control_faults(controls: Mapping[str, str], topics: set[str]) -> Iterator[str]:
    """Names in controls.yaml that are no topic, and topics that are there twice."""
    listed = [name for pair in controls.items() for name in pair]
    for name in dict.fromkeys(listed):
        if name not in topics:
            yield with_nearest(f"controls.yaml: there is no topic {name!r}", name, sorted(topics))
        elif listed.count(name) > 1:
            yield f"controls.yaml: the topic {name!r} is there {listed.count(name)} times"


def _unknown(location: str, kind: str, listed: Iterable[str], known: set[str]) -> Iterator[str]:
    for name in listed:
        if name not in known:
            yield with_nearest(f"partitions.yaml, {location}: there is no {kind} {name!r}", name, sorted(known))


def _overlap(location: str, train: Iterable[str], held_out: Iterable[str]) -> Iterator[str]:
    for name in sorted(set(train) & set(held_out)):
        yield f"partitions.yaml, {location}: {name!r} is on both sides"


def _skills_of(side: SkillsEntry, skills: Sequence[Skill]) -> tuple[str, ...]:
    return tuple(s.name for s in skills if s.category in side.categories or s.name in side.skills)


def _topics_of(side: SideEntry, label: str, topics: TopicSides) -> tuple[str, ...]:
    shared = topics.train if label == "train" else topics.held_out
    return tuple(side.topics if side.topics is not None else shared)


def _partition(name: str, entry: PartitionEntry, topics: TopicSides, skills: Sequence[Skill]) -> Partition:
    return Partition(
        name=name,
        train=Side(_skills_of(entry.train, skills), _topics_of(entry.train, "train", topics)),
        held_out=Side(_skills_of(entry.held_out, skills), _topics_of(entry.held_out, "held-out", topics)),
        groups={label: _group(label, group, topics, skills) for label, group in entry.groups.items()},
    )


def _group(name: str, entry: GroupEntry, topics: TopicSides, skills: Sequence[Skill]) -> Side:
    ones = _skills_of(entry.one, skills) if entry.one else ()
    one = frozenset(ones) if entry.one else None
    return Side((*_skills_of(entry, skills), *ones), _topics_of(entry, name, topics), one=one)
