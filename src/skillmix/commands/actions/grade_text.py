"""`skillmix grade-text`: one text, one grader, one call; what it earned and why."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from skillmix.calls import CallProblem, Decoding, GradeKey, Message, Outcome, Reply, Request, Subject, seed_for, text_id
from skillmix.checkers.judge import Verdict
from skillmix.commands.actions.parse_reply import Named
from skillmix.errors import UserError
from skillmix.grading.answers import plain_answer
from skillmix.grading.points import METRICS, Points, decide_points, text_score
from skillmix.grading.reader import Reading, read_grades
from skillmix.grading.reasons import reasons_of
from skillmix.models.opening import open_model
from skillmix.models.specs import asked_model, parse_spec, uses_code
from skillmix.prompts.files import load_prompts
from skillmix.prompts.prompt_set import GraderVariant
from skillmix.prompts.rubric import Rubric, rubric_of
from skillmix.runs.rules_grader import RulesGrader, applicable_reasons, reading_of, require_checkers, with_verdict
from skillmix.runs.run import rules_named

_GRADING = Decoding(max_tokens=1024)


@dataclass(frozen=True, slots=True)
class GradedText:
    """A grader's reading, and the points after the rules that code decides."""

    rubric: Rubric
    reading: Reading
    points: Points
    verdict: Verdict | None
    """What code found, if code was a grader."""
    reasons: Mapping[str, str]
    """Why code denied a point, by criterion."""

    def as_json(self) -> dict[str, object]:
        """The documented form of `grade-text --json`."""
        return {
            "points": self.reading.by_name(self.rubric),
            "problem": self.reading.problem,
            "notes": list(self.reading.notes),
            "scores": {metric: text_score(self.points, metric) for metric in METRICS},
            "evidence": self.evidence(),
            "reasons": dict(self.reasons),
            "unrequested": list(self.verdict.unrequested) if self.verdict else None,
        }

    def evidence(self) -> dict[str, str | None]:
        """The words that show each skill, where code found them."""
        found = self.verdict.evidence if self.verdict else {}
        names = [criterion.name for criterion in self.rubric.criteria[: self.rubric.k]]
        return {name: self.verdict.quote(found.get(name)) if self.verdict else None for name in names}


def grade_text(named: Named, text: str, *, grader: str, variant: GraderVariant, seed: int, rules: str) -> GradedText:
    """Grade a text that is the answer itself; a model is asked once, code is not asked at all."""
    chosen = rules_named(rules)
    answer = plain_answer(text)
    if answer.status == "empty":
        raise UserError("There is no text to grade.", hint="Give the student's text on standard input.")
    parse_spec(grader)
    catalog, combination = named.resolve()
    prompts = load_prompts(named.prompts)
    rubric = rubric_of(combination.skills, combination.topic, phrases=prompts.phrases)
    verdict = None
    if uses_code(grader):
        verdict = RulesGrader(catalog).verdict(answer.text, skills=combination.skills, topic=combination.topic)
    asked = asked_model(grader)
    if asked is None:
        require_checkers(catalog, combination.skills, grader)
        assert verdict is not None
        reading = reading_of(verdict, combination.skills)
    else:
        prompt = prompts.grader_prompt(catalog, combination, answer=answer.text, variant=variant)
        key = GradeKey("text", combination.id, 0, text_id(answer.text), "grader", 0, 0)
        subject = Subject(combination, prompts.criteria(combination), answer.text)
        request = Request(key, asked, (Message("user", prompt),), _GRADING, seed_for(seed, key), subject)
        reading = read_grades(rubric, _asked(asked, request).text, text=answer.text)
        if verdict is not None:
            reading = with_verdict(reading, combination.skills, verdict)
    points = decide_points(rubric, answer, [reading], rounds=1, rules=chosen)
    found = applicable_reasons(verdict, is_alone=asked is None) if verdict else {}
    reasons = reasons_of(points, combination.skills, answer, chosen, found)
    return GradedText(rubric, reading, points, verdict, reasons)


def _asked(spec: str, request: Request) -> Reply:
    outcome = asyncio.run(_ask(spec, request))
    if isinstance(outcome, CallProblem):
        raise UserError(
            f"The grader did not answer: {outcome.reason}. {outcome.detail}".strip(), hint=_HINTS[outcome.kind]
        )
    return outcome


_HINTS = {
    "fatal": "Check the model's name, its address and the key in the environment.",
    "final": "This grader will not grade this text; try another.",
    "failed": "This grader cannot be asked about this text; try another.",
    "passing": "This may pass; run the command again.",
}


async def _ask(spec: str, request: Request) -> Outcome:
    model = open_model(parse_spec(spec), concurrency=1)

    async def only() -> AsyncIterator[Request]:
        yield request

    outcome: Outcome = Reply("")
    try:
        async for _, answer in model.serve(only()):
            outcome = answer
    finally:
        await model.close()
    return outcome
