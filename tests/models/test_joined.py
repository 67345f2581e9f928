"""A model that is asked for each skill alone, and whose texts code joins into one."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from skillmix.calls import (
    ONLY_TURN,
    CallProblem,
    Decoding,
    GenerateKey,
    Limits,
    Message,
    Outcome,
    Reply,
    Request,
    Subject,
)
from skillmix.catalog.combinations import Combination, Draw, draw_combinations, single_skills
from skillmix.catalog.files import load_catalog
from skillmix.experiment.costs import Price
from skillmix.grading.answers import RULES, extract_answer
from skillmix.grading.points import decide_points
from skillmix.models.simple import JoinedModel
from skillmix.models.specs import open_model, parse_spec
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.verdicts import RulesGrader, reading_of

FIGURES = load_catalog("figures")
SYSTEM = Message("system", "Be brief.")


def drawn(k: int, count: int) -> list[Combination]:
    return draw_combinations(Draw(FIGURES.pool("all"), "all", k, 7), count)


def request_for(combination: Combination, generation: int = 0, seed: int | None = 5) -> Request:
    prompts = [Message("user", f"{one.topic}; {'; '.join(one.skills)}") for one in single_skills(combination)]
    key = GenerateKey("m-joined", combination.id, generation, ONLY_TURN)
    return Request(key, "m", (SYSTEM, *prompts), Decoding(max_tokens=40), seed, Subject(combination))


class Spoken:
    """Replies out of order with set texts, and remembers what it was sent."""

    limits = Limits(in_process=True, in_flight=7)

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = outcomes
        self.sent: list[Request] = []

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        self.sent = [request async for request in requests]
        for number in reversed(range(len(self.sent))):
            yield self.sent[number], self.outcomes[number % len(self.outcomes)]

    async def probe(self) -> CallProblem | None:
        return None

    async def close(self) -> None:
        return None


def ask(model: JoinedModel, *requests: Request) -> dict[GenerateKey, Outcome]:
    async def source() -> AsyncIterator[Request]:
        for request in requests:
            yield request

    async def serve() -> dict[GenerateKey, Outcome]:
        pairs = [(request, outcome) async for request, outcome in model.serve(source())]
        assert all(any(request is own for own in requests) for request, _ in pairs)
        return {request.key: outcome for request, outcome in pairs if isinstance(request.key, GenerateKey)}

    return asyncio.run(serve())


def text_of(outcome: Outcome) -> str:
    assert isinstance(outcome, Reply)
    return outcome.text


def joined(*texts: str) -> str:
    (outcome,) = ask(JoinedModel(Spoken(*map(Reply, texts))), request_for(drawn(len(texts), 1)[0])).values()
    return text_of(outcome)


def test_texts_are_joined_in_the_order_of_the_prompts() -> None:
    assert joined("An owl.", "A fox sings. ", "It waits.") == "An owl; A fox sings; It waits."
    assert joined('"Go," said Ann.', 'Ann said, "Go."', "Wait, Tom!") == '"Go," said Ann; Ann said, "Go"; Wait, Tom!'
    assert joined("It is cold, isn't it, Ann?", "He waits.") == "It is cold, isn't it, Ann?; He waits."
    assert joined("Alone at 3.5 m.") == "Alone at 3.5 m."
    assert joined("", "He waits.") == "He waits."
    assert joined("", " ") == ""


def test_each_skill_is_asked_alone_with_the_same_decoding_and_a_seed_of_its_own() -> None:
    pairs, single = drawn(3, 2), drawn(1, 1)
    model = Spoken(Reply("One."))
    requests = [*(request_for(c, generation) for c in pairs for generation in (0, 1)), request_for(single[0])]
    found = ask(JoinedModel(model), *requests)

    assert list(map(text_of, found.values())).count("One; One; One.") == 4
    assert len(model.sent) == 13 and len({part.key for part in model.sent}) == 13
    for part in model.sent:
        assert part.messages[0] == SYSTEM and len(part.messages) == 2
        assert part.decoding == Decoding(max_tokens=40)
        assert part.subject and part.messages[1].content == "; ".join(
            [part.subject.combination.topic, *part.subject.combination.skills]
        )
    assert len({part.seed for part in model.sent[:3]}) == 3
    assert [part.seed for part in model.sent[:3]] == [part.seed for part in model.sent[3:6]]  # from the request's seed
    ask(JoinedModel(model), request_for(pairs[0], seed=None))
    assert {part.seed for part in model.sent} == {None}


def test_tokens_are_summed_and_a_cut_part_cuts_the_whole() -> None:
    model = Spoken(Reply("A.", "stop", 10, 2), Reply("B.", "length", 20, 3))
    (outcome,) = ask(JoinedModel(model), request_for(drawn(2, 1)[0])).values()
    assert outcome == Reply("A; B.", "length", 30, 5)
    (unknown,) = ask(JoinedModel(Spoken(Reply("A.", None, 10, 2), Reply("B."))), request_for(drawn(2, 1)[0])).values()
    assert isinstance(unknown, Reply) and (unknown.input_tokens, unknown.output_tokens) == (None, None)


def test_a_failed_part_fails_the_call_with_its_problem_and_is_charged() -> None:
    problem = CallProblem("passing", "overloaded", "try later", is_free=True)
    for outcomes, is_free in (((Reply("A."), problem), False), ((problem, problem), True)):
        (outcome,) = ask(JoinedModel(Spoken(*outcomes)), request_for(drawn(2, 1)[0])).values()
        assert outcome == replace(problem, is_free=is_free)


def test_the_worst_case_counts_a_reply_for_each_prompt() -> None:
    combination, price = drawn(3, 1)[0], Price(0.0, 1e6)
    assert price.worst(request_for(combination)) == 3 * 40
    assert price.worst(request_for(single_skills(combination)[0])) == 40


def test_the_model_keeps_its_limits() -> None:
    model = JoinedModel(Spoken())
    assert model.limits == Limits(in_process=True, in_flight=7)
    assert asyncio.run(model.probe()) is None


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_teacher_joined_shows_all_requested_skills(k: int) -> None:
    """Joined texts are prose of one sentence; what is lost is a question or a quotation in the middle, at most."""
    combinations = drawn(k, 60)
    found = ask(JoinedModel(open_model(parse_spec("composer:"))), *map(request_for, combinations))
    grader, kept = RulesGrader(FIGURES), 0
    for combination in combinations:
        text = text_of(found[GenerateKey("m-joined", combination.id, 0, ONLY_TURN)])
        verdict = grader.verdict(text, skills=combination.skills, topic=combination.topic)
        rubric, reading = rubric_of(combination.skills, combination.topic), reading_of(verdict, combination.skills)
        points = decide_points(rubric, extract_answer(f"Answer: {text}"), [reading], rounds=1, rules=RULES["default"])
        kept += all(points)
    assert kept >= 0.9 * len(combinations), kept
