"""Explain in plain words why code denied a point."""

from collections.abc import Mapping, Sequence
from typing import Final

from skillmix.catalog.catalog import RESERVED_NAMES
from skillmix.catalog.names import before_parenthesis
from skillmix.grading.answers import Answer, AnswerStatus, Rules, names_skill
from skillmix.grading.formats.format_checks import check_format
from skillmix.grading.outcomes.outcome_points import own_outcome
from skillmix.grading.points import Points, earns_nothing
from skillmix.grading.replies.thoughts import CUT_IN_THOUGHT
from skillmix.grading.sentences import count_sentences
from skillmix.prompts.output_formats import OUTPUT_FORMATS, FormatName
from skillmix.prompts.rubric import sentence_limit
from skillmix.render import CUT, plural


def reasons_of(
    points: Points,
    skills: Sequence[str],
    answer: Answer,
    rules: Rules,
    checker_reasons: Mapping[str, str],
    *,
    is_cut: bool | None = None,
) -> dict[str, str]:
    """The reason for each point that code denied, by criterion.

    `checker_reasons` are the reasons that the text's checkers and its output format give. A point that a model's votes
    denied has no reason. A reply that ended at the token limit explains a missing marker and a text that breaks off.

    >>> from skillmix.grading.answers import RULES
    >>> answer = Answer("Time is a thief. It steals. It runs.", "fine")
    >>> reasons_of((True, True, True, False), ["metaphor"], answer, RULES["default"], {})
    {'length': 'it has 3 sentences where 1 is allowed'}
    """
    names = (*skills, *RESERVED_NAMES)
    denied = [name for name, point in zip(names, points, strict=True) if point is False]
    if earns_nothing(answer, rules):
        return dict.fromkeys(denied, _with_cut(_WHY_NOTHING[answer.status], is_cut=is_cut))
    reasons: dict[str, str] = {}
    for name in denied:
        reason = checker_reasons.get(name)
        if name == "length" and reason is None:
            reason = _length_reason(answer, rules, len(skills))
        if name in skills and names_skill(answer.text, name, rules.name_rule):
            reason = f'it names the skill "{before_parenthesis(name)}"'
        if reason is not None:
            reasons[name] = _with_cut(reason, is_cut=is_cut)
    return reasons


def outcome_reasons(answer: Answer) -> dict[str, str]:
    """Why a text has its outcome, by outcome, if no grader was asked about it.

    >>> outcome_reasons(Answer("", "empty"))
    {'evades': 'the student wrote no text'}
    """
    own = own_outcome(answer)
    return {} if own is None else {own: _WHY_NOTHING[answer.status]}


def _with_cut(reason: str, *, is_cut: bool | None) -> str:
    """The reason, with the token limit if it explains the reason."""
    is_missing = reason in (_WHY_NOTHING["no marker"], _WHY_NOTHING["empty"])
    return f"{reason}; {CUT}" if is_cut and (is_missing or reason.startswith(_BREAKS_OFF)) else reason


_BREAKS_OFF: Final = "it breaks off"
"""The start of the reason that a text without an end gets."""


_WHY_NOTHING: Final[Mapping[AnswerStatus, str]] = {
    "empty": "the student wrote no text",
    "refused": "the student refused to answer, or a filter blocked the reply",
    "no marker": 'the reply has no "Answer:"',
    CUT_IN_THOUGHT: "the reply is cut in its thought: it has no answer; raise max_tokens",
}


def _length_reason(answer: Answer, rules: Rules, k: int) -> str:
    limit = sentence_limit(k)
    return _too_many(plural(count_sentences(answer.text, rules.counter), "sentence"), limit)


def _too_many(has: str, limit: int) -> str:
    return f"it has {has} where {limit} {'is' if limit == 1 else 'are'} allowed"


def format_reasons(text: str, k: int, form: FormatName | None) -> dict[str, str]:
    """Why a text in an output format loses the point for length; empty without a format.

    >>> format_reasons("Rain.", 1, "list")
    {'length': 'it is not a list: it has 0 items where 2 are the least'}
    """
    if form is None:
        return {}
    verdict = check_format(text, form)
    shape = OUTPUT_FORMATS[form]
    return {"length": verdict.fault or _too_many(plural(verdict.units, shape.unit), shape.limit(k))}
