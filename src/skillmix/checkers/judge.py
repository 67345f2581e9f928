"""Judge a text by code alone: the requested skills, the topic, the sense, and skills that were not requested."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from skillmix.catalog.grammar import Figure
from skillmix.catalog.names import fold_name
from skillmix.checkers.clashes import clash
from skillmix.checkers.figures import Shown, figure_finder
from skillmix.checkers.passage import Passage, Span, passage_of
from skillmix.checkers.prompt_copies import PromptTexts
from skillmix.checkers.registry import all_checkers, checker_of, may_repeat, why_not_shown
from skillmix.checkers.sense import form_problem, sense_problem
from skillmix.checkers.topic import OtherTopics, TopicWords, masked, on_topic, topic_problem, topic_words
from skillmix.checkers.woven import woven_skills
from skillmix.render import shortened

NOT_WOVEN: Final = "not about the topic: no clause that shows it has a topic word of its own"


@dataclass(frozen=True)
class Verdict:
    """The decisions of code on one text, with the span that earned each point."""

    passage: Passage
    evidence: Mapping[str, Span | None]
    """The span that shows each requested skill, or None if no span does. Skills without a checker are absent."""
    topic: Span | None
    nonsense: str | None
    """Why the text does not make sense; None if it does."""
    topic_words: TopicWords
    """The words of the topic."""
    requires_woven: bool = False
    """Whether a skill that is not woven into the topic earns no point."""
    figures_shown: Shown | None = None
    """In a catalogue of figures, all its skills that the text shows."""
    off_topic: str | None = None
    """In a catalogue of figures, why a text with words of the topic is not on it."""

    @cached_property
    def woven(self) -> Mapping[str, bool]:
        """Whether the text shows each requested skill about the topic; False if it does not show the skill at all.

        Empty for a catalogue of figures, unless it requires this: a part of a clause has no topic word of its own.
        """
        if self.figures_shown is not None and not self.requires_woven:
            return {}
        checkers = {skill: checker_of(skill) for skill, span in self.evidence.items() if span is not None}
        known = {skill: checker for skill, checker in checkers.items() if checker is not None}
        woven = woven_skills(self.passage, self.topic_words, known)
        return {skill: woven.get(skill, False) for skill in self.evidence}

    def is_woven(self, skills: Sequence[str]) -> bool | None:
        """Whether the text shows all these skills about the topic; None if that is left open."""
        if self.figures_shown is not None and not self.requires_woven:
            return None
        # Most texts miss a skill; the evidence shows that without a search.
        if None in self.evidence.values() or not all(self.woven.values()):
            return False
        return True if all(skill in self.evidence for skill in skills) else None

    def earns(self, skill: str) -> bool | None:
        """Whether code gives the point for a skill; None for a skill without a checker."""
        if skill not in self.evidence:
            return None
        return self.evidence[skill] is not None and (not self.requires_woven or self.woven[skill])

    @cached_property
    def reasons(self) -> Mapping[str, str]:
        """The reason for each point that code denies, by criterion; computed on first use."""
        return dict(self._reasons())

    def _reasons(self) -> Iterator[tuple[str, str]]:
        for skill, span in self.evidence.items():
            if span is None:
                yield skill, why_not_shown(skill)
            elif self.requires_woven and not self.woven[skill]:
                yield skill, NOT_WOVEN
        if self.topic is None:
            yield "topic", self.off_topic or topic_problem(self.passage, self.topic_words)
        if self.nonsense is not None:
            yield "sense", self.nonsense

    @cached_property
    def unrequested(self) -> tuple[str, ...]:
        """Skills that the text shows although the prompt did not request them."""
        if self.figures_shown is not None:
            return tuple(name for name in self.figures_shown if name not in self.evidence)
        return tuple(
            name
            for name, checker in all_checkers().items()
            if name not in self._wanted and checker(self.passage) is not None
        )

    @cached_property
    def _wanted(self) -> frozenset[str]:
        return frozenset(fold_name(name) for name in self.evidence)

    def masked_quote(self, span: Span | None) -> str | None:
        """The words of a span with the topic's words masked, so that texts on different topics can be compared."""
        if span is None:
            return None
        words = tuple(word for word in self.passage.words if span.start <= word.start < span.end)
        return masked(words, self.topic_words)

    def quote(self, span: Span | None) -> str | None:
        """The text of a span."""
        return None if span is None else self.passage.text[span.start : span.end]


class Judge:
    """Judges texts by the vocabulary of topics, and against the prompt's own sentences, which a text must not copy."""

    def __init__(
        self,
        vocabulary: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]],
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
        """Judge one text."""
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
        return Verdict(passage, evidence, on_topic(passage, words), nonsense, words, self._requires_woven)

    def _judge_exactly(self, passage: Passage, skills: Sequence[str], topic: str, shown: Shown) -> Verdict:
        """Judge a text of a catalogue of figures: full marks need exactly the requested skills and the one topic.

        An unrequested skill costs the point for sense and a word of another topic that for the topic, so that the
        metric `all_skills` is still the share of texts with all requested skills.
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
    def _other_topics(self) -> OtherTopics:
        return OtherTopics({topic: self._words_of(topic) for topic in self._vocabulary})

    def _words_of(self, topic: str) -> TopicWords:
        if topic not in self._topics:
            alone, together = self._vocabulary.get(topic, ((), ()))
            self._topics[topic] = topic_words(topic, alone, together)
        return self._topics[topic]
