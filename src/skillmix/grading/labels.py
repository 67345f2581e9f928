"""Match labels that equal no criterion's name: decorated names, and the last label if one criterion is left.

Equality is always tried first, and these rules apply only to criteria that no row of the reply names. A decorated name
("metaphor -- clearly") has the same content words as the name. A hint ("loaded question" for a longer name) shares a
content word with it, and is accepted only if exactly one label and one criterion remain.

`label_words.json` lists English words, so a word of another language is always a content word.
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import takewhile
from typing import Final

from skillmix.catalog.catalog import before_parenthesis, fold_name
from skillmix.grading.tables import VALUE_SIGNS, VALUE_WORD
from skillmix.prompts.rubric import Rubric, label_forms

_LISTS: Final[dict[str, str]] = json.loads((files("skillmix.grading") / "label_words.json").read_text(encoding="utf-8"))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _listed(name: str) -> frozenset[str]:
    return _words(_LISTS[name])


FILLERS: Final = _listed("fillers")
"""Words that do not indicate which criterion a label names."""
UNFINISHED: Final = _words("a an the of to in on for with by at as and or about into from")
"""Words that never end a label unless it is truncated."""
NEGATIONS: Final = _listed("negations")
SUMMARIES: Final = _listed("summaries")
"""Words in summary rows, such as "Total points earned"."""
KINDS: Final = _listed("kinds")
"""Nouns for kinds of skills; the names of many skills contain them, so they identify no skill."""
ADJECTIVES: Final = _words("cognitive informal linguistic literary logical pragmatic rhetorical semantic syntactic")
"""Adjectives that also describe qualities of a text, as in "logical flow"."""
OTHER_QUALITIES: Final = _listed("other qualities")
"""Qualities of a text for which graders add rows that the prompt does not request."""
SENSE_WORDS: Final = _listed("sense words")
BESIDE_SENSE: Final = _listed("beside sense")
"""Words that graders put next to a word for sense."""
TOPIC_WORDS: Final = _listed("topic words")
BESIDE_TOPIC: Final = _listed("beside topic")
"""Words that graders put next to a word for the topic."""
LENGTH_WORDS: Final = _words("sentence sentences length limit limits concise conciseness brevity brief short")

_TAG = re.compile(r"</?[A-Za-z]{1,10} ?/?>")
_SUPERSCRIPTS = re.compile(r"[⁰¹²³⁴-⁹]")


@lru_cache(maxsize=1 << 12)
def label_words(label: str) -> tuple[str, ...]:
    """Return the folded words of a label without numbering, maximum points and tags."""
    return tuple(label_forms(_SUPERSCRIPTS.sub("", _TAG.sub(" ", label))).plain[-1].split())


def content_words(words: Iterable[str]) -> tuple[str, ...]:
    """Return the words, each only once, that indicate which criterion a label names.

    >>> content_words(label_words("2. Uses a loaded question, clearly"))
    ('loaded', 'question')
    """
    return tuple(dict.fromkeys(w for w in words if w not in FILLERS and len(w) > 1 and not w.isdecimal()))


def same_word(one: str, other: str) -> bool:
    """Return whether two words are equal apart from their endings.

    >>> same_word("metaphor", "metaphorical"), same_word("metaphor", "metaphysics")
    (True, False)
    """
    if one == other:
        return True
    if one[:_SHORTEST] != other[:_SHORTEST]:
        return False
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    endings = _INFLECTIONS if common > _SHORTEST else _INFLECTIONS_OF_SHORT_WORDS
    if one[common:] in endings and other[common:] in endings:
        return True
    # The first letters of two endings may be equal: "syllogism" and "syllogistic" share an "s" after their stem.
    return any(
        one[cut:] in _ENDINGS and other[cut:] in _ENDINGS
        for cut in range(max(_SHORTEST_STEM, common - _MOST_IN_COMMON), common + 1)
    )


def shared_words(words: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the words that also occur in the other list, regardless of endings."""
    return [word for word in words if any(same_word(word, other) for other in others)]


def have_the_same_words(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether two lists have the same words in any order, regardless of endings."""
    return (
        len(one) == len(other) > 0
        and len(shared_words(one, other)) == len(one)
        and len(shared_words(other, one)) == len(one)
    )


_SHORTEST: Final = 3
_SHORTEST_STEM: Final = 5
_MOST_IN_COMMON: Final = 3
"""The maximum number of letters that two different endings may have in common."""
_INFLECTIONS: Final = frozenset({"", "s", "es", "ed", "ing", "er", "ers"})
_INFLECTIONS_OF_SHORT_WORDS: Final = frozenset({"", "s", "ing"})
_ENDINGS: Final = _INFLECTIONS | _listed("endings")


_CUT = re.compile(r"--+|[–—:;(\[\]!→=]|(?<=\s)-(?=\s)|\.(?=\s)")
_NUMBER_AFTER = re.compile(r"[(\[](?:skill|criterion|item) ?\#?\d{1,2}[)\]]", re.IGNORECASE)
_BRACKETED = re.compile(r"[(\[]([^()\[\]]++)[)\]]")
_VALUE = re.compile(rf"[{VALUE_SIGNS}]|\b(?:one|zero|{VALUE_WORD})", re.IGNORECASE)
_VALUE_AFTER_DELIMITER = re.compile(
    rf"[{VALUE_SIGNS}]|[:=|>→(\[｜│–—-][\s*_`\"“]{{0,8}}(?:one|zero|{VALUE_WORD})", re.IGNORECASE
)
_DIGIT = re.compile(r"\d")
_LONG_QUOTATION: Final = 3
"""The minimum number of content words in a quoted label, because shorter labels can match a text by chance."""
_MOST_CUTS: Final = 6
_LONGEST_REMARK: Final = 12
"""The maximum number of words after the name in a decorated label."""
_LONGEST_LEAD: Final = 4
"""The maximum number of words before the name in a decorated label, such as "Literary device:"."""


def decorated_criterion(rubric: Rubric, label: str) -> int | None:
    """Find the criterion whose name a label decorates with a remark, a category or other fillers; return its index.

    >>> from skillmix.prompts.rubric import rubric_of
    >>> rubric = rubric_of(["metaphor", "red herring"], "Sewing")
    >>> [decorated_criterion(rubric, label) for label in ("metaphor -- clearly", "Red herring (a fallacy)", "herring")]
    [0, 1, None]
    """
    label = _NUMBER_AFTER.sub("", label)
    cuts = list(_CUT.finditer(label))[:_MOST_CUTS]
    parts = [label]  # the label and its parts before a possible remark, from long to short
    for cut in reversed(cuts):
        head, remark = label[: cut.start()].strip(), label[cut.end() :]
        if head and len(label_words(remark)) <= _LONGEST_REMARK and not _DIGIT.search(remark):
            parts.append(head)
    for part in parts:
        index = _criterion_of_part(rubric, part)
        # A remark after the exact name of a skill may name another skill: "sympathy (as opposed to empathy)".
        if index is not None and index < rubric.k and part != label and rubric.criterion_of(part) == index:
            return None if _has_another_parenthesis(rubric, label, index) else index
        if index is not None:
            topic = _name_words(rubric.topic)
            if index == rubric.k and len(shared_words(topic, label_words(part))) < len(topic):
                # The remark must not contain another topic.
                foreign = set(content_words(label_words(label))) - TOPIC_WORDS - BESIDE_TOPIC - NEGATIONS
                if any(not shared_words([word], topic) for word in foreign):
                    return None
            return None if _is_about_another(rubric, label, index) else index
    # The parts after a few words, as in "Literary device: metaphor" or "Skill 2 (metaphor)".
    for cut in cuts:
        lead = label_words(label[: cut.start()])
        if len(lead) > _LONGEST_LEAD or not NEGATIONS.isdisjoint(lead):
            continue
        index = _criterion_of_part(rubric, label[cut.end() :].strip(" )]"))
        # "accident (fallacy)" is not the skill "fallacy" with a category before it.
        if index is not None and not KINDS.issuperset(criterion_words(rubric, index)):
            return None if _is_about_another(rubric, label, index) else index
    return None


def _criterion_of_part(rubric: Rubric, part: str) -> int | None:
    index = rubric.criterion_of(part)
    return _criterion_of_words(rubric, label_words(part)) if index is None else index


def _is_about_another(rubric: Rubric, label: str, index: int) -> bool:
    return _names_another(rubric, label, index) or _has_another_parenthesis(rubric, label, index)


def is_hint(rubric: Rubric, label: str, index: int) -> bool:
    """Return whether a label shares a content word with a criterion and has no closer interpretation.

    A word for a kind of skill is not enough: "hypothetical syllogism" is not "statistical syllogism". Any other shared
    word is enough, because every other criterion has its own row. For example, a grader that was asked about folk
    physics and writes "everyday physics" means folk physics.

    >>> from skillmix.prompts.rubric import rubric_of
    >>> rubric = rubric_of(["complex question (loaded question with implicit assumption)"], "Sewing")
    >>> is_hint(rubric, "loaded question", 0), is_hint(rubric, "rhetorical question", 0)
    (True, False)
    """
    words = label_words(label)
    own = criterion_words(rubric, index)
    if _is_unfit(words, own) or _has_another_parenthesis(rubric, label, index):
        return False
    words = content_words(words)
    shared = shared_words(words, own)
    return not _is_nearer_to_another(rubric, words, index, len(shared)) and _is_enough(
        rubric, index, shared, [word for word in words if word not in shared]
    )


def stands_for_nothing(rubric: Rubric, label: str, index: int) -> bool:
    """Return whether a row is a total or about the length (which code checks), rather than about this criterion.

    >>> from skillmix.prompts.rubric import rubric_of
    >>> rubric = rubric_of(["metaphor"], "Sewing")
    >>> [stands_for_nothing(rubric, label, 0) for label in ("Total (out of 5)", "Keeps to the limit", "Grammar")]
    [True, True, False]
    """
    words = [word for word in label_words(label) if not word.isdecimal()]
    if SUMMARIES.issuperset(words):
        return True
    return not LENGTH_WORDS.isdisjoint(words) and not is_hint(rubric, label, index)


def may_be_quoted(rubric: Rubric, label: str, index: int, text: str | None) -> bool:
    """Return whether a label may come from the student's text.

    This is assumed if the text contains all words of a long label, or contains a value and the words by which the
    label would match the criterion.
    """
    if not text:
        return False
    written = text_words(text)
    words = content_words(label_words(label))
    if len(words) >= _LONG_QUOTATION and _are_in(words, written):
        return True
    # Every text contains words of its topic, and many contain a "no" or a "one" somewhere.
    value = (_VALUE_AFTER_DELIMITER if index == rubric.k else _VALUE).search(text)
    return value is not None and _are_in(shared_words(words, criterion_words(rubric, index)), written)


def _are_in(words: Sequence[str], written: frozenset[str]) -> bool:
    return all(any(same_word(word, other) for other in written) for word in words)


@lru_cache(maxsize=64)
def text_words(text: str) -> frozenset[str]:
    """Return the folded words of a student's text."""
    return frozenset(fold_name(text).split())


def criterion_words(rubric: Rubric, index: int) -> tuple[str, ...]:
    """Return the content words of a criterion's name, and for topic and sense also the words that graders use."""
    if index < rubric.k:
        return _name_words(rubric.criteria[index].name)
    if index == rubric.k:
        return (*_name_words(rubric.topic), *sorted(TOPIC_WORDS))
    return tuple(sorted(SENSE_WORDS if index == rubric.k + 1 else LENGTH_WORDS))


@lru_cache(maxsize=1 << 10)
def _name_words(name: str) -> tuple[str, ...]:
    words = fold_name(name).split()
    return content_words(words) or tuple(words)


def _criterion_of_words(rubric: Rubric, words: tuple[str, ...]) -> int | None:
    content = content_words(words)
    skills = [
        index
        for index in range(rubric.k)
        if any(_is_alias(content, alias) for alias in _aliases(rubric.criteria[index].name))
    ]
    if not skills:
        # A short name with one more word, as in "straw man argument" or "ad hominem attack".
        names = [_name_words(before_parenthesis(criterion.name)) for criterion in rubric.criteria[: rubric.k]]
        skills = [
            index
            for index, name in enumerate(names)
            if 2 <= len(name) == len(content) - 1 and not KINDS.issuperset(name) and set(name) <= set(content)
        ]
    if len(skills) > 1:
        return None
    own = criterion_words(rubric, skills[0]) if skills else _name_words(rubric.topic)
    if _is_unfit(words, own):
        return None
    return skills[0] if skills else _topic_or_sense(rubric, content)


def _is_alias(words: tuple[str, ...], alias: tuple[str, ...]) -> bool:
    # "fallacies" does not stand for the skill "fallacy", because the plural refers to the kind of skill.
    return sorted(words) == sorted(alias) if KINDS.issuperset(alias) else have_the_same_words(words, alias)


def _topic_or_sense(rubric: Rubric, words: tuple[str, ...]) -> int | None:
    topic = _name_words(rubric.topic)
    if not words or any(shared_words(words, _name_words(c.name)) for c in rubric.criteria[: rubric.k]):
        return None
    for index, own, beside in ((rubric.k, TOPIC_WORDS, BESIDE_TOPIC), (rubric.k + 1, SENSE_WORDS, BESIDE_SENSE)):
        rest = [word for word in words if word not in own | beside]
        if own.isdisjoint(words) or (rest and index > rubric.k):
            continue
        if len(shared_words(rest, topic)) == len(rest):
            return index
    return None


@lru_cache(maxsize=1 << 10)
def _aliases(name: str) -> tuple[tuple[str, ...], ...]:
    """Return the content words of a name, and of each part that a parenthesis or "or" separates."""
    short = before_parenthesis(name)
    # Words for a kind of skill, such as "informal fallacy", do not identify a skill, and a single word does not either.
    inner = [
        part
        for part in _BRACKETED.findall(name)
        if len(_name_words(part)) > 1 and not KINDS.issuperset(_name_words(part))
    ]
    parts = short.split(" or ")
    return tuple(dict.fromkeys(_name_words(part) for part in (name, short, *inner, *parts)))


def _is_unfit(words: tuple[str, ...], own: tuple[str, ...]) -> bool:
    """Return whether a label is truncated, contains a negation, or contains a number that may be a point.

    Negations and numbers in the name itself do not count.
    """
    return bool(words) and (
        words[-1] in UNFINISHED or any((word in NEGATIONS or word.isdecimal()) and word not in own for word in words)
    )


def _has_another_parenthesis(rubric: Rubric, label: str, index: int) -> bool:
    """Return whether a label and a name differ in the parentheses that distinguish skills with the same short name."""
    inner = _BRACKETED.findall(rubric.criteria[index].name) if index < rubric.k else []
    label_inner = [content_words(label_words(part)) for part in _BRACKETED.findall(label)]
    own = [word for part in inner for word in _name_words(part)]
    return bool(own) and any(len(words) > 1 and not shared_words(words, own) for words in label_inner)


def _names_another(rubric: Rubric, label: str, index: int) -> bool:
    """Return whether a label names a second criterion, apart from kinds and parts of the first criterion's name."""
    spaced = f" {fold_name(label)} "
    own = f" {fold_name(rubric.criteria[index].name if index != rubric.k else rubric.topic)} "
    others = [before_parenthesis(c.name) for c in rubric.criteria[: rubric.k]]
    is_kind = [KINDS.issuperset(fold_name(name).split()) for name in others]
    others = [
        *(name for number, name in enumerate(others) if number != index and not is_kind[number]),
        *_OTHERS_BESIDE[max(0, index - rubric.k + 1)],
    ]
    return any(f" {fold_name(name)} " in spaced and f" {fold_name(name)} " not in own for name in others)


_OTHERS_BESIDE: Final = (("topic", "sense"), ("sense",), ("topic",), ("topic", "sense"))
"""For labels of a skill, topic, sense and length, in this order: words that refer to another criterion."""


def _is_nearer_to_another(rubric: Rubric, words: tuple[str, ...], index: int, count: int) -> bool:
    """Return whether a label fits another criterion better; for topic and sense, an equal fit counts as better."""
    skills = [c.name for number, c in enumerate(rubric.criteria[: rubric.k]) if number != index]
    if any(_is_alias(words, alias) for name in skills for alias in _aliases(name)):
        return True
    most = count if index >= rubric.k else count + 1
    others = (criterion_words(rubric, other) for other in range(rubric.k + 2) if other != index)
    return any(len(shared_words(words, other)) >= most for other in others)


def _is_enough(rubric: Rubric, index: int, shared: list[str], foreign: list[str]) -> bool:
    """Return whether shared words identify a criterion, given the other words of the label."""
    if index >= rubric.k:
        # A label for another topic, or for a sense of humor, has further words that do not belong to topic or sense.
        return bool(shared) and (BESIDE_TOPIC if index == rubric.k else BESIDE_SENSE).issuperset(foreign)
    telling = [word for word in shared if word not in KINDS | OTHER_QUALITIES]
    is_quality = ADJECTIVES.issuperset(telling) and not OTHER_QUALITIES.isdisjoint(foreign)
    return bool(telling) and not is_quality
