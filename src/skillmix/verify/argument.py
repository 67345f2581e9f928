"""Arguments: rules with their conclusions, conditions, concessions, exceptions, analogies."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from skillmix.verify.main_words import (
    DETERMINERS,
    SUBJECT_PRONOUNS,
    denies,
    main_words,
    opens_clause,
    word_set,
)
from skillmix.verify.passage import Checker, Passage, Sentence, Span, Words

_THEREFORE: Final = frozenset({"so", "therefore", "thus", "hence", "consequently"})
_NO_CONCLUSION: Final = frozenset({"that", "much", "many", "far", "long", "as"})  # after "so"
_DEGREE: Final = word_set("is are was were be been am not ever it's i'm or and-so do does did")  # before "so"
_CONNECTIVES: Final = frozenset({"and", "but", "then", "yet"})
_CLAUSE_OPENERS: Final = SUBJECT_PRONOUNS | DETERMINERS
_REACH: Final = 60  # words from a rule to its conclusion
_MOST_CUTS: Final = 8
_MOST_RULES: Final = 6


class _Premises(NamedTuple):
    """The words from a cue to a conclusion's mark, where they may be cut, and the conclusion."""

    before: Words
    """What stands before the cue in its piece."""
    words: Words
    cuts: list[int]
    guesses: list[int]
    """Where the first piece may be cut if it holds both a condition and its result."""
    conclusion: Words


def modus_ponens(passage: Passage) -> Span | None:
    """If A, B; A; so B."""
    return _conditional_argument(passage, denial=False)


def modus_tollens(passage: Passage) -> Span | None:
    """If A, B; not B; so not A."""
    return _conditional_argument(passage, denial=True)


def _conditional_argument(passage: Passage, denial: bool) -> Span | None:
    for premises in _premises(passage, "if"):
        for condition, result, fact in _divisions(premises):
            first, second = (result, condition) if denial else (condition, result)
            if (
                _repeats(fact, first, second)
                and _repeats(premises.conclusion, second, first)
                and (denies(fact) != denies(first)) == denial
                and (denies(premises.conclusion) != denies(second)) == denial
            ):
                return Span(min(condition[0].start, result[0].start), premises.conclusion[-1].end)
    return None


def _repeats(words: Words, part: Words, other: Words) -> bool:
    # The word must tell the part from the other one: a shared subject shows nothing.
    mains = main_words(part)
    own = mains - main_words(other)
    return not (own or mains).isdisjoint(main_words(words))


def _premises(passage: Passage, cue: str) -> Iterator[_Premises]:
    words = passage.words
    if cue not in passage.lower or all(word.lower not in _THEREFORE for word in words):
        return
    starts = {piece[0].start for piece in passage.pieces}
    cues = [place for place, word in enumerate(words) if word.lower == cue]
    for place in cues[:_MOST_RULES]:
        for mark in range(place + 4, min(place + _REACH, len(words) - 1)):
            if words[mark].lower in _THEREFORE and _concludes(words, mark):
                yield from _readings(words, place, mark, starts)


def _concludes(words: Words, mark: int) -> bool:
    if words[mark].lower != "so":
        return True
    return words[mark + 1].lower not in _NO_CONCLUSION and words[mark - 1].lower not in _DEGREE


def _readings(words: Words, place: int, mark: int, starts: set[int]) -> Iterator[_Premises]:
    opening = place
    while opening > 0 and words[opening].start not in starts:
        opening -= 1
    inside = words[place + 1 : mark]
    cuts = [
        cut
        for cut in range(1, len(inside))
        if inside[cut].start in starts or (inside[cut].lower in _CONNECTIVES and cut + 1 < len(inside))
    ][:_MOST_CUTS]
    unmarked = range(2, cuts[0] - 1) if cuts else ()
    guesses = [cut for cut in unmarked if inside[cut].lower in _CLAUSE_OPENERS]
    after = _until_mark(words, mark + 1, starts)
    yield _Premises(words[opening:place], inside, cuts, guesses[:_MOST_CUTS], after)
    if words[mark].start not in starts and cuts:  # "the match is therefore off"
        head = words[place + 1 + cuts[-1] : mark]
        yield _Premises(words[opening:place], inside[: cuts[-1]], cuts[:-1], [], head + after)


def _until_mark(words: Words, first: int, starts: set[int]) -> Words:
    end = first + 1
    while end < len(words) and (words[end].start not in starts or not main_words(words[first:end])):
        end += 1
        if end - first > _REACH:
            break
    return words[first:end]


def _divisions(premises: _Premises) -> Iterator[tuple[Words, Words, Words]]:
    """Every way to read the words as condition, result and fact."""
    words, cuts = premises.words, premises.cuts
    for first in (*cuts, *premises.guesses):
        for second in cuts:
            if second > first:
                yield words[:first], words[first:second], words[second:]
    if premises.before and not opens_clause((*premises.before, words[0]), len(premises.before)):
        for first in cuts:  # "the match is off if it rains"
            yield words[:first], premises.before, words[first:]


def disjunctive_syllogism(passage: Passage) -> Span | None:
    """Either A or B; not A; so B."""
    for premises in _premises(passage, "either"):
        words = premises.words
        choice = next((place for place, word in enumerate(words) if word.lower == "or"), 0)
        for cut in premises.cuts:
            if not 0 < choice < cut - 1:
                continue
            one, other, ruled_out = words[:choice], words[choice + 1 : cut], words[cut:]
            if denies(premises.conclusion) or not denies(ruled_out):
                continue
            for left, right in ((one, other), (other, one)):
                if _repeats(ruled_out, left, right) and _repeats(premises.conclusion, right, left):
                    return Span(words[0].start, premises.conclusion[-1].end)
    return None


class _Condition(NamedTuple):
    """One "if": what stands before it in its piece, its if-part, and what follows up to the next "if"."""

    before: Words
    part: Words
    result: Words


def _conditions(passage: Passage) -> list[_Condition]:
    """All ifs in order; none unless there are at least two."""
    words = passage.words
    if passage.lower.count("if") < 2:
        return []
    places = [place for place, word in enumerate(words) if word.lower == "if"][: 2 * _MOST_RULES]
    if len(places) < 2:
        return []
    starts = {piece[0].start for piece in passage.pieces}
    ends = {sentence.start for sentence in passage.sentences}
    conditions = []
    for place, following in pairwise([*places, min(places[-1] + _REACH, len(words))]):
        opening = place
        while opening > 0 and words[opening].start not in starts and place - opening < _REACH:
            opening -= 1
        last = place + 1
        while last < min(following, place + _REACH) and words[last].start not in ends:
            last += 1
        inside = words[place + 1 : last]
        cut = _end_of_condition(inside, starts)
        conditions.append(_Condition(words[opening:place], inside[:cut], inside[cut:]))
    return conditions


_ENDING_A_CONDITION: Final = frozenset({"then", "and", "but", "or", "else"})


def _end_of_condition(words: Words, starts: set[int]) -> int:
    for cut, word in enumerate(words[1:], start=1):
        if (word.start in starts or word.lower in _ENDING_A_CONDITION) and main_words(words[cut:]):
            return cut
    for openers in (SUBJECT_PRONOUNS, DETERMINERS):
        for cut, word in enumerate(words[2:-1], start=2):
            if word.lower in openers:
                return cut
    return len(words)


def hypothetical_chain(passage: Passage) -> Span | None:
    """If A, B, and if B, C."""
    for first, second in pairwise(_conditions(passage)):
        if not first.part or not first.result or not second.part or len(second.result) < 2:
            continue
        new = main_words(first.result) - main_words(first.part)
        if not new.isdisjoint(main_words(second.part)) and denies(first.result) == denies(second.part):
            return Span(first.part[0].start, second.result[-1].end)
    return None


def two_way_condition(passage: Passage) -> Span | None:
    """If A, B, and if not A, C."""
    for first, second in pairwise(_conditions(passage)):
        if not first.part or not second.part or denies(first.part) == denies(second.part):
            continue
        shared = not main_words(first.part).isdisjoint(main_words(second.part))
        cut_down = denies(second.part) and not main_words(second.part)
        # "you lose if you go and you lose if you don't": the results stand before the ifs
        results = len(first.result) >= 2 and (len(second.result) >= 2 or len(first.before) >= 2)
        if (shared or cut_down) and results:
            return Span(first.part[0].start, (second.result or second.part)[-1].end)
    return None


_CONCEDING: Final = frozenset({"although", "though", "granted", "even", "albeit"})
_AGAINST: Final = frozenset({"still", "nevertheless", "nonetheless", "anyway", "yet", "regardless", "anyhow"})
_AGAINST_PAIRS: Final = frozenset({("even", "so"), ("the", "same")})
_MOTIONLESS: Final = word_set("stood stand stands sat sit sits lay lie kept keep held hold stay stayed perfectly")


def marked_concession(passage: Passage) -> Span | None:
    """Although A, still B."""
    if "though" not in passage.lower and "even if" not in passage.lower and "granted" not in passage.lower:
        return None
    for sentence in passage.sentences:
        for number, piece in enumerate(sentence.pieces[:-1]):
            if _concedes(piece) and any(_goes_against(later) for later in sentence.pieces[number + 1 :]):
                return Span(piece[0].start, sentence.pieces[-1][-1].end)
    return None


def _concedes(piece: Words) -> bool:
    for place, word in enumerate(piece[:-2]):
        if word.lower in _CONCEDING and opens_clause(piece, place):
            return word.lower != "even" or piece[place + 1].lower in ("though", "if")
    return False


def _goes_against(piece: Words) -> bool:
    for place, word in enumerate(piece):
        before = piece[place - 1].lower if place else ""
        if word.lower == "yet":
            if before in ("", "and", "but"):
                return True
        elif word.lower in _AGAINST and before not in _MOTIONLESS:
            return True
        elif (before, word.lower) in _AGAINST_PAIRS:
            return before == "even" or (place > 1 and piece[place - 2].lower in ("all", "just"))
    return False


_WHOLE: Final = word_set(
    """
    all every each no none everyone everybody everything everywhere nobody nothing nowhere anyone anybody
    anything any no-one
    """
)
_NO_WHOLE_BEFORE: Final = frozenset({"after", "at", "above", "of"})  # "after all"
_NO_WHOLE_AFTER: Final = frozenset({"longer", "matter", "doubt", "sooner", "right", "wonder"})  # "no longer"
_LEAVING_OUT: Final = {("apart", "from"), ("other", "than"), ("save", "for"), ("aside", "from"), ("but", "for")}


def exception_to_a_rule(passage: Passage) -> Span | None:
    """All X except Y."""
    text = passage.lower
    if not ("except" in text or " from" in text or " than" in text or "save for" in text or "but for" in text):
        return None
    for sentence in passage.sentences:
        left_out = _left_out(sentence)
        whole = _whole_groups(sentence.words) if left_out else []
        for start, end in left_out:
            if any(place < start or place >= end for place in whole):
                return Span(sentence.words[0].start, sentence.words[-1].end)
    return None


def _left_out(sentence: Sentence) -> list[tuple[int, int]]:
    """Where each phrase with an exception starts and its piece ends, as places in the sentence's words."""
    found = []
    first = 0
    for piece in sentence.pieces:
        for place, word in enumerate(piece[:-1]):
            pair = (word.lower, piece[place + 1].lower)
            if word.lower in ("except", "excepting") or (pair in _LEAVING_OUT and place + 2 < len(piece)):
                found.append((first + place, first + len(piece)))
        first += len(piece)
    return found


def _whole_groups(words: Words) -> list[int]:
    return [
        place
        for place, word in enumerate(words)
        if word.lower in _WHOLE
        and not (word.lower == "all" and place and words[place - 1].lower in _NO_WHOLE_BEFORE)
        and not (place + 1 < len(words) and words[place + 1].lower in _NO_WHOLE_AFTER)
    ]


_BE: Final = frozenset({"is", "are", "was", "were"})
_LONGEST_TERM: Final = 9
_VERB_PHRASE: Final = word_set("at in on by before after with for to again out up")


def proportional_analogy(passage: Passage) -> Span | None:
    """A is to B as C is to D."""
    if " to " not in passage.lower or (" as " not in f" {passage.lower}" and "what " not in passage.lower):
        return None
    for sentence in passage.sentences:
        words = sentence.words
        starts = {piece[0].start for piece in sentence.pieces}
        places = [place for place in range(1, len(words)) if words[place].lower == "to"]
        for first, second in pairwise(places):
            terms = _terms(words, first, second, starts) if words[first - 1].lower in _BE else None
            if terms and _four_things(terms):
                return Span(terms[0][0].start, terms[3][-1].end)
    return None


def _terms(words: Words, first: int, second: int, starts: set[int]) -> list[Words] | None:
    """The four things around two "to"s, or nothing where they are not compared."""
    last = second + 1
    while last < len(words) and words[last].start not in starts and last - second < _LONGEST_TERM:
        last += 1
    opening = first - 1
    while opening > 0 and words[opening].start not in starts and words[opening].lower not in ("as", "what", "that"):
        opening -= 1
    front = words[opening].lower in ("as", "what")
    middle = words[first + 1 : second - 1 if words[second - 1].lower in _BE else second]
    for place, word in enumerate(middle):
        if word.lower in ("as", "what", "like") or (front and word.start in starts and place):
            skip = 1 if word.lower in ("as", "what", "like", "so") else 0
            left, right = words[opening + front : first - 1], words[second + 1 : last]
            return [left, middle[:place], middle[place + skip :], right]
    return None


def _four_things(terms: list[Words]) -> bool:
    if any(not 0 < len(term) <= _LONGEST_TERM or _is_deed(term) for term in terms):
        return False
    mains = {main_words(term) for term in terms}
    return len(mains) == 4 and frozenset() not in mains


def _is_deed(term: Words) -> bool:
    """Whether a term is rather what somebody is to do: "leave at noon"."""
    return term[0].lower not in DETERMINERS and any(word.lower in _VERB_PHRASE for word in term[1:])


CHECKERS: Final[Mapping[str, Checker]] = {
    "modus ponens": modus_ponens,
    "modus tollens": modus_tollens,
    "disjunctive syllogism": disjunctive_syllogism,
    "hypothetical chain": hypothetical_chain,
    "two-way condition": two_way_condition,
    "marked concession": marked_concession,
    "exception to a rule": exception_to_a_rule,
    "proportional analogy": proportional_analogy,
}
