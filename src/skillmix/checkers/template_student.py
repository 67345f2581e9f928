"""A student that games the grader by joining one fixed clause for each skill and naming the topic.

Because its texts say nothing, the student's scores show how robust a measure is. Its first form names the topic in one
clause, its second form in every clause. The student tries several ways to join the clauses and keeps the first text
that earns full marks by code, so it exploits the checkers as well as a fine-tuned model could.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, permutations
from typing import Final, Literal, get_args

from skillmix.checkers.judge import Judge, Verdict
from skillmix.grading.answers import names_skill
from skillmix.prompts.rubric import sentence_limit

Form = Literal["fixed", "slot"]
FORMS: Final[tuple[Form, ...]] = get_args(Form)
MOST_ORDERS: Final = 24
"""The maximum number of orders of clauses that the student tries."""

_JOINTS: Final = ("; ", ", and ")
_ENDS: Final = ("?", "...")


@dataclass(frozen=True, slots=True)
class TemplateText:
    """A text by the template student, and the code's verdict."""

    text: str
    verdict: Verdict
    has_full_marks: bool


class TemplateStudent:
    """A student that builds texts from the clauses of a catalog."""

    def __init__(self, templates: Mapping[str, Mapping[str, str]], judge: Judge) -> None:
        self._templates = templates
        self._judge = judge

    def write(self, skills: Sequence[str], topic: str, form: Form = "fixed") -> TemplateText | None:
        """Return the first text with full marks, or else the first text; None if a skill has no clause."""
        if not all(skill in self._templates for skill in skills):
            return None
        first: TemplateText | None = None
        for text in self._texts(skills, topic, form):
            verdict = self._judge.judge(text, skills=skills, topic=topic)
            shown = all(verdict.evidence.get(skill) is not None for skill in skills)
            named = any(names_skill(text, skill) for skill in skills)
            # The length need not be checked, because the student never writes too many sentences.
            is_full = shown and not named and verdict.topic is not None and verdict.nonsense is None
            written = TemplateText(text, verdict, is_full)
            if written.has_full_marks:
                return written
            first = first or written
        return first

    def _texts(self, skills: Sequence[str], topic: str, form: Form) -> Iterator[str]:
        """Yield texts of k - 1 sentences, so that two clauses share a sentence."""
        name = topic.lower()
        slots = len(skills) if form == "slot" else 1
        # A clause that breaks off can only come last in its sentence.
        ordered = sorted(skills, key=lambda skill: self._templates[skill][form].endswith("..."))
        for order in islice(permutations(ordered), MOST_ORDERS):
            clauses = [
                self._templates[skill]["slot" if number < slots else "fixed"].replace("{topic}", name)
                for number, skill in enumerate(order)
            ]
            for joint in _JOINTS if len(order) > 1 else _JOINTS[:1]:
                yield _joined(clauses, joint)


def _joined(clauses: Sequence[str], joint: str) -> str:
    """Join clauses into one text; a question mark in the middle of a sentence moves to the end."""
    shared = len(clauses) - sentence_limit(len(clauses)) + 1
    inner = clauses[: shared - 1]
    last = clauses[shared - 1]
    if any(clause.endswith("?") for clause in inner) and not last.endswith(_ENDS):
        last += "?"
    first = joint.join([*(clause.rstrip("?") for clause in inner), last])
    sentences = []
    for words in (first, *clauses[shared:]):
        start = 1 if words[0] == '"' else 0
        capital = words[:start] + words[start].upper() + words[start + 1 :]
        closed = f'{capital[:-1]}."' if words.endswith('"') else f"{capital}."
        sentences.append(capital if words.endswith(_ENDS) else closed)
    return " ".join(sentences)
