"""Grade a text by code alone: the requested skills, the topic, sense, and skills that were not requested.

A checker returns the first span that it finds, and some spans extend to the end of the sentence. So this module calls
the checker again on sequences of neighboring clauses. A sequence shows the skill *tightly* if the checker finds the
skill in it and in no shorter sequence inside it. A figure that spans several clauses thus needs the topic word in one
of its own clauses, a phrase needs it in the clause around the phrase, and every occurrence of the skill counts, not
only the first. Each skill needs a separate topic word, and all words of the topic's name count as one word. Otherwise
a student could earn the mark with the name of the topic in every clause (`template_student`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from skillmix.catalog.catalog import Figure, fold_name
from skillmix.checkers.meaning import clash
from skillmix.checkers.passage import Checker, Passage, Span, Words, passage_of
from skillmix.checkers.registry import Shown, all_checkers, checker_of, figure_finder, may_repeat, why_not_shown
from skillmix.checkers.sense import PromptTexts, form_problem, sense_problem
from skillmix.checkers.topics import (
    OtherTopics,
    TopicWords,
    in_passing,
    masked,
    mentions,
    on_topic,
    one_word,
    says_little,
    topic_bases,
    topic_problem,
    topic_words,
)
from skillmix.checkers.verbs import is_finite
from skillmix.checkers.words import DETERMINERS, SUBJECT_PRONOUNS, word_set
from skillmix.render import shortened

LONGEST_RUN: Final = 10
"""The maximum number of clauses in a sequence; no figure of the catalog spans more."""
MOST_CLAUSES: Final = 60
"""The maximum number of clauses of a text that are examined, which bounds the time for a long text."""

_JOINTS: Final = word_set("and but or so because while when whereas although though if unless yet then as")
_OPENERS: Final = (
    SUBJECT_PRONOUNS
    | DETERMINERS
    | word_set("thank thanks please don't do never turn could would can will may i'm i'll we'll let beware sorry if")
)
"""Words that can open a clause after one of `_JOINTS`: a subject, or the first word of an order or a request."""
_NEAR: Final = 30
"""The number of words searched for a verb on each side of a conjunction; the time grows with its square."""
_NAME: Final = ""
"""The word that replaces every word of the topic's name."""
_EDGE: Final = " \t\r\n,;:.!?…)]”’–—-"


def woven_skills(passage: Passage, topic: TopicWords, checkers: Mapping[str, Checker]) -> dict[str, bool]:
    """Return, for each skill, whether it has a topic word that no other skill uses; the text must show all skills.

    >>> from skillmix.checkers.registry import checker_of
    >>> from skillmix.checkers.topics import topic_words
    >>> skills = {name: checker_of(name) for name in ("simile", "asking politely")}
    >>> topic = topic_words("Night trains", ["train"], ["berth", "rail"])
    >>> woven_skills(passage_of("The train was as slow as a snail; could you please wait?"), topic, skills)
    {'simile': True, 'asking politely': False}
    """
    clauses = _Clauses(passage, topic)
    words = {skill: clauses.topic_words_of(checker) for skill, checker in checkers.items()}
    owners: dict[str, str] = {}
    return {skill: _assign(skill, words, owners, set()) for skill in words}


def _assign(skill: str, words: Mapping[str, frozenset[str]], owners: dict[str, str], tried: set[str]) -> bool:
    """Assign an unused topic word to a skill, moving other skills to other words if needed; False if impossible."""
    for word in sorted(words[skill] - tried):
        tried.add(word)
        if word not in owners or _assign(owners[word], words, owners, tried):
            owners[word] = skill
            return True
    return False


_NUMBERS_ONLY: Final = "steady count"
"""A skill whose clauses may consist of numbers and thus contain no topic word."""


def _beside_topic(passage: Passage, topic: TopicWords, skills: Sequence[str]) -> str | None:
    """Return why a text that names its topic is not about the topic; None if it may be about the topic."""
    if len({mention.words for mention in mentions(passage, topic)}) > 1:
        return None
    clauses = _Clauses(passage, topic)
    checkers = [checker_of(skill) for skill in skills if fold_name(skill) != _NUMBERS_ONLY]
    known = [checker for checker in checkers if checker is not None]
    if known and not any(clauses.topic_words_of(checker) for checker in known):
        return "it names the topic only outside the clauses that show a skill"
    return in_passing(passage, topic)


class _Clauses:
    """The clauses of a text, with the topic words in each."""

    def __init__(self, passage: Passage, topic: TopicWords) -> None:
        self._text = passage.text
        self._clauses = clauses_of(passage)[:MOST_CLAUSES]
        # For each clause, the base forms of its topic words, with `_NAME` in place of words of the topic's name.
        self._words = [
            (frozenset([_NAME if base in topic.name else base for base in topic_bases(clause, topic)]))
            for clause in self._clauses
        ]
        self._runs: dict[tuple[int, int], Passage] = {}

    def topic_words_of(self, checker: Checker) -> frozenset[str]:
        """Find the topic words in the clauses that show a skill."""
        if not any(self._words):
            return frozenset()
        runs = self._tight_runs(checker)
        return frozenset().union(*(words for first, last in runs for words in self._words[first : last + 1]))

    def _tight_runs(self, checker: Checker) -> list[tuple[int, int]]:
        """Find the shortest sequences of clauses that show a skill, by first and last index."""
        runs: list[tuple[int, int]] = []
        start = 0
        count = len(self._clauses)
        for last in range(count):
            for first in range(last, max(start, last - LONGEST_RUN + 1) - 1, -1):
                if checker(self._run(first, last)) is not None:
                    runs.append((first, last))
                    # A later sequence that starts at or before this start would contain this sequence.
                    start = first + 1
                    break
        return runs or [(0, count - 1)]

    def _run(self, first: int, last: int) -> Passage:
        """Return a sequence of neighboring clauses as a passage, which is cached for all skills."""
        key = first, last
        if key not in self._runs:
            clauses, text = self._clauses, self._text
            start = clauses[first - 1][-1].end if first else 0
            end = clauses[last + 1][0].start if last + 1 < len(clauses) else len(text)
            self._runs[key] = passage_of(text[start:end].lstrip(_EDGE).rstrip())
        return self._runs[key]


def clauses_of(passage: Passage) -> tuple[Words, ...]:
    """Split a text into clauses: at every mark, and before a conjunction that joins two clauses without a mark.

    >>> from skillmix.checkers.passage import passage_of
    >>> text = "The train was late and the guard was cold, so we went by bus or tram."
    >>> [" ".join(word.text for word in clause) for clause in clauses_of(passage_of(text))]
    ['The train was late', 'and the guard was cold', 'so we went by bus or tram']
    """
    return tuple(clause for piece in passage.pieces for clause in _at_joints(piece))


def _at_joints(piece: Words) -> Sequence[Words]:
    cuts = [index for index in range(2, len(piece) - 2) if piece[index].lower in _JOINTS]
    clauses: list[Words] = []
    start = 0
    for number, cut in enumerate(cuts):
        end = cuts[number + 1] if number + 1 < len(cuts) else len(piece)
        before, after = piece[max(start, cut - _NEAR) : cut], piece[cut + 1 : min(end, cut + _NEAR)]
        if piece[cut + 1].lower in _OPENERS and _has_verb(before) and _has_verb(after):
            clauses.append(piece[start:cut])
            start = cut
    return (*clauses, piece[start:])


def _has_verb(words: Words) -> bool:
    return any(is_finite(words, index) for index in range(len(words)))


NOT_WOVEN: Final = "not about the topic: no clause that shows it has a topic word of its own"


@dataclass(frozen=True)
class Verdict:
    """The code's decisions about one text, with the span that earned each point."""

    passage: Passage
    evidence: Mapping[str, Span | None]
    """The span that shows each requested skill, or None if no span does. Skills without a checker are absent."""
    topic: Span | None
    nonsense: str | None
    """The reason why the text does not make sense; None if it does."""
    topic_words: TopicWords
    """The words of the topic."""
    requires_woven: bool = False
    """Whether a skill must be woven into the topic to earn its point."""
    figures_shown: Shown | None = None
    """All skills of the catalog that the text shows, for a catalog of figures; otherwise None."""
    off_topic: str | None = None
    """The reason why a text is off topic although it contains words of the topic."""

    @cached_property
    def woven(self) -> Mapping[str, bool]:
        """Return, for each requested skill, whether the text shows it about the topic; False if it is not shown at all.

        The result is empty for a catalog of figures unless the catalog requires woven skills, because a part of a
        clause has no topic word of its own.
        """
        if self.figures_shown is not None and not self.requires_woven:
            return {}
        checkers = {skill: checker_of(skill) for skill, span in self.evidence.items() if span is not None}
        known = {skill: checker for skill, checker in checkers.items() if checker is not None}
        woven = woven_skills(self.passage, self.topic_words, known)
        return {skill: woven.get(skill, False) for skill in self.evidence}

    def is_woven(self, skills: Sequence[str]) -> bool | None:
        """Return whether the text shows all these skills about the topic; None if this is undecided."""
        if self.figures_shown is not None and not self.requires_woven:
            return None
        # Most texts lack a skill, which the evidence reveals without the slower search for woven skills.
        if None in self.evidence.values() or not all(self.woven.values()):
            return False
        return True if all(skill in self.evidence for skill in skills) else None

    def earns(self, skill: str) -> bool | None:
        """Return whether code gives the point for a skill; None for a skill without a checker."""
        if skill not in self.evidence:
            return None
        return self.evidence[skill] is not None and (not self.requires_woven or self.woven[skill])

    @cached_property
    def reasons(self) -> Mapping[str, str]:
        """Return the reason for each point that code denies, by criterion."""
        reasons = {}
        for skill, span in self.evidence.items():
            if span is None:
                reasons[skill] = why_not_shown(skill)
            elif self.requires_woven and not self.woven[skill]:
                reasons[skill] = NOT_WOVEN
        if self.topic is None:
            reasons["topic"] = self.off_topic or topic_problem(self.passage, self.topic_words)
        if self.nonsense is not None:
            reasons["sense"] = self.nonsense
        return reasons

    @cached_property
    def unrequested(self) -> tuple[str, ...]:
        """Return the skills that the text shows although the prompt did not request them."""
        if self.figures_shown is not None:
            return tuple(name for name in self.figures_shown if name not in self.evidence)
        wanted = set(map(fold_name, self.evidence))
        others = ((name, checker) for name, checker in all_checkers().items() if name not in wanted)
        return tuple(name for name, checker in others if checker(self.passage) is not None)

    def masked_quote(self, span: Span | None) -> str | None:
        """Quote a span with the topic's words masked, so that texts on different topics can be compared."""
        if span is None:
            return None
        words = tuple(word for word in self.passage.words if span.start <= word.start < span.end)
        return masked(words, self.topic_words)

    def quote(self, span: Span | None) -> str | None:
        """Quote a span of the text."""
        return None if span is None else self.passage.text[span.start : span.end]


class Judge:
    """Grades texts by code, given the vocabulary of all topics and the prompt's texts, which must not be copied."""

    def __init__(
        self,
        vocabulary: Mapping[str, tuple[tuple[str, ...], ...]],
        shown: PromptTexts,
        *,
        requires_woven: bool = False,
        figures: tuple[Figure, ...] = (),
    ) -> None:
        self._vocabulary = vocabulary
        self._find = figure_finder(figures) if any(figure.patterns for figure in figures) else None
        self._of_figures = frozenset(name for figure in figures for _, name in figure.skills)
        self._requires_woven = requires_woven
        self._topics: dict[str, TopicWords] = {}
        self._shown = shown

    def judge(self, text: str, *, skills: Iterable[str], topic: str) -> Verdict:
        """Grade one text."""
        passage = passage_of(text)
        if self._find is not None:
            return self._judge_exactly(passage, tuple(skills), topic, self._find(passage))
        evidence = {}
        for skill in skills:
            checker = checker_of(skill)
            if checker is not None:
                evidence[skill] = checker(passage)
        words = self._words_of(topic)
        repeating = [span for skill, span in evidence.items() if span is not None and may_repeat(skill)]
        nonsense = sense_problem(passage, self._shown, repeating) or clash(passage, words)
        span = on_topic(passage, words) or one_word(passage, words, self._shared)
        off = None
        if span is not None:
            off = says_little(passage, words) if nonsense is None else None
            off = off or _beside_topic(
                passage, words.broad, [skill for skill in evidence if evidence[skill] is not None]
            )
        return Verdict(passage, evidence, None if off else span, nonsense, words, self._requires_woven, None, off)

    def _judge_exactly(self, passage: Passage, skills: Sequence[str], topic: str, shown: Shown) -> Verdict:
        """Grade a text by a catalog of figures: full marks require exactly the requested skills, and no other topic.

        An unrequested skill costs the point for sense, and a word of another topic costs the point for topic, so that
        the metric `all_skills` is still the share of texts with all requested skills.
        """
        evidence: dict[str, Span | None] = {}
        for skill in skills:
            if skill in self._of_figures:
                evidence[skill] = shown.get(skill)
            elif (checker := checker_of(skill)) is not None:
                evidence[skill] = checker(passage)
        unrequested = [name for name in shown if name not in skills]
        problem = form_problem(passage)
        if problem is None and unrequested:
            start, end = shown[unrequested[0]]
            quote = shortened(passage.text[start:end])
            problem = f'it shows a skill that was not requested: {unrequested[0]}, "{quote}"'
        words = self._words_of(topic)
        other = self._other_topics.word_in(passage, topic)
        span = None if other else on_topic(passage, words)
        off = f'"{shortened(other[0].text)}" is a word of another topic, {other[1]}' if other else None
        return Verdict(passage, evidence, span, problem, words, self._requires_woven, shown, off)

    @cached_property
    def _shared(self) -> frozenset[str]:
        """Return the words that belong to several topics."""
        forms = Counter(form for topic in self._vocabulary for form in self._words_of(topic).broad.forms)
        return frozenset(form for form, count in forms.items() if count > 1)

    @cached_property
    def _other_topics(self) -> OtherTopics:
        return OtherTopics({topic: self._words_of(topic) for topic in self._vocabulary})

    def _words_of(self, topic: str) -> TopicWords:
        if topic not in self._topics:
            self._topics[topic] = topic_words(topic, *self._vocabulary.get(topic, ((), ())))
        return self._topics[topic]
