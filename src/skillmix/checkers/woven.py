"""Decide which skills a text shows about its topic: the clauses that show the skill hold a word of the topic.

A checker returns the first span that it finds, and some spans run to the end of the sentence. So this module asks the
checker again, about runs of neighbouring clauses. A run shows the skill *tightly* if the checker finds the skill in the
run and in no shorter run inside it. A figure of several clauses thus needs the topic word in one of its own clauses, a
phrase needs it in the clause around the phrase, and every occurrence of the skill counts, not only the first.

Each skill needs a topic word of its own, and all words of the topic's name count as one word. Otherwise a student could
earn the mark with the name of the topic in every clause (`template_student`).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from skillmix.checkers.english.verbs import is_finite
from skillmix.checkers.english.words import DETERMINERS, SUBJECT_PRONOUNS, word_set
from skillmix.checkers.passage import Checker, Passage, Words, passage_of
from skillmix.checkers.topic import TopicWords, topic_bases

LONGEST_RUN: Final = 10
"""The most clauses of a run; no figure of the catalogue needs more."""
MOST_CLAUSES: Final = 60
"""Clauses beyond this number are not looked at, so that a long text cannot cost much time."""

_JOINTS: Final = word_set("and but or so because while when whereas although though if unless yet then as")
_OPENERS: Final = (
    SUBJECT_PRONOUNS
    | DETERMINERS
    | word_set("thank thanks please don't do never turn could would can will may i'm i'll we'll let beware sorry if")
)
"""Words that can open a clause after a joint: a subject, or the first word of an order or a request."""
_NEAR: Final = 30
"""The words on each side of a joint in which a verb is looked for; more would cost time that grows with the square."""
_NAME: Final = ""
"""Stands for all words of the topic's name."""
_EDGE: Final = " \t\r\n,;:.!?…)]”’–—-"


def woven_skills(passage: Passage, topic: TopicWords, checkers: Mapping[str, Checker]) -> dict[str, bool]:
    """Whether each skill that a text shows has a topic word of its own; the text must show all skills.

    >>> from skillmix.checkers.registry import checker_of
    >>> from skillmix.checkers.topic import topic_words
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
    """Give a skill a word of its own; another skill may move to a further word of its clauses."""
    for word in sorted(words[skill] - tried):
        tried.add(word)
        if word not in owners or _assign(owners[word], words, owners, tried):
            owners[word] = skill
            return True
    return False


class _Clauses:
    """The clauses of one text, with the topic words in each."""

    def __init__(self, passage: Passage, topic: TopicWords) -> None:
        self._text = passage.text
        self._clauses = clauses_of(passage)[:MOST_CLAUSES]
        self._words = [_topic_words(clause, topic) for clause in self._clauses]
        self._runs: dict[tuple[int, int], Passage] = {}

    def topic_words_of(self, checker: Checker) -> frozenset[str]:
        """The topic words in the clauses that show a skill."""
        if not any(self._words):
            return frozenset()
        runs = self._tight_runs(checker)
        return frozenset().union(*(words for first, last in runs for words in self._words[first : last + 1]))

    def _tight_runs(self, checker: Checker) -> list[tuple[int, int]]:
        """The runs of clauses, by first and last index, that show a skill and have no shorter such run inside."""
        runs: list[tuple[int, int]] = []
        start = 0
        count = len(self._clauses)
        for last in range(count):
            for first in range(last, max(start, last - LONGEST_RUN + 1) - 1, -1):
                if checker(self._run(first, last)) is not None:
                    runs.append((first, last))
                    # A later run that starts at or before this start would hold this run.
                    start = first + 1
                    break
        return runs or [(0, count - 1)]

    def _run(self, first: int, last: int) -> Passage:
        """The text of some neighbouring clauses; the skills of one text share it."""
        key = first, last
        if key not in self._runs:
            clauses, text = self._clauses, self._text
            start = clauses[first - 1][-1].end if first else 0
            end = clauses[last + 1][0].start if last + 1 < len(clauses) else len(text)
            self._runs[key] = passage_of(text[start:end].lstrip(_EDGE).rstrip())
        return self._runs[key]


def _topic_words(clause: Words, topic: TopicWords) -> frozenset[str]:
    """The base forms of the topic words in a clause; a word of the topic's name stands for the name."""
    return frozenset([_NAME if base in topic.name else base for base in topic_bases(clause, topic)])


def clauses_of(passage: Passage) -> tuple[Words, ...]:
    """Cut a text into clauses: at every mark, and before a conjunction that joins two clauses without a mark.

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
