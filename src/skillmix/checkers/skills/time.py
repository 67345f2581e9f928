"""Checkers of time: steps in order, deadlines, time spans, simultaneous actions."""

from collections.abc import Iterator
from typing import Final

from skillmix.checkers.passage import Passage, Sentence, Span, Words, shows
from skillmix.checkers.verbs import PAST
from skillmix.checkers.words import DETERMINERS, lists_of, numbers_in, word_set

_LISTS: Final = lists_of("time")

_AFTER_DETERMINER: Final = DETERMINERS | {"very", "in", "of"}
_OLD_THEN: Final = frozenset({"since", "by", "until", "till", "back", "even", "from", "if", "but"})  # "since then"


@shows("sequence of steps", "first", "to begin", "to start")
def sequence_of_steps(passage: Passage) -> Iterator[Span]:
    """Find "first A, then B, finally C"."""
    words = passage.words
    opening = middle = -1
    for index in range(len(words) - 2):
        if middle < 0 and _opens_steps(words, index):
            opening = index
        elif opening >= 0 and middle < 0 and index - opening >= 3 and _goes_on(words, index):
            middle = index
        elif middle >= 0 and index - middle >= 3 and _ends_steps(words, index):
            yield Span(words[opening].start, words[index + 2].end)


def _opens_steps(words: Words, index: int) -> bool:
    before = words[index - 1].lower if index else ""
    lower, after = words[index].lower, words[index + 1].lower
    if lower in _LISTS["firsts"]:
        is_name = words[index + 1].text[0].isupper() and after != "i"  # not a step: "First Avenue"
        return before not in _AFTER_DETERMINER and after not in _LISTS["no step after"] and not is_name
    return lower == "to" and after in ("begin", "start") and words[index + 2].lower == "with"


def _goes_on(words: Words, index: int) -> bool:
    before, lower, after = words[index - 1].lower, words[index].lower, words[index + 1].lower
    if lower == "after":
        return after in ("that", "this", "which")
    if lower not in _LISTS["thens"] or before in _AFTER_DETERMINER:
        return False
    return before not in _OLD_THEN if lower == "then" else after not in _LISTS["no step after"]


def _ends_steps(words: Words, index: int) -> bool:
    before, lower, after = words[index - 1].lower, words[index].lower, words[index + 1].lower
    if lower == "end":
        return (words[index - 2].lower, before) == ("in", "the")
    if lower not in _LISTS["lasts"]:
        return False
    return lower != "last" or (before not in _AFTER_DETERMINER and after not in _LISTS["no step after"])


_TIMES: Final = _LISTS["days"] | {f"{day}s" for day in _LISTS["days"]} | _LISTS["times"]
_BEFORE_TIMES: Final = _LISTS["before times"] | _LISTS["days"]
_AFTER_CLOCK: Final = _LISTS["after clock"] | _TIMES
_MOST_BEFORE: Final = 5


def _time_at(words: Words, index: int, ends: frozenset[int]) -> int | None:
    """Find the index after a time that starts here: "the end of May", "five o'clock", "Monday morning"."""
    limit = min(index + _MOST_BEFORE, len(words))
    while index < limit:
        word = words[index]
        if word.lower.removesuffix("'s") in _TIMES:
            return index + 1
        if word.lower[0].isdigit() or word.lower not in _BEFORE_TIMES:
            return _clock_at(words, index, ends)
        index += 1
    return None


def _clock_at(words: Words, index: int, ends: frozenset[int]) -> int | None:
    lower = words[index].lower
    after = index + 1
    if ":" not in lower and not (lower.count(".") == 1 and lower[0].isdigit()):
        number = next(iter(numbers_in(words[index : index + 3])), None)
        if number is None or number.first or not 0 <= number.value <= 31:
            return None
        after = index + number.after
        if after < len(words) and words[after].lower in ("th", "st", "nd", "rd"):
            return after + 1
        if after < len(words) and words[after].lower in _LISTS["minutes"]:
            after += 1
    closed = after >= len(words) or words[after - 1].end in ends
    return after if closed or words[after].lower in _AFTER_CLOCK else None


def _piece_ends(sentence: Sentence) -> frozenset[int]:
    return frozenset(piece[-1].end for piece in sentence.pieces)


@shows("duty with a deadline", "by ", "before ", "later than")
def duty_with_a_deadline(passage: Passage) -> Iterator[Span]:
    """Find a duty with a deadline, as in "you must do it by Friday"."""
    for sentence in passage.sentences:
        words = sentence.words
        limits = [index for index in range(len(words) - 1) if _limits(words, index)]
        duties = [index for index in range(len(words) - 1) if _is_duty(words, index)]
        if not limits or not duties:
            continue
        ends = _piece_ends(sentence)
        for index in limits:
            end = _time_at(words, index + 1, ends)
            if end:
                yield Span(words[min(index, duties[0])].start, words[max(end - 1, duties[0])].end)


def _limits(words: Words, index: int) -> bool:
    after = words[index + 1].lower
    if words[index].lower == "by":
        return after not in ("day", "night") and (not index or words[index - 1].lower != after)  # not "one by one"
    if words[index].lower != "than":
        return words[index].lower == "before"
    return index >= 2 and words[index - 1].lower == "later" and words[index - 2].lower in ("no", "not")


def _is_duty(words: Words, index: int) -> bool:
    """Return whether the words state a duty, unlike "need not" and "don't have to"."""
    lower, after = words[index].lower, words[index + 1].lower
    before = words[index - 1].lower if index else ""
    if before in ("not", "no", "never", "without", "cannot") or before.endswith("n't") or after in ("not", "never"):
        return False
    if lower == "due":
        return after != "to"
    done = words[index + 2].lower if index + 2 < len(words) else ""
    if after == "have" and (done in PAST or done.endswith(("ed", "en")) or done in ("been", "gone", "done")):
        return False  # a guess, not a duty: "it must have gone down"
    return lower in _LISTS["duties"] or (lower in _LISTS["having"] and after == "to")


@shows("start and end time", "from ")
def start_and_end_time(passage: Passage) -> Iterator[Span]:
    """Find a time span, as in "from nine until five"."""
    for sentence in passage.sentences:
        words = sentence.words
        ends = _piece_ends(sentence)
        for index, word in enumerate(words[:-3]):
            end = _time_span(words, index, ends) if word.lower == "from" else None
            if end and not _is_change(words, index, end, ends):
                yield Span(word.start, words[end - 1].end)


def _time_span(words: Words, index: int, ends: frozenset[int]) -> int | None:
    first = _time_at(words, index + 1, ends)
    if first is None:
        return None
    for until in range(first, min(first + 5, len(words) - 1)):
        if words[until].lower in _LISTS["until"]:
            end = _time_at(words, until + 1, ends)
            if end:
                again = words[end - 1].lower == words[first - 1].lower in _LISTS["units"]  # as in "from day to day"
                return None if again else end
    return None


def _is_change(words: Words, index: int, end: int, ends: frozenset[int]) -> bool:
    """Return whether two bare numbers are amounts rather than times: "it grew from five to ten"."""
    opening = index
    while opening > max(index - 30, 0) and words[opening - 1].end not in ends:
        opening -= 1
    before = {word.lower for word in words[opening:index]}
    bare = end - index <= 5 and not any(word.lower in _TIMES or ":" in word.lower for word in words[index:end])
    return not before.isdisjoint(_SHIFTS) or (bare and not before.isdisjoint(_LISTS["changes"]))


_SHIFTS: Final = _LISTS["shifts"]
"""Words before "from A to B" that describe a change or a transfer, not a time span: "moved", "handed"."""
_NOT_BETWEEN: Final = DETERMINERS - {"all", "both"} | word_set("in of on at to for with from by one two three")
_NOUNS_TOO: Final = word_set("building painting drawing meeting clothing recording wedding")
"""Words in -ing that are nouns after "'s": "the baker's painting"."""
_MOST_JOINTS: Final = 8


@shows("two actions at once", "ing")
def two_actions_at_once(passage: Passage) -> Iterator[Span]:
    """Find two simultaneous actions, as in "while A was cooking, B was reading"."""
    for sentence in passage.sentences:
        words = sentence.words
        actions = [index for index, word in enumerate(words) if word.lower.endswith("ing") and _is_action(words, index)]
        if len(actions) < 2:
            continue
        joints = [index for index, word in enumerate(words) if word.lower in _LISTS["joining"]]
        joints += [
            index
            for index in range(len(words) - 2)
            if (words[index].lower == "same" and words[index + 1].lower == "time")
        ]
        if any(_joins(sentence, joint, actions) for joint in joints[:_MOST_JOINTS]):
            yield Span(words[0].start, words[-1].end)


def _is_action(words: Words, index: int) -> bool:
    lower = words[index].lower
    if len(lower) < 5 or lower in _LISTS["no actions"] or index == 0:
        return False
    for word in reversed(words[max(index - 3, 0) : index]):
        if word.lower in _NOT_BETWEEN:  # a noun in -ing: "is a tall building"
            return False
        if word.lower in _LISTS["being"] or (word.lower.endswith("'s") and lower not in _NOUNS_TOO):
            return True
    return False


def _joins(sentence: Sentence, joint: int, actions: list[int]) -> bool:
    """Return whether one action is in the clause of the joining word and another outside it."""
    words = sentence.words
    if actions[0] < joint < actions[-1]:
        return True
    ends = _piece_ends(sentence)
    close = next((index for index in range(joint, len(words)) if words[index].end in ends and index > joint + 1), 0)
    if joint < actions[0] <= close < actions[-1]:
        return True
    # without a comma, a second "be" shows the second clause: "as she was sewing he was reading"
    between = {word.lower for word in words[actions[0] : actions[-1]]}
    apart = actions[-1] - actions[0] >= 3 and between.isdisjoint(("and", "or", "but", "nor", "that"))
    return joint < actions[0] and apart and close >= actions[-1]
