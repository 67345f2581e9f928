"""Prompts as data: templates with checked slots, and what fills them."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, get_args

from skillmix.catalog.catalog import Catalog, Skill
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError, faults_error
from skillmix.hashing import short_id
from skillmix.prompts.rubric import Phrases, limit_in_words, rubric_of, sentence_limit
from skillmix.prompts.templates import fill_from, slots_of

GraderVariant = Literal["gpt", "claude", "llama2"]
GRADER_VARIANTS: Final[tuple[GraderVariant, ...]] = get_args(GraderVariant)

SLOTS: Final = {
    "topic": ("topic",),
    "skills": ("skills", "skills_str"),
    "definitions": ("definitions", "bare_definitions", "examples", "skills_defs_and_examples_simple", "skills_defs"),
    "limit": ("limit", "num_sentences_str"),
    "answer": ("answer", "student_answer"),
    "criteria": ("criteria", "rubric_items"),
}
"""What a template may ask for, and the slots that give it: ours first, then those of the original SKILL-MIX
templates, which fill in its layout, so that its files load unchanged and render to the letter."""


@dataclass(frozen=True, slots=True)
class TemplateKind:
    """What the template of one file must ask for; more of `SLOTS` may be used if it can be known."""

    file: str
    required: tuple[str, ...]


_GRADED: Final = ("answer", "criteria")
KINDS: Final = {
    kind.file: kind
    for kind in (
        TemplateKind("generate-0.txt", ("skills",)),
        TemplateKind("generate-1.txt", ("topic", "skills", "definitions")),
        TemplateKind("generate-2.txt", ("limit",)),
        *(
            TemplateKind(f"grade-{variant}.txt", ("topic", "skills", "definitions", "limit", *_GRADED))
            for variant in GRADER_VARIANTS
        ),
    )
}
STUDENT_FILES: Final = ("generate-1.txt", "generate-2.txt")
LEAD_FILE: Final = "generate-0.txt"
"""A turn before the first, answered with the catalogue's examples: a small model goes on from what it seems to have
said better than from what it is told. A set that has it may leave names and definitions out of the first turn."""
_LAYOUTS: Final = {
    "definitions": "- {s.name}: {s.definition}\n  Example: {s.example}",
    "bare_definitions": "- {s.name}: {s.definition}",
    "examples": "- {s.name}: {s.example}",
    "skills_defs_and_examples_simple": "**{s.name}**: {s.definition} For example, {s.example}",
    "skills_defs": "**{s.name}**: {s.definition}",
}
"""A line for each skill, in the slots that give definitions."""


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """A whole conversation that shows a student what is wanted."""

    skills: tuple[Skill, ...]
    topic: str
    answers: tuple[str, str]


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The templates of one wording, by file name, and its phrases for the criteria."""

    name: str
    templates: Mapping[str, str]
    phrases: Phrases
    examples: tuple[WorkedExample, ...] = ()
    """Stand before the student's own conversation, as earlier turns."""

    def content_hash(self) -> str:
        """Changes when any wording does."""
        phrases = self.phrases
        wording = [phrases.skill, phrases.topic, phrases.sense, phrases.length]
        parts: list[object] = [dict(self.templates), wording]
        if self.examples:
            told = [[[s.name, s.definition, s.example] for s in example.skills] for example in self.examples]
            parts.append([told, [[example.topic, example.answers] for example in self.examples]])
        return short_id("prompts", *parts)

    def lead_turns(self, catalog: Catalog, combination: Combination) -> list[tuple[str, str]]:
        """What stands right before the first turn: the skills asked for and shown by the catalogue's own examples."""
        return self._lead([catalog.skill(name) for name in combination.skills], combination.topic)

    def _lead(self, skills: Sequence[Skill], topic: str) -> list[tuple[str, str]]:
        if LEAD_FILE not in self.templates:
            return []
        asked = fill_from(self.templates[LEAD_FILE], _values_of(skills, topic, self._slots(LEAD_FILE)))
        return [(asked, f"Answer: {' '.join(skill.example for skill in skills)}")]

    def worked_turns(self) -> list[tuple[str, str]]:
        """What the student is asked and answers in the examples, turn by turn; nothing without examples."""
        turns = []
        slots = self._slots(*STUDENT_FILES)
        for example in self.examples:
            turns += self._lead(example.skills, example.topic)
            values = _values_of(example.skills, example.topic, slots)
            for file, answer in zip(STUDENT_FILES, example.answers, strict=True):
                turns.append((fill_from(self._template(file), values), f"Answer: {answer}"))
        return turns

    def student_prompts(self, catalog: Catalog, combination: Combination) -> tuple[str, str]:
        """What the student is asked in turn 1 and in turn 2."""
        values = _values(catalog, combination, self._slots(*STUDENT_FILES))
        first, second = [fill_from(self._template(file), values) for file in STUDENT_FILES]
        return first, second

    def criteria(self, combination: Combination) -> tuple[str, ...]:
        """What a grader is asked to give points for, in this wording."""
        rubric = rubric_of(combination.skills, combination.topic, phrases=self.phrases)
        return tuple([criterion.phrase for criterion in rubric.criteria])

    def grader_prompt(self, catalog: Catalog, combination: Combination, *, answer: str, variant: GraderVariant) -> str:
        """What a grader is asked about one answer."""
        phrases = self.criteria(combination)
        file = f"grade-{variant}.txt"
        values = _values(catalog, combination, self._slots(file)) | {
            "answer": answer,
            "student_answer": answer,
            "criteria": "\n".join(f"- {phrase}" for phrase in phrases),
            "rubric_items": ", ".join(phrases),
        }
        return fill_from(self._template(file), values)

    def _slots(self, *files: str) -> frozenset[str]:
        return frozenset().union(*[slots_of(self._template(file)) for file in files])

    def _template(self, file: str) -> str:
        if file not in self.templates:
            raise UserError(
                f"Prompt set {self.name!r} has no {file}.",
                hint=f"It has: {', '.join(sorted(self.templates))}.",
            )
        return self.templates[file]


def prompt_set(
    name: str,
    files: Mapping[str, str],
    *,
    phrases: Phrases | None = None,
    examples: tuple[WorkedExample, ...] = (),
) -> PromptSet:
    """A prompt set from its files' texts; every fault of every file is reported at once."""
    faults = [f"{file}: the set needs this file" for file in STUDENT_FILES if file not in files]
    phrases = phrases or Phrases()
    templates = {}
    for file, text in files.items():
        templates[file] = text.strip()
        told_before = ("skills", "definitions") if file == "generate-1.txt" and LEAD_FILE in files else ()
        faults += [f"{file}: {fault}" for fault in _slot_faults(KINDS[file], templates[file], told_before)]
    for field, wanted in (
        ("skill", {"skill"}),
        ("topic", {"topic"}),
        ("sense", set()),
        ("length", {"limit"}),
    ):
        if slots_of(getattr(phrases, field)) != wanted:
            faults.append(f"criteria.yaml: {field} must have the slots {sorted(wanted) or 'none'}")
    if faults:
        raise faults_error(f"Prompt set {name!r}", faults, hint=_known_slots())
    return PromptSet(name=name, templates=templates, phrases=phrases, examples=examples)


def _values(catalog: Catalog, combination: Combination, slots: Container[str]) -> dict[str, str]:
    return _values_of([catalog.skill(name) for name in combination.skills], combination.topic, slots)


def _values_of(skills: Sequence[Skill], topic: str, slots: Container[str]) -> dict[str, str]:
    """What may be asked for, and of the definitions those that are."""
    limit = limit_in_words(sentence_limit(len(skills)))
    names = [skill.name for skill in skills]
    values = {
        "topic": topic,
        "skills": "; ".join(names),
        "skills_str": ", ".join(names),
        "limit": limit,
        "num_sentences_str": limit,
    }
    for slot, layout in _LAYOUTS.items():
        if slot in slots:
            values[slot] = _lines(skills, layout)
    return values


def _lines(skills: Sequence[Skill], layout: str) -> str:
    return "\n".join([_told(skill, layout) for skill in skills])


@lru_cache(maxsize=4096)
def _told(skill: Skill, layout: str) -> str:
    return layout.format(s=skill)


def _known_slots() -> str:
    graded = [slot for part in _GRADED for slot in SLOTS[part]]
    others = [slot for part, names in SLOTS.items() if part not in _GRADED for slot in names]
    return f"Slots of the .txt files: {', '.join(others)}; of a grader's file also: {', '.join(graded)}."


def _slot_faults(kind: TemplateKind, template: str, told_before: Container[str]) -> list[str]:
    slots = slots_of(template)
    graded = set(_GRADED) & set(kind.required)
    allowed = {slot for part, names in SLOTS.items() if part not in _GRADED or graded for slot in names}
    faults = [] if template else ["the file is empty"]
    required = [part for part in kind.required if part not in told_before]
    faults += [f"missing slot: {part}" for part in required if not slots & set(SLOTS[part])]
    return faults + [f"unknown slot: {slot}" for slot in sorted(slots - allowed)]
