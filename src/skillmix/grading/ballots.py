"""From stored calls to students' texts, and from grading calls to the points of each text."""

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
    """What a student finally wrote for one generation of one combination."""

    student: str
    combination: Combination
    generation: int
    answer: Answer

    @property
    def conversation(self) -> tuple[str, str, int]:
        """The key of its conversation: student, combination and generation."""
        return self.student, self.combination.id, self.generation

    @property
    def id(self) -> str:
        """The hash under which the text is graded."""
        return text_id(self.answer.text)


@dataclass(frozen=True, slots=True)
class Ballot:
    """One grader's view of one text: a reading for each round, None where no readable attempt is there yet."""

    text: StudentText
    grader: str
    rounds: int
    readings: tuple[Reading | None, ...]

    def rubric(self, phrases: Phrases) -> Rubric:
        """The rubric that the readings follow."""
        return rubric_of(self.text.combination.skills, self.text.combination.topic, phrases=phrases)

    def points(self, rules: Rules, phrases: Phrases) -> Points:
        """Votes and code together."""
        return decide_points(self.rubric(phrases), self.text.answer, self.readings, rounds=self.rounds, rules=rules)


def student_texts(
    calls: Iterable[Call], combinations: Mapping[str, Combination], *, turns: int | None
) -> list[StudentText]:
    """The texts of finished conversations; `turns` is how many a conversation has, None for imported ones.

    A refusal or a filter on the student's side is the student's outcome; a call that failed is not.
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
                    f"The journal does not say what combination {combination} is.",
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
    """A grading call with what was read from it."""

    call: Call
    text: StudentText
    reading: Reading | None
    """None if there is no reply to read."""


Rounds = Mapping[str, int]
"""How many votes on a text each grader has; votes of later rounds, from when it had more, do not count."""


def read_calls(
    texts: Iterable[StudentText], calls: Iterable[Call], *, phrases: Phrases, rounds: Rounds | None
) -> Iterator[ReadCall]:
    """Read every grading of these texts; gradings of other texts (of an older extraction, say) are passed over."""
    for call, text in gradings_of(texts, calls, rounds=rounds):
        reply = call.outcome.text if isinstance(call.outcome, Reply) else None
        yield ReadCall(call, text, None if reply is None else read_reply(text, reply, phrases=phrases))


def gradings_of(
    texts: Iterable[StudentText], calls: Iterable[Call], *, rounds: Rounds | None
) -> Iterator[tuple[Call, StudentText]]:
    """The gradings of these texts in the rounds that count, each with its text; `rounds` is None for all rounds."""
    by_key = {(t.student, t.combination.id, t.generation, t.id): t for t in texts}
    for call in calls:
        if isinstance(call.key, GradeKey) and counts(call.key.round, call.key.grader, rounds):
            text = by_key.get((call.key.student, call.key.combination, call.key.generation, call.key.text))
            if text is not None:
                yield call, text


def counts(number: int, grader: str, rounds: Rounds | None) -> bool:
    """Whether a round, numbered from 0, is among those that its grader has now.

    >>> counts(0, "judge", {"judge": 1}), counts(1, "judge", {"judge": 1}), counts(1, "judge", None)
    (True, False, True)
    """
    return rounds is None or grader not in rounds or number < rounds[grader]


def read_reply(text: StudentText, reply: str, *, phrases: Phrases) -> Reading:
    """What a reply says about a text."""
    rubric = rubric_of(text.combination.skills, text.combination.topic, phrases=phrases)
    return read_grades(rubric, reply, text=text.answer.text)


def ballots(texts: Sequence[StudentText], read: Iterable[ReadCall], *, rounds: Rounds | None) -> list[Ballot]:
    """Every text under every grader of its student; `rounds` by grader, None for as many as there are.

    A student who earned nothing with every text was never given to a grader, and stands under each of them.
    """
    readings: dict[tuple[str, str, str, int], dict[int, Reading | None]] = defaultdict(dict)
    graders: dict[str, set[str]] = defaultdict(set)
    for item in read:
        key = item.call.key
        assert isinstance(key, GradeKey)  # read_calls keeps no other
        if not counts(key.round, key.grader, rounds):
            continue
        place = (key.grader, key.student, key.combination, key.generation)
        graders[key.student].add(key.grader)
        # Attempts come in order: the first readable one is the round's vote.
        earlier = readings[place].get(key.round)
        if earlier is None or earlier.points is None:
            readings[place][key.round] = item.reading or earlier
    everyone = set(rounds) if rounds is not None else set[str]().union(*graders.values())
    gradeable = {text.student for text in texts if text.answer.text}
    result = []
    for text in texts:
        judges = everyone if rounds is not None or text.student not in gradeable else graders[text.student]
        for grader in sorted(judges):
            found = readings.get((grader, text.student, text.combination.id, text.generation), {})
            count = max(1, len(found)) if rounds is None else rounds[grader]
            result.append(Ballot(text, grader, count, tuple(found.get(r) for r in sorted(found))))
    return result
