"""The task `skillmix/skillmix` of Inspect AI: our prompts and scoring with Inspect's models, logs and viewer.

Inspect finds this module through its entry point. Only this module imports inspect_ai, and no other module imports this
module, so the rest of the package works without Inspect.
"""

from functools import lru_cache
from math import isnan, nan
from typing import Any, Final

from inspect_ai import Epochs, Task, task
from inspect_ai import model as inspect_model
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessage, GenerateConfig, Model, ModelOutput
from inspect_ai.scorer import Score, Scorer, ScoreReducer, Target, mean, score_reducer, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import collect

from skillmix import __version__
from skillmix.calls import GradeKey, Message, Reply
from skillmix.catalog.catalog import Setting
from skillmix.checkers.registry import checker_of
from skillmix.errors import UserError
from skillmix.exchange import task_settings
from skillmix.exchange.task_settings import FILTERED, TaskGrader, TaskProtocol
from skillmix.grading.points import METRICS, StudentText, text_score
from skillmix.prompts.prompt_set import DEFAULT_VARIANT
from skillmix.runs.budget import Task as Call

_GRADING: Final = GenerateConfig(**task_settings.GRADER_DECODING)
"""Default sampling settings for graders; the role's own settings take precedence."""
_REASONS: Final = {"refused": "refusal", "empty": "no_response"}


@task(name="skillmix")
def skillmix(  # noqa: PLR0913  # the arguments are the options of -T
    k: int = 3,
    catalog: str = "paper",
    setting: Setting = "all",
    combinations: int = 100,
    generations: int = 3,
    seed: int = 0,
    partition: str | None = None,
    exclude: str | list[str] | None = None,
    prompts: str = "standard",
    grader: TaskGrader | None = None,
    grader_prompts: str = DEFAULT_VARIANT,
    rounds: int | None = None,
) -> Task:
    """Ask a model for short texts that show k language skills on a topic, and score each text by points.

    Args:
        k: Number of skills that a text must show.
        catalog: A catalog of skills and topics by name, or a folder.
        setting: Draw from the train skills, the held-out skills or all of them.
        combinations: Number of combinations of k skills and a topic.
        generations: Number of texts for each combination; these are Inspect's epochs.
        seed: Seed of the draw.
        partition: Partition into train and held-out skills.
        exclude: Skills, or names of exclude lists, to leave out of the draw.
        prompts: A prompt set by name, or a folder.
        grader: rules (code), model (the role grader), or both; by default code if every skill has a checker.
        grader_prompts: The wording of the grader's prompt.
        rounds: How many times a model grades each text; an odd number.
    """
    document: dict[str, Any] = {
        "catalog": str(catalog),
        "k": k,
        "setting": setting,
        "combinations": combinations,
        "generations": generations,
        "seed": seed,
        "partition": partition,
        "exclude": [exclude] if isinstance(exclude, str) else exclude or [],
        "prompts": str(prompts),
        "grader_prompts": grader_prompts,
        "attempts": 3,
    }
    if grader is None:  # use code if it can check every skill of the draw, otherwise a model
        drawn = _protocol_of({**document, "grader": "model", "rounds": 3}).combinations
        is_checkable = all(checker_of(skill) is not None for one in drawn for skill in one.skills)
        grader = "rules" if is_checkable else "model"
    document |= {"grader": grader, "rounds": rounds if rounds is not None else 1 if grader == "rules" else 3}
    protocol = _protocol_of(document)
    facts = {
        "format": task_settings.LOG_FORMAT,
        "skillmix": __version__,
        "catalog_hash": protocol.catalog.content_hash(),
        "prompts_hash": protocol.prompts.content_hash(),
        "settings": document,
    }
    return Task(
        dataset=MemoryDataset(_samples(protocol), name=f"skillmix-{protocol.catalog.name}-{setting}-k{k}"),
        solver=write_text(document),
        scorer=skill_points(document),
        epochs=Epochs(generations, best_of_all()),
        config=GenerateConfig(**task_settings.STUDENT_DECODING),
        version=task_settings.LOG_FORMAT,
        metadata={task_settings.FACTS: facts},
    )


@solver
def write_text(settings: dict[str, Any]) -> Solver:
    """Generate the student's text, one turn of the conversation at a time."""
    protocol = _protocol_of(settings)

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        if protocol.settings.asks_model:
            _grader(protocol)  # if there is no grader, stop before paying for the student's calls
        turns: list[dict[str, Any]] = []
        call: Call | None = protocol.first(str(state.sample_id), state.epoch - 1)
        while call is not None:
            last = call.request.messages[-1]
            if turns:
                state.messages.append(_chat(last))
            state = await generate(state)
            turns.append(_record(state.output))
            state.store.set(task_settings.TURNS_KEY, turns)
            is_filtered = state.output.stop_reason == FILTERED
            call = None if is_filtered else protocol.next_turn(call.request, Reply(state.output.completion))
        state.completed = True
        return state

    return solve


@scorer(metrics={name: [mean(), stderr()] for name in METRICS}, name=task_settings.SCORER)
def skill_points(settings: dict[str, Any]) -> Scorer:
    """Grade the student's text by code or with the grader, and compute the metrics from its points."""
    protocol = _protocol_of(settings)

    async def score(state: TaskState, target: Target) -> Score | None:
        turns = state.store.get(task_settings.TURNS_KEY) or []
        is_filtered = state.output.stop_reason == FILTERED
        if not is_filtered and len(turns) < protocol.prompts.turns:
            return Score.unscored(reason="scoring_failed", explanation="The conversation is unfinished.")
        reply = None if is_filtered else state.output.completion
        text = protocol.text_of(str(state.sample_id), state.epoch - 1, reply, finish=state.output.stop_reason)
        calls = protocol.votes_on(text)
        grader = _grader(protocol) if calls else None
        votes = await collect(*[_vote(protocol, grader, call) for call in calls]) if grader else []
        return _score(protocol, text, [record for own in votes for record in own])

    return score


@score_reducer(name="best_of_all")
def best_of_all() -> ScoreReducer:
    """Score a combination by its best text if all its texts are scored, as in `skillmix scores`."""

    def reduce(scores: list[Score]) -> Score:
        values: list[Any] = [score.value if isinstance(score.value, dict) else {} for score in scores]
        by_metric = {metric: [value.get(metric, nan) for value in values] for metric in METRICS}
        return Score(value={metric: nan if any(map(isnan, own)) else max(own) for metric, own in by_metric.items()})

    return reduce


_cached_protocol: Final = lru_cache(maxsize=16)(TaskProtocol)


def _protocol_of(document: dict[str, Any]) -> TaskProtocol:
    try:
        return _cached_protocol(task_settings.settings_of(document, source="The arguments of the task"))
    except UserError as error:  # Inspect prints only the message of an error, not its hint
        raise ValueError(" ".join(filter(None, (error.message, error.hint)))) from None


def _samples(protocol: TaskProtocol) -> list[Sample]:
    samples = []
    for one in protocol.combinations:
        messages = [_chat(message) for message in protocol.first(one.id, 0).request.messages]
        facts = {"k": one.k, "skills": list(one.skills), "topic": one.topic}
        samples.append(Sample(id=one.id, input=messages, metadata=facts))
    return samples


def _chat(message: Message) -> ChatMessage:
    kind = getattr(inspect_model, f"ChatMessage{message.role.capitalize()}")
    chat: ChatMessage = kind(content=message.content)
    return chat


def _record(output: ModelOutput) -> dict[str, Any]:
    """Record why a reply ended and its token counts, because the log's messages contain only the text."""
    usage = output.usage
    return {
        "finish": output.stop_reason,
        "input_tokens": usage.input_tokens if usage else None,
        "output_tokens": usage.output_tokens if usage else None,
    }


def _grader(protocol: TaskProtocol) -> Model:
    """Return the model with the role `grader`; Inspect rejects the task if there is none."""
    model = inspect_model.get_model(role=task_settings.ROLE, required=True)
    if protocol.settings.rounds > 1 and _GRADING.merge(model.config).temperature == 0:
        raise ValueError(
            "At temperature 0, all rounds give the same reply: set -T rounds=1, or raise the grader's temperature."
        )
    return model


async def _vote(protocol: TaskProtocol, model: Model, call: Call) -> list[dict[str, Any]]:
    """Call the grader, up to the allowed attempts, until its reply can be parsed."""
    records: list[dict[str, Any]] = []
    wanted: Call | None = call
    while wanted is not None:
        messages = [_chat(message) for message in wanted.request.messages]
        output = await model.generate(messages, config=_GRADING.merge(model.config))
        key = wanted.request.key
        assert isinstance(key, GradeKey)  # protocol.votes_on makes grading calls only
        reply = None if output.stop_reason == FILTERED else output.completion
        records.append({"round": key.round, "attempt": key.attempt, "reply": reply, **_record(output)})
        wanted = None if reply is None else protocol.asked_again(wanted.request, Reply(reply))
    return records


def _score(protocol: TaskProtocol, text: StudentText, votes: list[dict[str, Any]]) -> Score:
    points, lines = protocol.points(text, votes)
    metrics = {metric: text_score(tuple(points.values()), metric) for metric in METRICS}
    is_unreadable = any(value is None for value in metrics.values())
    return Score(
        value={name: nan if value is None else value for name, value in metrics.items()},
        answer=text.answer.text,
        explanation="\n".join(lines),
        reason="grader_failed" if is_unreadable else _REASONS.get(text.answer.status),
        metadata={"votes": votes, "points": points, "status": text.answer.status},
    )
