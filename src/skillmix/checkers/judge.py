"""Judge a text by code alone: the requested skills, the topic, the sense, and skills that were not requested."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from skillmix.catalog.names import fold_name
from skillmix.checkers.passage import Passage, Span, passage_of
from skillmix.checkers.prompt_copies import PromptTexts
from skillmix.checkers.registry import all_checkers, checker_of, may_repeat, why_not_shown
from skillmix.checkers.sense import sense_problem
from skillmix.checkers.topic import TopicWords, masked, on_topic, topic_problem, topic_words
from skillmix.checkers.woven import woven_skills

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

    @cached_property
    def woven(self) -> Mapping[str, bool]:
        """Whether the text shows each requested skill about the topic; False if it does not show the skill at all."""
        checkers = {skill: checker_of(skill) for skill, span in self.evidence.items() if span is not None}
        known = {skill: checker for skill, checker in checkers.items() if checker is not None}
        woven = woven_skills(self.passage, self.topic_words, known)
        return {skill: woven.get(skill, False) for skill in self.evidence}

    def is_woven(self, skills: Sequence[str]) -> bool | None:
        """Whether the text shows all these skills about the topic; None if a skill without a checker leaves it open."""
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
            yield "topic", topic_problem(self.passage, self.topic_words)
        if self.nonsense is not None:
            yield "sense", self.nonsense

    @cached_property
    def unrequested(self) -> tuple[str, ...]:
        """Skills that the text shows although the prompt did not request them."""
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
    ) -> None:
        self._vocabulary = vocabulary
        self._requires_woven = requires_woven
        self._topics: dict[str, TopicWords] = {}
        self._shown = shown

    def judge(self, text: str, *, skills: Iterable[str], topic: str) -> Verdict:
        """Judge one text."""
        passage = passage_of(text)
        evidence = {}
        for skill in skills:
            checker = checker_of(skill)
            if checker is not None:
                evidence[skill] = checker(passage)
        words = self._words_of(topic)
        repeating = [span for skill, span in evidence.items() if span is not None and may_repeat(skill)]
        nonsense = sense_problem(passage, self._shown, repeating)
        return Verdict(passage, evidence, on_topic(passage, words), nonsense, words, self._requires_woven)

    def _words_of(self, topic: str) -> TopicWords:
        if topic not in self._topics:
            alone, together = self._vocabulary.get(topic, ((), ()))
            self._topics[topic] = topic_words(topic, alone, together)
        return self._topics[topic]
