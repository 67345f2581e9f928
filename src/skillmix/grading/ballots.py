"""Turn stored calls into students' texts, and grading calls into ballots on each text."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from skillmix.calls import Call, CallProblem, GenerateKey, GradeKey, Reply, text_id
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.grading.answers import Answer, Rules, extract_answer, plain_answer
from skillmix.grading.points import Points, decide_points
from skillmix.grading.reader import Reading, read_grades
from skillmix.prompts.rubric import Phrases, Rubric, rubric_of


@dataclass(frozen=True, slots=True)
class StudentText:
    """The final text of a student for one generation of one combination."""

    student: str
    combination: Combination
    generation: int
    answer: Answer

    @property
    def id(self) -> str:
        """The hash under which the text is graded."""
        return text_id(self.answer.text)


@dataclass(frozen=True, slots=True)
class Ballot:
    """One grader's readings of one text, by round; None where no attempt has been readable yet."""

    text: StudentText
    grader: str
    rounds: int
    readings: tuple[Reading | None, ...]

    def rubric(self, phrases: Phrases) -> Rubric:
        """The rubric that the readings follow."""
        return rubric_of(self.text.combination.skills, self.text.combination.topic, phrases=phrases)

    def points(self, rules: Rules, phrases: Phrases) -> Points:
        """The points of the text, from the votes and from code."""
        return decide_points(self.rubric(phrases), self.text.answer, self.readings, rounds=self.rounds, rules=rules)


def student_texts(
    calls: Iterable[Call], combinations: Mapping[str, Combination], *, turns: int | None
) -> list[StudentText]:
    """The texts of finished conversations; `turns` is the length of a conversation, None for imported ones.

    A refusal or a filtered reply is the student's outcome; a failed call is not.
    """
    last: dict[tuple[str, str, int], Call] = {}
    for call in calls:
        if isinstance(call.key, GenerateKey):
            conversation = (call.key.student, call.key.combination, call.key.generation)
            if conversation not in last or _turn(last[conversation]) < call.key.turn:
                last[conversation] = call
    texts = []
    for (student, combination, generation), call in last.items():
        answer = _answer_of(call, is_last=turns is None or _turn(call) == turns)
        if answer is not None:
            if combination not in combinations:
                raise UserError(
                    f"The journal has no combination {combination}.",
                    hint="It is damaged. Restore it from a copy.",
                )
            texts.append(StudentText(student, combinations[combination], generation, answer))
    return texts


def _turn(call: Call) -> int:
    return call.key.turn if isinstance(call.key, GenerateKey) else 0


def _answer_of(call: Call, *, is_last: bool) -> Answer | None:
    if isinstance(call.outcome, CallProblem):
        return Answer("", "refused") if call.outcome.kind == "final" else None
    if call.outcome is None or not is_last:
        return None
    if call.origin == "imported-text":
        return plain_answer(call.outcome.text)
    return extract_answer(call.outcome.text)


@dataclass(frozen=True, slots=True)
class ReadCall:
    """A grading call with its text and its reading."""

    call: Call
    text: StudentText
    reading: Reading | None
    """None if the call has no reply."""


Rounds = Mapping[str, int]
"""The number of rounds of each grader; votes of later rounds, left from a larger setting, do not count."""


def read_calls(
    texts: Iterable[StudentText], calls: Iterable[Call], *, phrases: Phrases, rounds: Rounds | None
) -> Iterator[ReadCall]:
    """Read every grading of these texts, and skip gradings of other texts, such as those of an older extraction."""
    for call, text in gradings_of(texts, calls, rounds=rounds):
        reply = call.outcome.text if isinstance(call.outcome, Reply) else None
        yield ReadCall(call, text, None if reply is None else read_reply(text, reply, phrases=phrases))


def gradings_of(
    texts: Iterable[StudentText], calls: Iterable[Call], *, rounds: Rounds | None
) -> Iterator[tuple[Call, StudentText]]:
    """Pair the gradings of these texts in the rounds that count with their text; None counts all rounds."""
    by_key = {(t.student, t.combination.id, t.generation, t.id): t for t in texts}
    for call in calls:
        if isinstance(call.key, GradeKey) and counts(call.key.round, call.key.grader, rounds):
            text = by_key.get((call.key.student, call.key.combination, call.key.generation, call.key.text))
            if text is not None:
                yield call, text


def counts(number: int, grader: str, rounds: Rounds | None) -> bool:
    """Whether a round, numbered from 0, is one of its grader's present rounds.

    >>> counts(0, "gpt", {"gpt": 1}), counts(1, "gpt", {"gpt": 1}), counts(1, "gpt", None)
    (True, False, True)
    """
    return rounds is None or grader not in rounds or number < rounds[grader]


def read_reply(text: StudentText, reply: str, *, phrases: Phrases) -> Reading:
    """Read a grader's reply about a text."""
    rubric = rubric_of(text.combination.skills, text.combination.topic, phrases=phrases)
    return read_grades(rubric, reply, text=text.answer.text)


def ballots(texts: Sequence[StudentText], read: Iterable[ReadCall], *, rounds: Rounds | None) -> list[Ballot]:
    """One ballot for each text and each grader of its student; `rounds` by grader, None for as many as the run has.

    No grader saw a student whose texts all earn nothing without one; such a student gets a ballot from every grader.
    """
    readings: dict[tuple[str, str, str, int], dict[int, Reading | None]] = defaultdict(dict)
    graders: dict[str, set[str]] = defaultdict(set)
    for item in read:
        key = item.call.key
        assert isinstance(key, GradeKey)  # read_calls yields only gradings
        if not counts(key.round, key.grader, rounds):
            continue
        text_key = (key.grader, key.student, key.combination, key.generation)
        graders[key.student].add(key.grader)
        # Attempts come in order: the first readable one is the round's vote.
        earlier = readings[text_key].get(key.round)
        if earlier is None or earlier.points is None:
            readings[text_key][key.round] = item.reading or earlier
    all_graders = set(rounds) if rounds is not None else set[str]().union(*graders.values())
    gradeable = {text.student for text in texts if text.answer.text}
    result = []
    for text in texts:
        its_graders = all_graders if rounds is not None or text.student not in gradeable else graders[text.student]
        for grader in sorted(its_graders):
            votes = readings.get((grader, text.student, text.combination.id, text.generation), {})
            count = max(1, len(votes)) if rounds is None else rounds[grader]
            result.append(Ballot(text, grader, count, tuple(votes[r] for r in sorted(votes))))
    return result
