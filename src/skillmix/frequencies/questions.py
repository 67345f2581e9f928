"""Ask a grader which skills passages show, and read its answers.

For each passage, a hash determines the order of the skills, which are divided into chunks of one call each. No skill is
therefore always first, or always beside the same other skills. Calls are made in the order of the sample, so if the
budget is spent early, the passages with answers are a smaller random sample.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from skillmix.calls import Decoding, GradeKey, Message, Outcome, Reply, Request, Subject, seed_for
from skillmix.catalog.catalog import Catalog, Skill
from skillmix.catalog.combinations import Combination, combination_id
from skillmix.checkers.passage import passage_of
from skillmix.checkers.registry import checker_of
from skillmix.errors import faults_error
from skillmix.experiment.experiment import GraderSettings
from skillmix.files import SHIPPED, read_text
from skillmix.frequencies.documents import SampledPassage
from skillmix.grading.reader import read_skill_points
from skillmix.hashing import ranked, short_id
from skillmix.prompts.prompt_set import fill, slots_of
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.budget import Task
from skillmix.runs.conversations import model_name
from skillmix.runs.journal import JournalReader

SHIPPED_FILE: Final = SHIPPED / "prompts" / "frequency" / "passage.txt"
_DEFINITIONS: Final = {
    "definitions": "- {s.name}: {s.definition}\n  Example: {s.example}",
    "bare_definitions": "- {s.name}: {s.definition}",
}
"""The format of a skill's entry in each slot that lists skills."""
_ALLOWED: Final = ("passage", "skills", "mark", *_DEFINITIONS)


@dataclass(frozen=True, slots=True)
class PassagePrompt:
    """A prompt template whose slots have been checked."""

    template: str

    def content_hash(self) -> str:
        """Return a hash that changes whenever the wording changes."""
        return short_id("passage prompt", self.template)

    def text(self, skills: Sequence[Skill], passage: str) -> str:
        """Fill the template for one passage. The mark is a hash of the passage, so the passage cannot contain it."""
        values = {
            "passage": passage,
            "mark": f"===== {short_id('mark', passage)} =====",
            "skills": "; ".join(skill.name for skill in skills),
        }
        for slot, layout in _DEFINITIONS.items():
            values[slot] = "\n".join(layout.format(s=skill) for skill in skills)
        return fill(self.template, values)


def load_passage_prompt(file: Path | None = None) -> PassagePrompt:
    """Load the shipped prompt or a user's prompt; report all faults in one error."""
    template = read_text(file or SHIPPED_FILE).strip()
    slots = slots_of(template)
    faults = [] if template else ["the file is empty"]
    faults += [f"missing slot: {slot}" for slot in ("passage", "skills") if slot not in slots]
    if not slots & _DEFINITIONS.keys():
        faults.append("missing slot: definitions")
    faults += [f"unknown slot: {slot}" for slot in sorted(slots - set(_ALLOWED))]
    if faults:
        raise faults_error(str(file), faults, hint=f"Slots: {', '.join(_ALLOWED)}.")
    return PassagePrompt(template)


GRADER: Final = "grader"
"""The name of the grader in call keys."""
CORPUS: Final = "corpus"
"""The name in call keys in place of a student."""
_TOPIC: Final = "any topic"
"""The topic of every question's combination."""


def shown_by_code(passage: str, skills: Iterable[str]) -> dict[str, bool]:
    """Check whether a passage shows each of the skills that have a checker."""
    split = passage_of(passage)
    return {skill: check(split) is not None for skill in skills if (check := checker_of(skill)) is not None}


@dataclass(frozen=True)
class PassageQuestions:
    """The questions about the passages of a sample."""

    passages: Sequence[SampledPassage]
    skills: Sequence[str]
    """The skills that a model must be asked about; empty if code decides all skills."""
    catalog: Catalog
    grader: GraderSettings
    prompt: PassagePrompt
    seed: int
    skills_per_call: int

    @property
    def count(self) -> int:
        """Return the number of calls, not counting repeated questions."""
        return len(self.passages) * -(-len(self.skills) // self.skills_per_call)

    def chunks(self, passage: SampledPassage) -> list[Combination]:
        """Divide the skills into chunks of nearly equal size, one for each call about a passage."""
        order = ranked(list(self.skills), "frequency", passage.id)
        number = -(-len(self.skills) // self.skills_per_call)
        # `combination_of` would order the skills in the same way for all passages.
        return [
            Combination(combination_id(skills, _TOPIC), skills, _TOPIC)
            for skills in (tuple(order[start::number]) for start in range(number))
        ]

    def all_chunks(self) -> Iterator[Combination]:
        """Yield the skills of every call."""
        for passage in self.passages:
            yield from self.chunks(passage)

    def tasks(self) -> Iterator[Task]:
        """Yield the first question about each chunk of each passage, in the order of the sample."""
        for passage in self.passages:
            for chunk in self.chunks(passage):
                yield self._task(passage, chunk, attempt=0)

    def follow(self, request: Request, outcome: Outcome) -> Iterator[Task]:
        """Repeat a question with a new key and seed if the reply leaves a skill undecided."""
        key, subject = request.key, request.subject
        if not isinstance(key, GradeKey) or subject is None or not isinstance(outcome, Reply):
            return
        if key.attempt + 1 < self.grader.attempts and None in read_answer(subject, outcome.text):
            yield self._task(self._by_id[key.text], subject.combination, attempt=key.attempt + 1)

    def answers(self, journal: JournalReader) -> dict[str, dict[str, bool | None]]:
        """Return whether each passage shows each skill, by passage and skill.

        The first parseable point of all attempts counts. A skill is None if its call has an outcome but no parseable
        point, and absent if its call was not made.
        """
        wanted = {(passage.id, chunk.id): chunk for passage in self.passages for chunk in self.chunks(passage)}
        found: dict[str, dict[str, bool | None]] = {}
        for call in journal.calls("grade"):
            key = call.key
            if not isinstance(key, GradeKey) or (key.student, key.grader) != (CORPUS, GRADER) or call.outcome is None:
                continue
            chunk = wanted.get((key.text, key.combination))
            if chunk is None:
                continue
            of_passage = found.setdefault(key.text, {})
            points: Sequence[float | None] = (None,) * len(chunk.skills)
            if isinstance(call.outcome, Reply):
                points = read_answer(Subject(chunk, text=self._by_id[key.text].text), call.outcome.text)
            for skill, point in zip(chunk.skills, points, strict=True):
                if of_passage.get(skill) is None:
                    of_passage[skill] = None if point is None else point > _HALF
        return found

    @cached_property
    def _by_id(self) -> Mapping[str, SampledPassage]:
        return {passage.id: passage for passage in self.passages}

    @cached_property
    def _model(self) -> str:
        assert self.grader.asked is not None  # if the grader is code, there are no questions
        return model_name(self.grader.asked)

    def _task(self, passage: SampledPassage, chunk: Combination, *, attempt: int) -> Task:
        settings = self.grader
        key = GradeKey(CORPUS, chunk.id, 0, passage.id, GRADER, 0, attempt)
        system = () if settings.system is None else (Message("system", settings.system),)
        skills = [self.catalog.skill(name) for name in chunk.skills]
        messages = (*system, Message("user", self.prompt.text(skills, passage.text)))
        decoding = Decoding(settings.temperature, settings.max_tokens, settings.top_p, settings.extra_json)
        seed = seed_for(self.seed, key) if settings.sends_seed else None
        subject = Subject(chunk, chunk.skills, passage.text)
        return Task(f"grader:{GRADER}", Request(key, self._model, messages, decoding, seed, subject))


_HALF: Final = 0.5
"""Points up to this value mean that the passage does not show the skill, as in a vote of one round."""


def read_answer(subject: Subject, reply: str) -> tuple[float | None, ...]:
    """Read the points in a reply, ignoring quotations from the passage that look like points."""
    combination = subject.combination
    return read_skill_points(rubric_of(combination.skills, combination.topic), reply, text=subject.text)


def with_code(
    answers: Mapping[str, Mapping[str, bool | None]], passages: Iterable[SampledPassage], skills: Sequence[str]
) -> dict[str, dict[str, bool | None]]:
    """Add the answers of code about the skills that have a checker."""
    return {passage.id: {**answers.get(passage.id, {}), **shown_by_code(passage.text, skills)} for passage in passages}
