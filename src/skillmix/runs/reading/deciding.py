"""The rules that turn calls into texts, votes and ballots; whoever reads a journal decides by these functions."""

from collections.abc import Iterable, Mapping

from skillmix.calls import ONLY_TURN
from skillmix.grading.answers import Answer, extract_answer, plain_answer
from skillmix.grading.points import Ballot, StudentText
from skillmix.grading.reader import Reading
from skillmix.runs.graders.run_grader import RunGrader
from skillmix.runs.rules_grader import CodeVerdict, reading_of, with_verdict

Votes = Mapping[int, Reading | None]
"""The vote of each round; None if the round has no reply."""


def is_over(*, turn: int, origin: str, has_reply: bool, problem: str | None, turns: int | None) -> bool:
    """Whether a conversation whose latest call is this one is over: by a reply to its last turn, or by a refusal.

    A final problem is the student's own outcome. An imported conversation is over as it is.

    >>> is_over(turn=1, origin="call", has_reply=True, problem=None, turns=2)
    False
    >>> is_over(turn=1, origin="call", has_reply=False, problem="final", turns=2)
    True
    >>> is_over(turn=ONLY_TURN, origin="call", has_reply=True, problem=None, turns=2)
    True
    """
    if problem is not None:
        return problem == "final"
    return has_reply and (turns is None or turn in (turns, ONLY_TURN) or origin != "call")


def answer_of(reply: str | None, origin: str, turn: int) -> Answer:
    """The graded text of the latest reply; an imported text is the answer itself, and no reply is a refusal.

    The only turn of a conversation does not ask for 'Answer:', so its reply is fine without.
    """
    if reply is None:
        return Answer("", "refused")
    answer = plain_answer(reply) if origin == "imported-text" else extract_answer(reply)
    return Answer(answer.text, "fine") if turn == ONLY_TURN and answer.status == "no marker" else answer


def votes_of(attempts: Iterable[tuple[int, Reading | None]]) -> dict[int, Reading | None]:
    """The vote of each round: its first readable attempt, or else its latest one with a reply.

    Attempts are pairs of round and reading, those of one round in order.
    """
    votes: dict[int, Reading | None] = {}
    for number, reading in attempts:
        earlier = votes.get(number)
        if earlier is None or earlier.points is None:
            votes[number] = reading or earlier
    return votes


def latest_votes_of(attempts: Iterable[tuple[int, Reading | None]]) -> dict[int, Reading | None]:
    """The vote of each round of a person: the latest answer, because a further attempt is a correction."""
    votes: dict[int, Reading | None] = {}
    for number, reading in attempts:
        votes[number] = reading or votes.get(number)
    return votes


def ballot_of(text: StudentText, grader: RunGrader, votes: Votes, verdict: CodeVerdict | None) -> Ballot:
    """A grader's ballot on a text: the votes of a model, the verdict of code, or both.

    Where a grader has code, code decides the skills that have a checker, and the model's votes decide the rest.
    """
    skills = text.combination.skills
    is_woven = verdict.is_woven(skills) if verdict is not None and grader.has_code else None
    if verdict is not None and grader.is_code_alone:
        return Ballot(text, grader.name, 1, (reading_of(verdict, skills),), is_woven)
    readings = tuple([votes[number] for number in sorted(votes)])
    if verdict is not None and grader.has_code:
        readings = tuple([reading and with_verdict(reading, skills, verdict) for reading in readings])
    rounds = max(1, len(votes)) if grader.votes is None else grader.votes
    return Ballot(text, grader.name, rounds, readings, is_woven)
