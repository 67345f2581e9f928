"""Scripted models behind a server: only the messages are known, so tasks are read from the shipped prompts."""

import re
from dataclasses import replace
from typing import Final

from skillmix.calls import Outcome, Request, Subject
from skillmix.catalog.catalog import RESERVED_NAMES
from skillmix.catalog.combinations import Combination
from skillmix.models.scripted import ScriptedModel
from skillmix.prompts.rubric import OUTCOMES

_DEFINITION = re.compile(r"^(?:- |\*\*)(?P<name>[^\n]+?)(?:\*\*)?: ", re.MULTILINE)
_CRITERION = re.compile(r"^- (?P<phrase>[^\n:]+)$", re.MULTILINE)
_TOPIC = re.compile(r"(?:about (?:this topic: |the topic \")|^Topic: )(?P<topic>[^\n\"]+)", re.MULTILINE)
_IN_A_LINE = re.compile(r"example of (?P<names>[^\n]+?), this time about (?P<topic>[^\n]+?), at most ")
"""How the prompt set `worked` names skills and topic."""
_ITEMS = re.compile(r"(?:[^\n]+; )?topic: (?P<topic>[^\n;]+)(?:; [^\n]+)?")
"""The whole prompt of the set `brief`: names and the topic in any order."""
_BETWEEN: Final = "=========="
"""The line before and after the text in the shipped prompts for graders."""


class ReadingModel(ScriptedModel):
    """A scripted model that finds skills and topic in the wording of the shipped prompts."""

    def answer(self, request: Request) -> Outcome:
        subject = request.subject or (_writing if self._is_student else _grading)(request)
        return super().answer(replace(request, subject=subject))


def _writing(request: Request) -> Subject | None:
    """A student's task, read from a shipped prompt; None for any other prompt."""
    prompts = [m.content for m in request.messages if m.role == "user"]
    items = _ITEMS.fullmatch(prompts[-1]) if prompts else None
    if items:
        return _subject([item for item in items[0].split("; ") if not item.startswith("topic: ")], items)
    # The last match counts, because worked examples come before the task itself.
    patterns = (_DEFINITION, _IN_A_LINE)
    first = next((prompt for prompt in reversed(prompts) if any(p.search(prompt) for p in patterns)), "")
    in_a_line = _IN_A_LINE.search(first)
    names = in_a_line["names"].split("; ") if in_a_line else [match["name"] for match in _DEFINITION.finditer(first)]
    return _subject(names, in_a_line or _TOPIC.search(first))


def _grading(request: Request) -> Subject | None:
    """A grader's task, read from a shipped prompt; None for any other prompt."""
    prompt = request.messages[-1].content
    names = [match["name"] for match in _DEFINITION.finditer(prompt)]
    phrases = [match["phrase"] for match in _CRITERION.finditer(prompt)]
    before, _, rest = prompt.partition(f"{_BETWEEN}\n")
    answer, end, _ = rest.partition(f"\n{_BETWEEN}")
    subject = _subject(names, _TOPIC.search(before))
    if len(phrases) == len(OUTCOMES) and end:
        return Subject(subject.combination if subject else Combination("", (), ""), tuple(phrases), answer)
    if subject is None or not end or len(phrases) != len(names) + len(RESERVED_NAMES):
        return None
    return Subject(subject.combination, tuple(phrases), answer)


def _subject(names: list[str], topic: re.Match[str] | None) -> Subject | None:
    return Subject(Combination("", tuple(names), topic["topic"])) if names and topic else None
