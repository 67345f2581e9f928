"""Prompt sets, shipped or the user's own: folders of templates with named slots, and the values of these slots.

`generate-1.txt` and `generate-2.txt` are the turns of the student, and each `grade-*.txt` is a variant of the grader's
prompt. Missing and unknown slots are errors.
"""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from shutil import rmtree
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from skillmix.catalog.catalog import Catalog, Skill
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError, faults_error
from skillmix.files import SHIPPED, accepted_if, checked_yaml, read_text, with_nearest
from skillmix.hashing import digest, short_id
from skillmix.prompts.rubric import (
    OUTPUT_FORMATS,
    FormatName,
    OutcomePhrases,
    Phrases,
    length_limit,
    limit_in_words,
    rubric_of,
)
from skillmix.render import did_you_mean, name_hint

SLOTS: Final = {
    "topic": ("topic", "items"),
    "skills": ("skills", "skills_str", "items"),
    "definitions": ("definitions", "bare_definitions", "examples", "skills_defs_and_examples_simple", "skills_defs"),
    "limit": ("limit", "num_sentences_str"),
    "answer": ("answer", "student_answer"),
    "criteria": ("criteria", "rubric_items"),
}
"""The slot names for each part of a prompt: skillmix's own names, and the names in the original SKILL-MIX templates.

Slots with an original name have the original layout, so that the original files load unchanged and produce the original
prompts.
"""
_LAYOUTS: Final = {
    "definitions": "- {s.name}: {s.definition}\n  Example: {s.example}",
    "bare_definitions": "- {s.name}: {s.definition}",
    "examples": "- {s.name}: {s.example}",
    "skills_defs_and_examples_simple": "**{s.name}**: {s.definition} For example, {s.example}",
    "skills_defs": "**{s.name}**: {s.definition}",
}
"""For each slot of definitions or examples, the format of one skill's line."""

LEAD_FILE: Final = "generate-0.txt"
"""An optional turn before the first, answered with the catalog's examples; the first turn then needs no definitions.

Small models follow instructions poorly, but are good at continuing text that appears to be their own.
"""
STUDENT_FILES: Final = ("generate-1.txt", "generate-2.txt")
"""The turns of a student. Without the second file, a conversation has one turn, and the whole reply is the text."""
PLAIN_FILES: Final = ("plain-1.txt", "plain-2.txt")
"""The optional prompts for combinations without skills (k = 0)."""
_STUDENT_PARTS: Final = {
    LEAD_FILE: ("skills",),
    "generate-1.txt": ("topic", "skills", "definitions"),
    "generate-2.txt": ("limit",),
    "plain-1.txt": ("topic",),
    "plain-2.txt": ("limit",),
}
"""The parts that each student template must have. In a set with one turn, definitions are optional."""
ANY_SKILL: Final = Skill("any skill", "", "", "")
"""A placeholder for skills that a request does not name."""

DEFAULT_VARIANT: Final = "gpt"
_GRADER_FILE: Final = re.compile(r"grade-([a-z0-9][a-z0-9._-]*)\.txt")
_GRADER_ONLY: Final = ("answer", "criteria")
_GRADER_PARTS: Final = ("topic", "skills", "definitions", "limit", *_GRADER_ONLY)
_OUTCOME_PARTS: Final = ("topic", *_GRADER_ONLY)
"""The parts that a grader prompt must have if it asks for an outcome."""
KNOWN_FILES: Final = f"{', '.join(_STUDENT_PARTS)}, and grade-NAME.txt with a lowercase NAME for each grader prompt"


def is_known(file: str) -> bool:
    """Return whether a prompt set may have a template of this name.

    >>> is_known("grade-mine.txt"), is_known("grade_mine.txt")
    (True, False)
    """
    return file in _STUDENT_PARTS or _GRADER_FILE.fullmatch(file) is not None


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """A conversation that the student sees as an example."""

    skills: tuple[Skill, ...]
    topic: str
    answers: tuple[str, str]


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Templates by file name, and the phrases of the criteria."""

    name: str
    templates: Mapping[str, str]
    phrases: Phrases
    examples: tuple[WorkedExample, ...] = ()
    """Conversations that the student sees as its own earlier turns."""

    def content_hash(self) -> str:
        """Hash all texts of the set."""
        parts: list[object] = [dict(self.templates), self.phrases.wording]
        if self.examples:
            skills = [[[s.name, s.definition, s.example] for s in example.skills] for example in self.examples]
            parts.append([skills, [[example.topic, example.answers] for example in self.examples]])
        return short_id("prompts", *parts)

    def lead_turns(self, catalog: Catalog, combination: Combination) -> list[tuple[str, str]]:
        """Return the turn before the first, if the set has one: a prompt, and the catalog's examples as the reply."""
        return self._lead([catalog.skill(name) for name in combination.skills], combination.topic)

    def _lead(self, skills: Sequence[Skill], topic: str) -> list[tuple[str, str]]:
        if LEAD_FILE not in self.templates:
            return []
        prompt = fill(self.templates[LEAD_FILE], _values_of(skills, topic, self._slots(LEAD_FILE)))
        return [(prompt, self.said(" ".join(skill.example for skill in skills)))]

    def worked_turns(self) -> list[tuple[str, str]]:
        """Return the turns of the few-shot examples, each a prompt and a reply."""
        turns = []
        files = STUDENT_FILES[: self.turns]
        slots = self._slots(*files)
        for example in self.examples:
            turns += self._lead(example.skills, example.topic)
            values = _values_of(example.skills, example.topic, slots)
            for file, answer in zip(files, example.answers[-self.turns :], strict=True):
                turns.append((fill(self.templates[file], values), self.said(answer)))
        return turns

    @property
    def turns(self) -> int:
        """Return the number of turns of a conversation: two with generate-2.txt, else one."""
        return len([file for file in STUDENT_FILES if file in self.templates])

    def said(self, text: str) -> str:
        """Format a text as a student's reply: after 'Answer:', or unchanged in a conversation of one turn."""
        return text if self.turns == 1 else f"Answer: {text}"

    def student_prompts(
        self, catalog: Catalog, combination: Combination, *, named: str | None = None
    ) -> tuple[str, ...]:
        """Build the student's prompts, turn by turn, each with the request for an output format, if any.

        If one skill is `named`, the prompts say "any skill" in place of each other skill.
        """
        files = STUDENT_FILES[: self.turns] if combination.skills else self.require_plain()
        values = self._values_for(catalog, combination, self._slots(*files), named)
        form = self.phrases.format
        end = "" if form is None else f"\n\n{OUTPUT_FORMATS[form].request}"
        return tuple([f"{fill(self.templates[file], values)}{end}" for file in files])

    def require_plain(self) -> tuple[str, ...]:
        """Return the files for turns without skills, or raise an error if the set lacks them."""
        wanted = PLAIN_FILES[: self.turns]
        missing = [file for file in wanted if file not in self.templates]
        if missing:
            raise UserError(
                f"Prompt set {self.name!r} has no prompts for k = 0: it lacks {' and '.join(missing)}.",
                hint="Add the missing files, or start at k = 1.",
            )
        return wanted

    def require_bare_turn(self) -> None:
        """Reject a set with several turns, whose replies cannot be joined."""
        if self.turns > 1 or LEAD_FILE in self.templates:
            fault = f"Prompt set {self.name!r} has several turns, but a joined student needs a set with one."
            raise UserError(fault, hint="Set prompts: brief, or remove the joined student.")

    def criteria(self, combination: Combination) -> tuple[str, ...]:
        """Return the criteria of a combination in the words of the grader's prompt."""
        rubric = rubric_of(combination.skills, combination.topic, phrases=self.phrases)
        return tuple([criterion.phrase for criterion in rubric.criteria])

    @property
    def grader_variants(self) -> list[str]:
        """Return the variants of the grader's prompt by name, the default first."""
        names = [match[1] for match in map(_GRADER_FILE.fullmatch, self.templates) if match]
        return sorted(names, key=lambda name: (name != DEFAULT_VARIANT, name))

    def grader_prompt(self, catalog: Catalog, combination: Combination, *, answer: str, variant: str) -> str:
        """Build the prompt that asks a grader about one answer."""
        file = self.grader_file(variant)
        phrases = self.criteria(combination)
        values = self._values_for(catalog, combination, self._slots(file)) | {
            "answer": answer,
            "student_answer": answer,
            "criteria": "\n".join(f"- {phrase}" for phrase in phrases),
            "rubric_items": ", ".join(phrases),
        }
        return fill(self.templates[file], values)

    def grader_file(self, variant: str) -> str:
        """Return the file name of a variant of the grader's prompt, or raise an error if the variant is unknown."""
        file = f"grade-{variant}.txt"
        if file not in self.templates:
            known = f"Its grader prompts: {', '.join(self.grader_variants) or 'none'}. To add this one, write {file}."
            hint = name_hint(variant, self.grader_variants, otherwise=known)
            raise UserError(f"Prompt set {self.name!r} has no grader prompt {variant!r}.", hint=hint)
        return file

    def _values_for(
        self, catalog: Catalog, combination: Combination, slots: Container[str], named: str | None = None
    ) -> dict[str, str]:
        skills = [catalog.skill(name) if named in (None, name) else ANY_SKILL for name in combination.skills]
        place = int.from_bytes(digest("place of the topic", combination.id, size=6)) % (len(skills) + 1)
        return _values_of(skills, combination.topic, slots, self.phrases.format, place)

    def _slots(self, *files: str) -> frozenset[str]:
        return frozenset().union(*[slots_of(self.templates[file]) for file in files])


def prompt_set(
    name: str, files: Mapping[str, str], *, phrases: Phrases | None = None, examples: tuple[WorkedExample, ...] = ()
) -> PromptSet:
    """Make a prompt set from the texts of its files, or report all their faults in one error."""
    faults = [] if STUDENT_FILES[0] in files else [f"{STUDENT_FILES[0]}: the file is missing"]
    phrases = phrases or Phrases()
    of_grader = [slot for part in _GRADER_ONLY for slot in SLOTS[part]]
    of_all = [slot for part, slots in SLOTS.items() if part not in _GRADER_ONLY for slot in slots]
    templates = {file: text.strip() for file, text in files.items()}
    for file, template in templates.items():
        required = set(_STUDENT_PARTS.get(file, _OUTCOME_PARTS if phrases.outcomes else _GRADER_PARTS))
        if file == STUDENT_FILES[0] and LEAD_FILE in files:
            required -= {"skills", "definitions"}
        if file == STUDENT_FILES[0] and STUDENT_FILES[1] not in files:
            required -= {"definitions"}
        slots, allowed = slots_of(template), sorted({*of_all, *(() if file in _STUDENT_PARTS else of_grader)})
        faults += [] if template else [f"{file}: the file is empty"]
        faults += [f"{file}: missing slot: {part}" for part in SLOTS if part in required and not slots & {*SLOTS[part]}]
        unknown = sorted(slots.difference(allowed))
        faults += [with_nearest(f"{file}: unknown slot: {slot}", slot, allowed) for slot in unknown]
    for field, wanted in (("skill", {"skill"}), ("topic", {"topic"}), ("sense", set()), ("length", {"limit"})):
        if slots_of(getattr(phrases, field)) != wanted:
            slots_wanted = " and ".join(f"{{{slot}}}" for slot in sorted(wanted)) or "no slot"
            faults.append(f"criteria.yaml: {field} must have {slots_wanted}")
    if faults:
        hint = f"Slots of all .txt files: {', '.join(of_all)}. Slots of grade-*.txt only: {', '.join(of_grader)}."
        raise faults_error(f"Prompt set {name!r}", faults, hint=hint)
    return PromptSet(name=name, templates=templates, phrases=phrases, examples=examples)


def _values_of(
    skills: Sequence[Skill], topic: str, slots: Container[str], form: FormatName | None = None, place: int = 0
) -> dict[str, str]:
    """Compute the values of slots; build definitions only for those in `slots`, because building them is slow.

    `place` is the number of items before the topic.
    """
    limit = limit_in_words(length_limit(len(skills), form), form)
    names = [skill.name for skill in skills] or ["none"]
    values = {
        "topic": topic,
        "skills": "; ".join(names),
        "skills_str": ", ".join(names),
        "items": "; ".join([*names[:place], f"topic: {topic}", *names[place:]]),
        "limit": limit,
        "num_sentences_str": limit,
    }
    for slot, layout in _LAYOUTS.items():
        if slot in slots:
            values[slot] = "\n".join([_line(skill, layout) for skill in skills if skill is not ANY_SKILL])
    return values


@lru_cache(maxsize=4096)
def _line(skill: Skill, layout: str) -> str:
    return layout.format(s=skill)


def fill(template: str, values: Mapping[str, str]) -> str:
    """Fill the slots of a template in one pass, so that braces in the values are left unchanged.

    >>> fill("On {topic}.", {"topic": "{skills}", "limit": "one sentence"})
    'On {skills}.'
    """
    parts = list(_parts(template))
    parts[1::2] = [values[slot] for slot in parts[1::2]]
    return "".join(parts)


@lru_cache(maxsize=256)
def slots_of(template: str) -> frozenset[str]:
    """Return the names of the slots in a template; other braces are plain text.

    >>> sorted(slots_of("{topic} and {skills}, {not a slot} {}"))
    ['skills', 'topic']
    """
    return frozenset(_parts(template)[1::2])


_SLOT: Final = re.compile(r"\{([a-z_][a-z0-9_]*)\}")


@lru_cache(maxsize=256)
def _parts(template: str) -> tuple[str, ...]:
    """Split a template into alternating texts and slots; cached, because a large data set fills it a million times."""
    return tuple(_SLOT.split(template))


_OneLine = Annotated[
    str, accepted_if(re.compile(r"[^\n|]*\S[^\n|]*").fullmatch, "must be one line of text without '|'")
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _OutcomesEntry(_Strict):
    complies: _OneLine
    refuses: _OneLine
    evades: _OneLine


class _CriteriaFile(_Strict):
    skill: _OneLine = Phrases().skill
    topic: _OneLine = Phrases().topic
    sense: _OneLine = Phrases().sense
    length: _OneLine = Phrases().length
    outcomes: _OutcomesEntry | None = None


class _ExampleSkill(_Strict):
    name: str
    definition: str
    example: str


class _ExampleEntry(_Strict):
    topic: str
    skills: Annotated[list[_ExampleSkill], Field(min_length=1)]
    answers: Annotated[list[str], Field(min_length=1, max_length=2)]


@cache
def shipped_prompt_sets() -> tuple[str, ...]:
    """Return the names of the shipped prompt sets."""
    return tuple(sorted(path.parent.name for path in (SHIPPED / "prompts").glob("*/generate-1.txt")))


def prompt_folder(name: str) -> Path:
    """Return the folder of a shipped prompt set, or else the path itself."""
    return SHIPPED / "prompts" / name if name in shipped_prompt_sets() else Path(name)


def turns_with(name: str) -> int:
    """Return the number of turns that a prompt set's files define, or two if its folder no longer exists."""
    first, second = (prompt_folder(name) / file for file in STUDENT_FILES)
    return 1 if first.is_file() and not second.is_file() else 2


def load_prompts(name: str, output_format: FormatName | None = None) -> PromptSet:
    """Load a shipped prompt set by name, or a folder by path; its prompts request the output format, if any."""
    if name in shipped_prompt_sets():
        return _shipped_set(SHIPPED / "prompts" / name, name, output_format)
    folder = Path(name)
    if not folder.is_dir():
        known = f"Shipped: {', '.join(shipped_prompt_sets())}. Or give a folder that has generate-1.txt."
        hint = name_hint(name, shipped_prompt_sets(), otherwise=known)
        raise UserError(f"There is no prompt set {name!r}.", hint=hint)
    return _set_in(folder, folder.resolve().name, output_format)


def _set_in(folder: Path, name: str, output_format: FormatName | None) -> PromptSet:
    files = sorted(file.name for file in folder.glob("*.txt"))
    unknown = [file for file in files if not is_known(file)]
    if unknown:
        questions = [did_you_mean(file, (*STUDENT_FILES, *PLAIN_FILES, LEAD_FILE)) for file in unknown]
        hint = " ".join([*filter(None, questions), f"Known: {KNOWN_FILES}."])
        raise UserError(f"Prompt set {name!r} has files with unknown names: {', '.join(unknown)}.", hint=hint)
    texts = {file: read_text(folder / file) for file in files if (folder / file).is_file()}
    phrases, examples = Phrases(), tuple[WorkedExample, ...]()
    criteria, conversations = folder / "criteria.yaml", folder / "examples.yaml"
    if criteria.is_file():
        worded = checked_yaml(criteria, _CriteriaFile, hint="Keys: skill, topic, sense, length and outcomes.")
        outcomes = OutcomePhrases(**worded.outcomes.model_dump()) if worded.outcomes else None
        phrases = Phrases(worded.skill, worded.topic, worded.sense, worded.length, outcomes)
    if conversations.is_file():
        hint = "Each entry has a topic, skills with name, definition and example, and one or two answers."
        examples = tuple(
            WorkedExample(
                skills=tuple(Skill(s.name, "", s.definition, s.example) for s in entry.skills),
                topic=entry.topic,
                answers=(entry.answers[0], entry.answers[-1]),
            )
            for entry in checked_yaml(conversations, list[_ExampleEntry], hint=hint)
        )
    return prompt_set(name, texts, phrases=replace(phrases, format=output_format), examples=examples)


_shipped_set = cache(_set_in)
"""Loads a shipped set and caches it, because a run needs the set a dozen times."""


def copy_prompts(name: str, folder: Path) -> list[str]:
    """Copy the files of a prompt set into a new or empty folder, and return their names."""
    load_prompts(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not an empty folder.", hint="Choose a new folder.")
    source = prompt_folder(name)
    names = sorted(file.name for file in source.iterdir() if file.suffix in (".txt", ".yaml"))
    was_there = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for file in names:
            (folder / file).write_bytes((source / file).read_bytes())
    except OSError:
        if not was_there:
            rmtree(folder, ignore_errors=True)
        raise
    return names
