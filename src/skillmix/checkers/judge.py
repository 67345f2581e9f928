"""Judge a text by code alone: the requested skills, the topic, the sense, and skills that were not requested.

Form alone cannot tell whether a text makes sense. The lists of words in `clashes.json` catch some of the texts whose
parts do not belong together ("The hotel lobby arrested a comma"), and hardly any others.

A checker returns the first span that it finds, and some spans run to the end of the sentence. So this module asks the
checker again, about runs of neighbouring clauses. A run shows the skill *tightly* if the checker finds the skill in the
run and in no shorter run inside it. A figure of several clauses thus needs the topic word in one of its own clauses, a
phrase needs it in the clause around the phrase, and every occurrence of the skill counts, not only the first.

Each skill needs a topic word of its own, and all words of the topic's name count as one word. Otherwise a student could
earn the mark with the name of the topic in every clause (`template_student`).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Final

from skillmix.catalog.catalog import Figure, fold_name
from skillmix.checkers.passage import Checker, Passage, Sentence, Span, Word, Words, passage_of
from skillmix.checkers.registry import Shown, all_checkers, checker_of, figure_finder, may_repeat, why_not_shown
from skillmix.checkers.sense import PromptTexts, form_problem, sense_problem
from skillmix.checkers.verbs import VERBS, is_finite
from skillmix.checkers.words import DETERMINERS, SUBJECT_PRONOUNS, stem, word_set
from skillmix.render import shortened

ENOUGH: Final = 2
"""The number of different topic words that put a text on its topic."""

_SMALL: Final = frozenset(["a", "an", "and", "at", "by", "for", "from", "in", "of", "on", "or", "the", "to", "with"])
_VOWELS: Final = "aeiou"


_MENTIONS: Final = re.compile(
    r"\b(?:mention(?:s|ed|ing)?|speaking of|aside|on the subject of|nothing to do with|by the way|incidentally"
    r"|(?:said|(?:never|not) (?:think|thought|heard|speak|spoke|care|cared)) (?:of|about)"
    r"|lecture on|another (?:story|matter|topic)|some other time|not part of|listed|headline|agenda|invoice|memo)\b"
)
"""Words of a text that names its topic only in passing."""


@dataclass(frozen=True, slots=True)
class TopicWords:
    """The words of a topic, in all their forms."""

    name: frozenset[str]
    """The words of its name, without function words."""
    alone: frozenset[str]
    """Words of which one is enough."""
    forms: dict[str, str]
    """Each inflected form of a word of the name or of the vocabulary, and that word."""


def topic_words(name: str, alone: Iterable[str], together: Iterable[str]) -> TopicWords:
    """Collect the words of a topic with their forms.

    >>> words = topic_words("Old buses", ["bus"], ["ride"])
    >>> sorted(words.name), words.forms["buses"], words.forms["riding"]
    (['bus', 'old'], 'bus', 'ride')
    """
    of_name = [word for word in name.lower().replace("-", " ").split() if word not in _SMALL]
    forms: dict[str, str] = {}
    for word in (*alone, *together):
        for form in _forms(word):
            forms.setdefault(form, word)
    roots = [next((forms[root] for root in _roots(word) if root in forms), word) for word in of_name]
    for word, base in zip(of_name, roots, strict=True):
        for root in _roots(word):
            for form in _forms(root, is_verb=root != word and word.endswith("ing")):
                forms.setdefault(form, base)
    return TopicWords(frozenset(roots), frozenset(alone), forms)


def on_topic(passage: Passage, topic: TopicWords) -> Span | None:
    """Find the words that put a text on its topic: one that is enough alone, the whole name, or two different ones.

    In a text that only mentions something, two different words are needed, and the name is one of them.
    """
    seen: dict[str, Word] = {}
    is_mention = _MENTIONS.search(passage.lower) is not None
    for word in passage.words:
        lower = word.lower
        for form in (lower,) if lower.isalpha() else _parts(lower):
            base = topic.forms.get(form)
            if base is None or base in seen:
                continue
            if base in topic.alone and not is_mention:
                return Span(word.start, word.end)
            seen[base] = word
            different = len({"" if one in topic.name else one for one in seen})
            if different >= ENOUGH or (not is_mention and (len(seen) >= ENOUGH or topic.name <= seen.keys())):
                return Span(min(word.start for word in seen.values()), word.end)
    return None


class OtherTopics:
    """Finds words that put a text on another topic than the requested one."""

    def __init__(self, topics: Mapping[str, TopicWords]) -> None:
        self._topics: dict[str, list[str]] = {}
        for topic, words in topics.items():
            for form, base in words.forms.items():
                if base in words.alone or words.name == {base}:
                    self._topics.setdefault(form, []).append(topic)

    def word_in(self, passage: Passage, topic: str) -> tuple[Word, str] | None:
        """The first word of another topic, and that topic; a word of the requested topic is none."""
        for word in passage.words:
            for form in (word.lower,) if word.lower.isalpha() else _parts(word.lower):
                topics = self._topics.get(form)
                if topics is not None and topic not in topics:
                    return word, topics[0]
        return None


def topic_bases(words: Words, topic: TopicWords) -> frozenset[str]:
    """The base forms of the topic words among some words."""
    forms = topic.forms
    bases = set()
    for word in words:
        lower = word.lower
        for form in (lower,) if lower.isalpha() else _parts(lower):
            if form in forms:
                bases.add(forms[form])
    return frozenset(bases)


def masked(words: Words, topic: TopicWords) -> str:
    """Words in lower case, with a mask for each word of the topic.

    >>> from skillmix.checkers.passage import passage_of
    >>> masked(passage_of("As slow as a Bus!").words, topic_words("Old buses", ["bus"], []))
    'as slow as a _'
    """
    return " ".join(["_" if topic_bases((word,), topic) else word.lower for word in words])


def topic_problem(passage: Passage, topic: TopicWords) -> str:
    """Say why a text is not on its topic.

    >>> from skillmix.checkers.passage import passage_of
    >>> topic_problem(passage_of("The oven is hot."), topic_words("Sourdough bread", ["sourdough"], ["oven", "dough"]))
    'it has one word of the topic, "oven", where two are needed'
    """
    for word in passage.words:
        if any(form in topic.forms for form in _parts(word.lower)):
            return f'it has one word of the topic, "{shortened(word.text)}", where two are needed'
    return "it has no word of the topic"


def _parts(word: str) -> Iterator[str]:
    """A word without its possessive ending, and the parts of a hyphenated compound."""
    word = word.removesuffix("'s").removesuffix("'")
    yield word
    if "-" in word:
        yield from word.split("-")


def _roots(word: str) -> tuple[str, ...]:
    """A word and the base forms of which it may be an inflection; the first one that is known decides.

    >>> _roots("spelling")
    ('spelling', 'spell', 'spel')
    """
    if word.endswith("ies"):
        return word, word[:-3] + "y"
    if word.endswith(("ches", "shes", "ses", "xes")):
        return word, word[:-1], word[:-2]
    if word.endswith("s") and not word.endswith("ss"):
        return word, word[:-1]
    if word.endswith("ing") and len(word) > 5:
        stem = word[:-3]
        return (word, stem, stem + "e") if stem[-1] != stem[-2] else (word, stem, stem[:-1])
    return (word,)


def _forms(root: str, *, is_verb: bool = False) -> Iterator[str]:
    """The base form, its plurals, and the regular forms of a verb in -ed, -ing and -er."""
    yield root
    yield root + "s"
    yield from _PLURALS.get(root, ())
    if root.endswith(("s", "x", "z", "ch", "sh", "o")):
        yield root + "es"
    elif root.endswith("y"):
        yield root[:-1] + "ies"
    elif root.endswith(("f", "fe")):
        yield root.removesuffix("e")[:-1] + "ves"
    elif root.endswith("man"):
        yield root[:-3] + "men"
    for own in _stems(root) if is_verb or root in VERBS else ():
        yield own + "ed"
        yield (root if root.endswith("y") else own) + "ing"
        if len(root) > 3 and own + "er" not in _NOT_DOERS:
            yield from (own + "er", own + "ers")


_PLURALS: Final = {"mouse": ("mice",), "goose": ("geese",), "calf": ("calves",)}
_NOT_DOERS: Final = frozenset(["banker", "boarder", "brother", "corner", "flower", "shower", "tower"])


def _stems(root: str) -> Iterator[str]:
    """The stems before -ed, -ing and -er: without a final e, with i for y, or with the last letter doubled."""
    if root.endswith("e"):
        if not root.endswith("ee"):
            yield root[:-1]
        return
    doubles = len(root) > 2 and root[-1] not in "aeiouwxy" and root[-2] in _VOWELS and root[-3] not in _VOWELS
    if doubles:
        yield root + root[-1]
    # "star" has only "starring": "staring" is a form of "stare".
    if not doubles or sum(letter in _VOWELS for letter in root) > 1:
        yield root[:-1] + "i" if root.endswith("y") and root[-2] not in _VOWELS else root


_STORED: Final = json.loads((files("skillmix.checkers") / "english" / "clashes.json").read_text(encoding="utf-8"))
_CORE, _FAR, _OF_PEOPLE, _NO_PLACES, _DEEDS, _NOT_HANDLED = (
    frozenset(map(stem, words.split())) for words in _STORED.values()
)
MOST_FAR: Final = 1
"""Different words of fields such as mathematics, grammar and law that a text may have if its topic has none.

A word of their core, such as "subtraction", is one too many.
"""
_PLACING: Final = word_set("behind beside beneath underneath at past opposite inside near of by through")
_PLACED: Final = word_set("left right north south east west next stands stood sits sat hides lies hidden lives turn")
_BEFORE_NOUN: Final = DETERMINERS | word_set("own very same old new")
_BEFORE_OF: Final = word_set(
    "made think thought heard hear dream dreamed dreamt proud full afraid care out speak tired kind sort rid fond ahead"
    " aware capable sure because consist smell taste know knew what talk beware approve short front most best"
)
_SENSED: Final = word_set("blue green purple yellow pink brown turquoise deaf wooden woolen furry hairy juicy fried")
_CLASH_DISTANCE: Final = 4
_NO_END: Final = word_set("the a an and because although than since") | {"of"}
_SINCE: Final = word_set("ever long not has have had happened")


def clash(passage: Passage, topic: TopicWords) -> str | None:
    """Say which words of a text do not belong together; None if none are known to clash.

    >>> from skillmix.checkers.passage import passage_of
    >>> from skillmix.checkers.judge import topic_words
    >>> clash(passage_of("The lobby arrested a comma."), topic_words("Hotel lobbies", ["lobby"], ["desk"]))
    'its words are of far fields: arrested, comma'
    """
    far = {stem(word.lower): word.text for word in passage.words if not word.text[0].isupper()}
    far = {one: text for one, text in far.items() if one in _FAR or one in _CORE}
    if far:
        own = frozenset(map(stem, topic.forms))
        far = {one: text for one, text in far.items() if one not in own and own.isdisjoint(_CORE)}
    if len(far) > MOST_FAR or not _CORE.isdisjoint(far):
        return f"its words are of far fields: {', '.join(sorted(far.values()))}"
    for sentence in passage.sentences:
        for piece in sentence.pieces:
            for index in range(len(piece) - 1):
                noun = _clashing_noun(piece, index, topic)
                if noun:
                    return f'"{piece[index].text}" has nothing to do with "{noun}"'
        last = _unfinished_end(sentence)
        if last:
            return f'a sentence ends in "{last}"'
    return None


def _clashing_noun(piece: Words, index: int, topic: TopicWords) -> str | None:
    """The noun after a verb that cannot handle it, after a place where it cannot be, or after a thing's "its"."""
    noun = _noun_after(piece, index + 1)
    if not noun or topic_bases(piece[index + 1 : index + 4], topic):
        return None
    before, kind = piece[index].lower, stem(noun)
    has_article = piece[index + 1].lower in _BEFORE_NOUN
    clashes = (
        (stem(before) in _DEEDS and has_article and kind in _NOT_HANDLED)
        or (before == "its" and kind in _OF_PEOPLE)
        or (before in _SENSED and not has_article and kind in _NO_PLACES)
        or (_places(piece, index) and has_article and kind in _NO_PLACES)
    )
    return noun if clashes else None


def _unfinished_end(sentence: Sentence) -> str | None:
    """The last word of a sentence that cannot end in it, such as "the", if a full stop follows."""
    end = sentence.text.rstrip("\"'”’)")
    last = [word.lower for word in sentence.words[-2:]]
    if len(last) < 2 or last[1] not in _NO_END or not end.endswith(".") or end.endswith(".."):
        return None
    allowed = {"of": _BEFORE_OF, "since": _SINCE}.get(last[1], frozenset[str]())
    return None if last[0] in allowed else last[1]


def _noun_after(piece: Words, index: int) -> str:
    """The first word after articles and the like; empty at the end of a piece."""
    words = (word.lower for word in piece[index : index + _CLASH_DISTANCE] if word.lower not in _BEFORE_NOUN)
    return next(words, "").removesuffix("'s")


def _places(piece: Words, index: int) -> bool:
    before = piece[index - 1].lower if index else ""
    lower = piece[index].lower
    return lower in ("behind", "beside", "beneath", "underneath") or (lower in _PLACING and before in _PLACED)


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
    >>> from skillmix.checkers.judge import topic_words
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
