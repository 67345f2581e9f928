"""Waves that look at new conversations only give what waves that look at everything again give."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skillmix.calls import Call, CallProblem, Decoding, GenerateKey, Reply
from skillmix.catalog.combinations import Combination
from skillmix.catalog.files import load_catalog
from skillmix.datasets.from_runs import plan_of, writers_of
from skillmix.datasets.kept_texts import KeptText
from skillmix.datasets.writing import decided_texts, sampling, waves
from skillmix.datasets.writing.decided_texts import ConversationKey, DecidedText, DecidedTexts
from skillmix.datasets.writing.draw_ahead import key_of
from skillmix.datasets.writing.waves import Waves
from skillmix.experiment.experiment import experiment_of
from skillmix.experiment.step_base import Step
from skillmix.experiment.steps import DatasetStep
from skillmix.runs.calling import StepContext
from skillmix.runs.reading.decisions import DecidedConversation, Decision
from skillmix.runs.reading.graded_conversations import WrittenConversation
from skillmix.runs.run import Run
from skillmix.runs.scheduler import CallCounts, StopReason
from tests.datasets.writing.ledgers import undecided
from tests.datasets.writing.plain_waves import PlainSampler, PlainStep

SEARCH = 60
SMALL: list[tuple[Any, str, int]] = [
    (decided_texts, "_AT_ONCE", 5),
    (waves, "_FINISHED_AT_ONCE", 6),
    (sampling, "_SEARCH", SEARCH),
]
"""Limits so small that every loop has several parts."""


@dataclass(frozen=True)
class World:
    """What becomes of each conversation, by its key; and when the step stops."""

    seed: int
    full: float
    words: int
    """The number of different words in a text: few of them make copies."""
    unfinished: float
    stops: int | None
    missing: set[ConversationKey] = field(default_factory=set)
    """Conversations without a call, because the step stopped."""

    def outcome(self, key: ConversationKey) -> DecidedText | None:
        chance = random.Random(f"{self.seed} {key}")
        if key in self.missing:
            return None
        problem = "failed" if chance.random() < 0.03 else "passing" if chance.random() < self.unfinished else None
        earned = 1 if chance.random() < self.full else chance.choice([0, 0, None])
        decisions = () if problem else (Decision(earned, "", "fine", "[[1]]"),)
        outcome = CallProblem(problem, "busy") if problem else Reply("")  # type: ignore[arg-type]
        turn = Call(GenerateKey("w", *key, 2), outcome, "m", (), Decoding(), None, "", "call", "")
        conversation = DecidedConversation(WrittenConversation(("w", *key), (turn,), None), decisions)
        if problem or earned != 1:
            return DecidedText(conversation, None)
        size = chance.choice([0, 2, 6, 9, 9])
        text = " ".join(chance.choice("abcdefghij"[: self.words]) for _ in range(size))
        meant = Combination(key[0], ("s",), "t")
        facts = ("fine", "m", ("", ""), "p", ("g",), ("[[1]]",))
        kept = KeptText("r", "w", meant, key[1], (0, len(text)), "", (text, text), *facts)
        return DecidedText(conversation, kept, chance.choice([None] * 8 + ["shows one thing", "shows another"]))

    def decide(self, conversations: Sequence[ConversationKey]) -> list[DecidedText]:
        found = [outcome for key in conversations if (outcome := self.outcome(key)) is not None]
        random.Random(self.seed).shuffle(found)
        return found


class ScriptedWaves(Waves):
    """Waves whose conversations are decided in any order, some of them ahead of their wave."""

    world: World
    made: list[list[ConversationKey]]

    async def _write(self) -> None:
        self.made = []
        chance = random.Random(self.world.seed)
        for k, wave in self._planned():
            keys = [key_of(candidate) for candidate in wave]
            self.made.append(keys)
            self._of_k(k).begin(wave)
            if len(self.made) == self.world.stops:
                open_ones = undecided(self._of_k(k))
                self.world.missing.update(key for key in keys if key in open_ones and chance.random() < 0.5)
                self.counts.stopped = StopReason.BUDGET
                return
            ahead = [key for one in self.plan.recipe.ks for key in self._begun_ahead(one, chance.choice([0, 5, 30]))]
            several = [key for key in (*keys, *ahead) if chance.random() < 0.8]
            chance.shuffle(several)
            self._decided.finish(several)
            assert self._of_k(k).waiting <= len(keys)

    def _begun_ahead(self, k: int, number: int) -> list[ConversationKey]:
        of_k = self._of_k(k)
        return [key_of(candidate) for candidate in of_k.begin(of_k.draw(number))]


class Made:
    """A run without calls."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def context(self) -> StepContext:
        step = {"name": "d", "stage": "dataset", "writer": "w", "graders": ["judge"], "k": [1, 2], "target": 9}
        document = {
            "name": "data",
            "catalog": "paper",
            "students": {"w": {"model": "scripted:student"}},
            "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
            "steps": [step],
        }
        experiment, catalog = experiment_of(document, source="test"), load_catalog("paper")
        run = Run(self._folder / "runs/data")
        run.continue_with(experiment, catalog)
        nothing: Any = None
        return StepContext(experiment, catalog, run, nothing, nothing)

    def waves(self, world: World, **changes: Any) -> ScriptedWaves:
        """The waves of a changed step."""
        step: Step = self.context.experiment.steps[0]
        assert isinstance(step, DatasetStep)
        changed = DatasetStep.model_validate(step.model_dump(exclude_unset=True) | changes)
        plan = plan_of(changed, self.context)
        writers = writers_of("data", self.context.experiment)
        made = ScriptedWaves(changed, self.context, plan, writers, CallCounts())
        made.world = world
        return made


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("waves"))


def expected(made: ScriptedWaves, world: World) -> PlainStep:
    plain = PlainStep(world.outcome, made.plan.removals)
    for k in made.plan.recipe.ks:
        sampler = PlainSampler(made._candidates(k), made._target(k), SEARCH)
        plain.run_k(k, sampler, stops=world.stops)
        if plain.is_broken or plain.is_stopped:
            break
    return plain


PER_SKILL = st.sampled_from(
    [{}, {}, {"ceiling": 3}, {"floor": 1}, {"floor": 1, "ceiling": 4}, {"floor": 2, "ceiling": 2}, {"floor": 3}]
)
WORLDS = st.builds(
    World,
    seed=st.integers(0, 10**6),
    full=st.sampled_from([0.05, 0.3, 0.6, 1.0]),
    words=st.sampled_from([2, 3, 10]),
    unfinished=st.sampled_from([0.0, 0.0, 0.0, 0.01]),
    stops=st.sampled_from([None, None, None, 1, 2, 3]),
    missing=st.builds(set),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    world=WORLDS,
    per_skill=PER_SKILL,
    targets=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    generations=st.sampled_from([1, 3]),
    most=st.sampled_from([None, 90]),
    copies=st.sampled_from([(None, "keep"), (None, "drop"), (0.4, "drop"), (0.7, "drop")]),
)
def test_learning_only_what_is_new_gives_the_waves_and_texts_of_learning_everything_again(
    run: Made,
    monkeypatch: pytest.MonkeyPatch,
    world: World,
    per_skill: dict[str, int],
    targets: tuple[int, int],
    generations: int,
    most: int | None,
    copies: tuple[float | None, str],
) -> None:
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(DecidedTexts, "_decide", lambda self, conversations: world.decide(conversations))
    changes: dict[str, Any] = {"generations": generations, "near_duplicates": copies[0], "exact_duplicates": copies[1]}
    changes |= {"target": dict(zip((1, 2), targets, strict=True)), "per_skill": per_skill, "most": most or 2000}

    made = run.waves(world, **changes)
    asyncio.run(made.run())
    plain = expected(made, world)

    assert made.made == plain.waves
    assert list(made.texts) == plain.texts
    assert made.yields == plain.yields
    assert made.left == plain.left
    assert [list(made.left.removed), list(made.left.shown)] == [list(plain.left.removed), list(plain.left.shown)]
    assert made.is_broken == plain.is_broken
