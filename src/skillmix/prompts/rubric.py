"""The k + 3 criteria of a text, and the labels by which a grader's reply may name them.

`rubric_of` makes the criteria in the words of a prompt set. `Rubric.criterion_of` finds the criterion of a label and
ignores numbering, maximum points and lead-ins such as "correctly illustrates".

The limit of a text counts sentences, or the units of its output format. It is smaller than the number of skills where
possible, so that some unit must show two skills. `check_format` in `grading/points.py` checks texts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, Final, Literal, NamedTuple, get_args

from skillmix.catalog.catalog import before_parenthesis, fold_name

FormatName = Literal["list", "dialogue", "poem"]


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """An output format as prompts describe it."""

    name: FormatName
    request: str
    """The sentence at the end of the student's prompts."""
    unit: str
    """The unit of the limit, in the singular."""
    fewest: int
    """The minimum number of units in a text."""
    room: int
    """The minimum limit, which applies to small k."""

    def limit(self, k: int) -> int:
        """Return the maximum number of units in a text with k skills.

        >>> OUTPUT_FORMATS["list"].limit(1), OUTPUT_FORMATS["list"].limit(5)
        (2, 4)
        """
        return max(self.room, k - 1)


OUTPUT_FORMATS: Final[Mapping[FormatName, OutputFormat]] = {
    form.name: form
    for form in (
        OutputFormat(
            name="list",
            request="Write the text as a list: every item on a line of its own that begins with a dash, and one "
            "sentence at the most in each item.",
            unit="item",
            fewest=2,
            room=2,
        ),
        OutputFormat(
            name="dialogue",
            request="Write the text as a dialogue of two or more speakers: every turn on a line of its own that begins "
            "with the name of the speaker and a colon, and one sentence at the most in each turn.",
            unit="turn",
            fewest=2,
            room=2,
        ),
        OutputFormat(
            name="poem", request="Write the text as a poem of three or more short lines.", unit="line", fewest=3, room=4
        ),
    )
}
"""Output formats by name. A new one also needs a check in `grading/points.py`."""
TextOutcome = Literal["complies", "refuses", "evades"]
OUTCOMES: Final[tuple[TextOutcome, ...]] = get_args(TextOutcome)
"""The possible responses to a request, in the order of all outputs."""


class OutcomePhrases(NamedTuple):
    """A prompt set's wording of the three outcomes of a text."""

    complies: str
    refuses: str
    evades: str


@dataclass(frozen=True, slots=True)
class Phrases:
    """A prompt set's wording of the criteria, which the parser of grader replies accepts besides common wordings."""

    skill: str = "Shows {skill}"
    topic: str = "Stays on the topic of {topic}"
    sense: str = "Makes sense"
    length: str = "Has at most {limit}"
    outcomes: OutcomePhrases | None = None
    """The wording of the outcomes; None if graders assign points instead of outcomes."""
    format: FormatName | None = None
    """The output format of the experiment, which determines the limit and the point for length."""

    @property
    def wording(self) -> list[object]:
        """Return all phrases to hash; without outcomes and a format, the hash is the same as in older versions."""
        parts: list[object] = [self.skill, self.topic, self.sense, self.length]
        parts += [{"outcomes": list(self.outcomes)}] if self.outcomes else []
        return [*parts, {"format": self.format}] if self.format else parts

    def as_document(self) -> dict[str, object]:
        """Return the phrases as an imported run stores them."""
        document: dict[str, object] = {name: getattr(self, name) for name in _PLAIN}
        return {**document, "outcomes": self.outcomes._asdict()} if self.outcomes else document


_PLAIN: Final = ("skill", "topic", "sense", "length")


def stored_phrases(document: object) -> Phrases:
    """Read the phrases of an imported run, with defaults for missing ones."""
    stored: dict[str, Any] = document if isinstance(document, dict) else {}
    default = Phrases()
    skill, topic, sense, length = (str(stored.get(name, getattr(default, name))) for name in _PLAIN)
    outcomes: dict[str, Any] = stored.get("outcomes") or {}
    has_outcomes = isinstance(outcomes, dict) and set(outcomes) == set(OUTCOMES)
    named = OutcomePhrases(*(str(outcomes[name]) for name in OUTCOMES)) if has_outcomes else None
    return Phrases(skill, topic, sense, length, named)


@dataclass(frozen=True, slots=True)
class Criterion:
    """A point or an outcome of a rubric."""

    kind: Literal["skill", "topic", "sense", "length", "outcome"]
    name: str
    phrase: str


@dataclass(frozen=True)
class Rubric:
    """The criteria of a combination, in the order skills, topic, sense, length, or the three outcomes instead."""

    criteria: tuple[Criterion, ...]
    limit: int
    topic: str
    longest_label: int
    """The length above which the parser does not treat a cell or a line as a label."""
    format: FormatName | None = None
    """The required output format."""

    @property
    def k(self) -> int:
        """Return the number of skills among the criteria."""
        return len(self.criteria) - 3

    @property
    def has_outcomes(self) -> bool:
        """Return whether the criteria are outcomes, of which exactly one applies."""
        return self.criteria[0].kind == "outcome"

    @cached_property
    def folded_topic(self) -> str:
        """Return the folded topic without a leading article."""
        return _without_the(fold_name(self.topic))

    @cached_property
    def label_ends(self) -> frozenset[str]:
        """Return the folded last words of all possible labels."""
        own = ((c.name, before_parenthesis(c.name), c.phrase) for c in self.criteria)
        return _COMMON_ENDS.union(map(_end_of, (self.topic, *chain.from_iterable(own))))

    @cached_property
    def _labels(self) -> dict[str, int]:
        return _labels(self.criteria)

    def criterion_of(self, label: str) -> int | None:
        """Return the index of the criterion with exactly this label, if any.

        >>> rubric = rubric_of(["fallacy", "fallacy of division"], "Sewing")
        >>> rubric.criterion_of("**Correctly illustrates fallacy of division**")
        1
        >>> rubric.criterion_of("fallacy of") is None
        True
        """
        forms = label_forms(label)
        for form in forms.plain:
            if form in self._labels:
                return self._labels[form]
            if form in _SENSE_LABELS:
                return self.k + 1
            lead = _TOPIC_LEAD.match(form)
            about = _without_the(form[lead.end() :]) if lead else ""
            if form in _TOPIC_WORDS or _without_the(form) == self.folded_topic:
                return self.k
            if lead and about in (self.folded_topic, "topic", "given topic"):
                return self.k
            if _is_length_label(form, self.limit):
                return self.k + 2
        named = (self._labels.get(form) for form in forms.without_lead_in)
        return next((index for index in named if index is not None and index < self.k), None)


def sentence_limit(k: int) -> int:
    """Return the maximum number of sentences: k - 1, but at least one (arXiv 2310.17567)."""
    return max(1, k - 1)


def length_limit(k: int, form: FormatName | None = None) -> int:
    """Return the limit of a text with k skills, in sentences or in the units of its output format."""
    return sentence_limit(k) if form is None else OUTPUT_FORMATS[form].limit(k)


def limit_in_words(limit: int, form: FormatName | None = None) -> str:
    """Express a limit in words for a prompt.

    >>> limit_in_words(1), limit_in_words(4), limit_in_words(2, "list")
    ('one sentence', 'four sentences', 'two items')
    """
    number = _NUMBER_WORDS[limit] if limit < len(_NUMBER_WORDS) else str(limit)
    unit = "sentence" if form is None else OUTPUT_FORMATS[form].unit
    return f"{number} {unit}" if limit == 1 else f"{number} {unit}s"


_DEFAULT_PHRASES: Final = Phrases()


def rubric_of(skills: Sequence[str], topic: str, *, phrases: Phrases = _DEFAULT_PHRASES) -> Rubric:
    """Return the rubric of a combination; equal arguments share one object."""
    return _rubric(tuple(skills), topic, phrases)


@lru_cache(maxsize=1 << 11)
def _rubric(skills: tuple[str, ...], topic: str, phrases: Phrases) -> Rubric:
    limit = length_limit(len(skills), phrases.format)
    criteria: tuple[Criterion, ...]
    if phrases.outcomes:
        criteria = tuple(Criterion("outcome", name, getattr(phrases.outcomes, name)) for name in OUTCOMES)
    else:
        criteria = (
            *[Criterion("skill", skill, phrases.skill.replace("{skill}", skill)) for skill in skills],
            Criterion("topic", "topic", phrases.topic.replace("{topic}", topic)),
            Criterion("sense", "sense", phrases.sense),
            Criterion("length", "length", phrases.length.replace("{limit}", limit_in_words(limit, phrases.format))),
        )
    return Rubric(
        criteria=criteria,
        limit=limit,
        topic=topic,
        longest_label=_ROOM_FOR_LEAD_IN + max(len(topic), *(max(len(c.name), len(c.phrase)) for c in criteria)),
        format=phrases.format,
    )


def _end_of(text: str) -> str:
    return fold_name(text).rpartition(" ")[2]


_ROOM_FOR_LEAD_IN: Final = 80


def _labels(criteria: tuple[Criterion, ...]) -> dict[str, int]:
    """Map folded labels to indices of criteria. Full names take precedence over phrases, which precede short forms."""
    short_forms: dict[str, list[int]] = {}
    for index, criterion in enumerate(criteria[:-3]):
        short_forms.setdefault(fold_name(before_parenthesis(criterion.name)), []).append(index)
    labels = {short: indices[0] for short, indices in short_forms.items() if len(indices) == 1}
    for index, criterion in enumerate(criteria):
        labels[fold_name(criterion.phrase)] = index
    for index, criterion in enumerate(criteria):
        labels[fold_name(criterion.name)] = index
    return labels


# fmt: off
_NUMBER_WORDS: Final = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)
# fmt: on

_NUMBERING = re.compile(
    r"^\W*(?:(?:criterion|criteria|skill|item|requirement)\s*+(?:no\.?\s*+|\#)?(?:\d++\s*+)?[:.)\-–—]"
    r"|\(?(?:\d{1,2}|[a-zA-Z])[.)]|\d{1,2}:|\#\d+\b)\s*",
    re.IGNORECASE,
)
# "(1 point)", "(0/1)", "(0-1)", "[max 1]": the maximum of a criterion, not the points earned.
_WORTH = re.compile(
    r"(?<!\s)\s*[\[(]\s*+(?:(?:max\w*\.?|out of|of|worth)\s*+)?(?:0\s*+(?:/|-|–|,|or)\s*+1|\d|one)"
    r"\s*+(?:(?:points?|pts?\.?|marks?)\s*+)?[\])]\W*$",
    re.IGNORECASE,
)

_WRITINGS: Final = ("text", "answer", "response", "piece")
_SUBJECT = r"(?:(?:the |this |it )?(?:students? |student s )?(?:text |answer |response |piece |writing )?)"
_ADVERB = r"(?:correctly |properly |clearly |accurately |effectively |successfully |appropriately |explicitly )"
_VERB = (
    r"(?:illustrat(?:es?|ed|ing|ion of)|demonstrat(?:es?|ed|ing|ion of)|show(?:s|n|ing)?|uses?|use of|usage of"
    r"|contains?"
    r"|includes?|exhibits?|displays?|employs?|features?|incorporates?|presents?)"
)
_SKILL_LEAD = re.compile(rf"^{_SUBJECT}{_ADVERB}?{_VERB} ")
_AFTER_LEAD = re.compile(r"^(?:a |an |the |use of |skill of |skill )")


class LabelForms(NamedTuple):
    """The folded forms of a label, longest first."""

    plain: list[str]
    """The label, and the label without numbering and maximum points."""
    without_lead_in: list[str]
    """The label without words such as "correctly illustrates", which can only name a skill."""


@lru_cache(maxsize=1 << 13)
def label_forms(label: str) -> LabelForms:
    """Return the forms of a label that are compared with the labels of criteria.

    >>> label_forms("2. Correctly illustrates a metaphor (1 point)").without_lead_in
    ['a metaphor', 'metaphor']
    """
    bare = _WORTH.sub("", _NUMBERING.sub("", label, count=1))
    plain = list(dict.fromkeys((fold_name(label), fold_name(bare))))
    lead = _SKILL_LEAD.match(plain[-1])
    rest = plain[-1][lead.end() :] if lead else ""
    without_lead_in = []
    while rest:
        without_lead_in.append(rest)
        after = _AFTER_LEAD.match(rest)
        rest = rest[after.end() :] if after else ""
    return LabelForms(plain, without_lead_in)


_SENSE_LABELS: Final = frozenset(
    f"{subject}{predicate}"
    for subject in ("", "it ", *(f"{a}{b}{c} " for a in ("", "the ") for b in ("", "students ") for c in _WRITINGS))
    for predicate in ("sense", "makes sense", "make sense", "making sense", "coherence", "is coherent", "coherent")
)
_TOPIC_WORDS: Final = frozenset(
    {"topic", "the topic", "on topic", "on the topic", "stays on topic", "topic relevance", "relevance to topic"}
)
_TOPIC_LEAD = re.compile(
    rf"^{_SUBJECT}(?:is |stays |remains |keeps )?(?:pertain(?:s|ing)? to|relat(?:es?|ed|ing) to|relevan(?:t|ce) to"
    r"|about|on topic|on|in(?: the)? context of|context of|concern(?:s|ing)|topic)"
    r"(?: the topic(?: of)?| topic(?: of)?)? "
)
_LENGTH_WORDS: Final = frozenset(
    f"{lead}{noun}"
    for lead in ("", "within ", "within the ", "in ", "meets ", "meets the ", "keeps to the ", "respects the ")
    for noun in ("length", "sentence limit", "sentence count", "number of sentences", "length limit", "limit")
)
_COMMON_ENDS: Final = frozenset(
    {"sentence", "sentences", "maximum", "max", "less", "fewer", "long"}
    | {_end_of(label) for label in _SENSE_LABELS | _TOPIC_WORDS | _LENGTH_WORDS}
)
"""The last words of labels in every rubric."""
_LENGTH = re.compile(
    rf"^{_SUBJECT}(?:(?:has|have|contains?|uses?|is|stays|keeps to|consists of|limited to|within|only) )*"
    r"(?:at most|no more than|not more than|up to|a maximum of|maximum of|maximum|max|limit of|within)? ?"
    r"(?P<number>\w+) sentences?(?: limit| maximum| max| or less| or fewer| in length| long)?$"
)


def _without_the(folded: str) -> str:
    return folded.removeprefix("the ")


def _is_length_label(folded: str, limit: int) -> bool:
    if folded in _LENGTH_WORDS:
        return True
    match = _LENGTH.match(folded)
    if match is None:
        return False
    number = match["number"]
    return number == _NUMBER_WORDS[limit] if limit < len(_NUMBER_WORDS) and number.isalpha() else number == str(limit)


def starts_like_a_criterion(line: str) -> bool:
    """Return whether a line is short and starts like a criterion."""
    return len(line) <= _ROOM_FOR_LEAD_IN and _SKILL_LEAD.match(fold_name(line)) is not None
