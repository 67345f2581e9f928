"""The order of calls: first a student's turns, and then the graders' votes on the text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from skillmix.calls import (
    ONLY_TURN,
    Call,
    CallKey,
    Decoding,
    GenerateKey,
    GradeKey,
    Message,
    Outcome,
    Reply,
    Request,
    Subject,
    seed_for,
    text_id,
)
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination, single_skills
from skillmix.experiment.experiment import Experiment, GraderSettings, StudentSettings
from skillmix.grading.answers import RULES, without_thought
from skillmix.grading.points import earns_nothing
from skillmix.grading.reader import read_grades
from skillmix.models.lineage import lineage_of
from skillmix.models.specs import parse_spec
from skillmix.prompts.prompt_set import PromptSet
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.budget import Task
from skillmix.runs.run import TURNS
from skillmix.runs.verdicts import answer_of


class Conversations:
    """Builds the requests of an experiment, each from its key and the earlier messages in the conversation."""

    def __init__(
        self, experiment: Experiment, catalog: Catalog, prompts: Mapping[str, PromptSet], *, graders: Sequence[str]
    ) -> None:
        self._experiment = experiment
        self._catalog = catalog
        self._prompts = prompts
        self._graders = graders
        self._model_graders = [name for name in graders if experiment.graders[name].asked]
        self._combinations: dict[str, Combination] = {}
        self._worked_turns: dict[str, tuple[Message, ...]] = {}
        self._models: dict[str, _Asked] = {}
        self._rules = replace(RULES[experiment.rules], missing_marker=experiment.answer.missing_marker)

    def first(self, student: str, combination: Combination, generation: int) -> Task:
        """Make the task for the first turn of a conversation."""
        self._combinations[combination.id] = combination
        settings = self._experiment.students[student]
        asked = single_skills(combination) if settings.joined else [combination]
        prompts = [self._student_prompts(student, one)[0] for one in asked]
        key = GenerateKey(student, combination.id, generation, 1 if self.turns_of(student) > 1 else ONLY_TURN)
        name = settings.prompts or self._experiment.prompts
        if name not in self._worked_turns:  # all conversations share these objects, so that each is hashed only once
            self._worked_turns[name] = _messages(self._prompts[name].worked_turns())
        lead = _messages(self._prompts[name].lead_turns(self._catalog, combination))
        before = (*self._system(settings), *self._worked_turns[name], *lead)
        return self._task(key, (*before, *(Message("user", prompt) for prompt in prompts)))

    def follow(self, request: Request, outcome: Outcome) -> Iterator[Task]:
        """Yield the tasks that can start after an outcome."""
        if not isinstance(outcome, Reply):
            return
        key = request.key
        if isinstance(key, GradeKey):  # an unparseable grade is requested again, with a new key and seed
            text = request.subject.text if request.subject else ""
            is_last = key.attempt + 1 >= self._experiment.graders[key.grader].attempts
            if not is_last and not self._is_readable(self._combinations[key.combination], text, outcome):
                yield self._task(replace(key, attempt=key.attempt + 1), request.messages, request.subject)
        elif ONLY_TURN < key.turn < TURNS:
            combination = self._combinations[key.combination]
            prompt = self._student_prompts(key.student, combination)[key.turn]
            said = without_thought(outcome.text) or outcome.text
            messages = (*request.messages, Message("assistant", said), Message("user", prompt))
            later = GenerateKey(key.student, key.combination, key.generation, key.turn + 1)
            yield self._task(later, messages)
        elif self._model_graders:
            answer = answer_of(outcome.text, "call", key.turn)
            if not earns_nothing(answer, self._rules):
                yield from self.votes_on(answer.text, key, self._combinations[key.combination])

    def is_settled(self, combination: Combination, calls: Sequence[Call]) -> bool:
        """Whether a conversation needs no more calls because it has all turns and a parseable vote in every round."""
        turns = [(call.key, call.outcome) for call in calls if isinstance(call.key, GenerateKey)]
        own, last = turns[-1] if turns else (None, None)
        if own is None or len(turns) < self.turns_of(own.student) or not isinstance(last, Reply):
            return False
        answer = answer_of(last.text, "call", own.turn)
        wanted = {
            (grader, vote) for grader in self._model_graders for vote in range(self._experiment.graders[grader].votes)
        }
        if earns_nothing(answer, self._rules):
            return True
        text = text_id(answer.text)
        for call in calls:
            key = call.key
            if (
                isinstance(key, GradeKey)
                and key.text == text
                and isinstance(call.outcome, Reply)
                and self._is_readable(combination, answer.text, call.outcome)
            ):
                wanted.discard((key.grader, key.round))
        return not wanted

    def _is_readable(self, combination: Combination, text: str, reply: Reply) -> bool:
        """Whether every point can be parsed from a grader's reply, with the parser that scoring uses."""
        phrases = self._prompts[self._experiment.prompts].phrases
        rubric = rubric_of(combination.skills, combination.topic, phrases=phrases)
        return read_grades(rubric, reply.text, text=text).points is not None

    def turns_of(self, student: str) -> int:
        """Return the number of turns in a student's conversations."""
        return self._prompts_of(student).turns

    def votes_wanted(self) -> int:
        """Return the number of votes that a text needs if it is graded at all."""
        return sum(self._experiment.graders[grader].votes for grader in self._model_graders)

    def has_part(self, key: CallKey) -> bool:
        """Whether a call is part of these conversations, as a student's turn or as a vote by one of the graders."""
        return not isinstance(key, GradeKey) or key.grader in self._graders

    def votes_on(self, text: str, key: GenerateKey, combination: Combination) -> Iterator[Task]:
        """Yield the tasks for the graders' votes on an existing text."""
        self._combinations[combination.id] = combination
        address = text_id(text)
        for grader in self._model_graders:
            settings = self._experiment.graders[grader]
            prompts = self._prompts[self._experiment.prompts]
            prompt = prompts.grader_prompt(self._catalog, combination, answer=text, variant=settings.prompts)
            subject = Subject(combination, prompts.criteria(combination), text)
            messages = (*self._system(settings), Message("user", prompt))  # hashed and sent once for all votes
            for vote in range(settings.votes):
                grade = GradeKey(key.student, key.combination, key.generation, address, grader, vote, 0)
                yield self._task(grade, messages, subject)

    def _system(self, settings: StudentSettings | GraderSettings) -> tuple[Message, ...]:
        """Return the system turn of a model, if any."""
        return () if settings.system is None else (Message("system", settings.system),)

    def _student_prompts(self, student: str, combination: Combination) -> tuple[str, ...]:
        return self._prompts_of(student).student_prompts(self._catalog, combination)

    def _prompts_of(self, student: str) -> PromptSet:
        return self._prompts[self._experiment.students[student].prompts or self._experiment.prompts]

    def _task(self, key: CallKey, messages: tuple[Message, ...], subject: Subject | None = None) -> Task:
        """Make the task for a call. The subject of a student's call follows from its key; a grader's must be passed."""
        settings: StudentSettings | GraderSettings
        if isinstance(key, GradeKey):
            name, settings = f"grader:{key.grader}", self._experiment.graders[key.grader]
        else:
            name, settings = f"student:{key.student}", self._experiment.students[key.student]
            combination = self._combinations[key.combination]
            subject = Subject(combination, is_control=combination.topic in self._catalog.controls)
        asked = self._models.get(name)
        if asked is None:
            decoding = Decoding(settings.temperature, settings.max_tokens, settings.top_p, settings.extra_json)
            seed = self._experiment.seed if settings.sends_seed else None
            asked = self._models[name] = _Asked(model_name(str(settings.asked)), decoding, seed)
        own = None if asked.seed is None else seed_for(asked.seed, key)
        return Task(name, Request(key, asked.model, messages, asked.decoding, own, subject))


class _Asked(NamedTuple):
    """The name of a model in requests, with its sampling parameters."""

    model: str
    decoding: Decoding
    seed: int | None
    """The experiment's seed; None if requests have no seed."""


def _messages(turns: Iterable[tuple[str, str]]) -> tuple[Message, ...]:
    return tuple(
        message for prompt, reply in turns for message in (Message("user", prompt), Message("assistant", reply))
    )


def model_name(model: str) -> str:
    """Return the model name in requests. The name of a checkpoint trained here includes a hash of its lineage."""
    spec = parse_spec(model)
    lineage = lineage_of(model)
    return f"{spec.provider}:{spec.name}" + (f"#{lineage.identity}" if lineage else "")
