"""`skillmix import-inspect`: logs of the Inspect task become a run, with the scores of a run that skillmix made itself.

The run is that of an experiment: the settings in a log say which combinations the task drew, so whatever a log lacks is
missing in the run too, and counts as unknown. Points are computed again from the texts and the graders' replies.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args

from skillmix.calls import (
    LONGEST_NAME,
    ONLY_TURN,
    CallProblem,
    GenerateKey,
    GradeKey,
    Message,
    Outcome,
    Reply,
    Request,
    Role,
    as_name,
    checked_name,
    imported_request,
    text_id,
)
from skillmix.catalog.combinations import Combination
from skillmix.catalog.files import load_catalog, shipped_catalogs
from skillmix.errors import UserError, faults_error
from skillmix.exchange.inspect_log import InspectLog, mapping, opened_log
from skillmix.exchange.task_settings import (
    FACTS,
    GRADER_TEMPERATURE,
    GRADER_TOKENS,
    LOG_FORMAT,
    ROLE,
    SCORER,
    STUDENT_TEMPERATURE,
    STUDENT_TOKENS,
    TURNS_KEY,
    AskedBy,
    InspectTaskSettings,
    refuse_huge,
    refuse_plain,
    settings_of,
    task_experiment,
)
from skillmix.experiment.experiment import Experiment, experiment_of
from skillmix.experiment.plan import cells_of
from skillmix.models.specs import parse_spec
from skillmix.prompts.prompt_set import load_prompts, shipped_prompt_sets, turns_with
from skillmix.runs.run import Run, new_run
from skillmix.runs.verdicts import answer_of

_FILTERED: Final = "content_filter"
_ATTACHMENT: Final = "attachment://"
_LONGEST_FINISH: Final = 60
_ROLES: Final[Mapping[str, Role]] = {role: role for role in get_args(Role)}


@dataclass(frozen=True, slots=True)
class SampleCalls:
    """The calls of one conversation that is over."""

    turns: list[tuple[Request, Outcome]]
    votes: list[tuple[Request, Outcome]]

    @property
    def place(self) -> tuple[str, int]:
        """The combination and the generation of the conversation."""
        key = self.turns[-1][0].key
        return key.combination, key.generation


@dataclass(frozen=True, slots=True)
class SampleReader:
    """Reads the samples of one log."""

    student: str
    grader: str
    settings: InspectTaskSettings
    combinations: Mapping[str, Combination]

    def read(self, sample: object) -> SampleCalls | None:
        """The calls of a sample; None if its conversation is not over, or if somebody declared it invalid."""
        record = mapping(sample)
        combination, generation = self._place(record)
        if record.get("invalidation") is not None:
            return None
        turns = self._turns(record, combination, generation)
        if turns is None:
            return None
        last = turns[-1][1]
        text = answer_of(last.text if isinstance(last, Reply) else None, "imported", len(turns)).text
        return SampleCalls(turns, list(self._votes(record, combination, generation, text)))

    def _place(self, record: Mapping[str, Any]) -> tuple[Combination, int]:
        name, epoch = record.get("id"), record.get("epoch")
        combination = self.combinations.get(name) if isinstance(name, str) else None
        if combination is None:
            raise UserError(f"sample {_shown(name)}: the task does not draw this combination")
        if type(epoch) is not int or not 1 <= epoch <= self.settings.generations:
            raise UserError(f"sample {combination.id}: its epoch is {_shown(epoch)}")
        return combination, epoch - 1

    def _turns(
        self, record: Mapping[str, Any], combination: Combination, generation: int
    ) -> list[tuple[Request, Outcome]] | None:
        """The student's calls; None if the conversation stopped before its last turn without a refusal."""
        where = f"sample {combination.id}, epoch {generation + 1}"
        facts = mapping(record.get("store")).get(TURNS_KEY)
        if not isinstance(facts, list) or not facts:
            return None
        is_filtered = mapping(facts[-1]).get("finish") == _FILTERED
        wanted = turns_with(self.settings.prompts)
        if len(facts) > wanted or (len(facts) < wanted and not is_filtered):
            return None
        messages = _messages(record, where)
        roles = [message.role for message in messages[-2 * len(facts) :]]
        if roles != ["user", "assistant"] * len(facts):
            raise UserError(f"{where}: its messages do not end with {len(facts)} turns of user and assistant")
        first = len(messages) - 2 * len(facts)
        calls: list[tuple[Request, Outcome]] = []
        for number, fact in enumerate(facts):
            place = first + 2 * number + 1
            key = GenerateKey(self.student, combination.id, generation, ONLY_TURN if wanted == 1 else number + 1)
            outcome = _outcome(messages[place].content, mapping(fact))
            calls.append((imported_request(key, tuple(messages[:place])), outcome))
        if not all(isinstance(outcome, Reply) for _, outcome in calls[:-1]):
            raise UserError(f"{where}: it goes on after a refusal")
        return calls

    def _votes(
        self, record: Mapping[str, Any], combination: Combination, generation: int, text: str
    ) -> Iterator[tuple[Request, Outcome]]:
        """The grader's replies on a text; the points in the log do not count, because they are computed again."""
        where = f"sample {combination.id}, epoch {generation + 1}"
        score = mapping(mapping(record.get("scores")).get(SCORER))
        votes = mapping(score.get("metadata")).get("votes", [])
        if not isinstance(votes, list) or (votes and not self.settings.asks_model):
            raise UserError(f"{where}: its votes are not those of the task's grader")
        seen = set()
        for vote in map(mapping, votes):
            number = _number(vote.get("round"), self.settings.rounds)
            attempt = _number(vote.get("attempt"), self.settings.attempts)
            reply = vote.get("reply")
            if number is None or attempt is None:
                shown = f"round {_shown(vote.get('round'))}, attempt {_shown(vote.get('attempt'))}"
                raise UserError(f"{where}: it has a vote of {shown}")
            if (number, attempt) in seen:
                raise UserError(f"{where}: it has two votes of round {number}, attempt {attempt}")
            seen.add((number, attempt))
            if reply is not None and not isinstance(reply, str):
                raise UserError(f"{where}: the reply of round {number} is not a text")
            place = self.student, combination.id, generation
            key = GradeKey(*place, text_id(text), self.grader, number, attempt)
            yield imported_request(key), _outcome(reply, vote)


def _number(value: object, limit: int) -> int | None:
    """The number of a round or an attempt; None if it is none of those that the task has."""
    return value if type(value) is int and 0 <= value < limit else None


def _outcome(text: str | None, facts: Mapping[str, Any]) -> Outcome:
    finish = facts.get("finish")
    if text is None or finish == _FILTERED:
        return CallProblem("final", "content filter")
    known = isinstance(finish, str) and finish != "unknown" and len(finish) <= _LONGEST_FINISH
    return Reply(text, finish if known else None, facts.get("input_tokens"), facts.get("output_tokens"))


def _messages(record: Mapping[str, Any], where: str) -> list[Message]:
    attachments = mapping(record.get("attachments"))
    messages = record.get("messages")
    made = []
    for message in map(mapping, messages if isinstance(messages, list) else []):
        role = _ROLES.get(str(message.get("role")))
        if role is None:
            raise UserError(f"{where}: it has a message of {_shown(message.get('role'))}, which the task never writes")
        made.append(Message(role, _text(message.get("content"), attachments, where)))
    return made


def _text(content: object, attachments: Mapping[str, Any], where: str) -> str:
    """The text of a message; reasoning and other parts are left out."""
    if isinstance(content, list):
        parts = [mapping(part) for part in content]
        return "".join(_text(part.get("text"), attachments, where) for part in parts if part.get("type") == "text")
    if not isinstance(content, str):
        raise UserError(f"{where}: a message has no text")
    if content.startswith(_ATTACHMENT):
        stored = attachments.get(content.removeprefix(_ATTACHMENT))
        if not isinstance(stored, str):
            raise UserError(f"{where}: a message names an attachment that the log does not hold")
        return stored
    return content


_LONGEST_MODEL: Final = 200
_SAME: Final = ("seed", "catalog", "partition", "prompts", "exclude")
"""What all logs of a run must have in common."""


@dataclass(frozen=True, slots=True)
class ImportChoices:
    """What the user says about the logs."""

    student: str | None = None
    """The name of the student; by default that of the model."""
    catalog: str | None = None
    """The folder of the catalogue, if the task was run with a folder."""
    prompts: str | None = None
    """The folder of the prompt set, if the task was run with a folder."""


@dataclass(frozen=True, slots=True)
class ImportedLogs:
    """Counts of the imported records."""

    run: Path
    logs: int
    conversations: int
    votes: int
    new: int
    """Calls that the run did not have before."""
    unfinished: int
    """Samples whose conversation is not over, or that were declared invalid; they are missing in the run."""
    notes: tuple[str, ...] = ()


def import_inspect(paths: Sequence[Path], run_name: str, choices: ImportChoices | None = None) -> ImportedLogs:
    """Store the conversations and votes of logs; importing a log again changes nothing, further logs add to the run."""
    run = new_run(run_name)
    chosen = choices or ImportChoices()
    logs = [_part(path, chosen, run) for path in dict.fromkeys(paths)]
    _joined_experiment(run, logs)  # a refusal leaves no folder behind
    new = 0
    with run.write() as journal:
        experiment = _joined_experiment(run, logs)  # another import may have added to the run meanwhile
        catalog = load_catalog(experiment.catalog)
        run.checked_document(experiment, catalog)
        with journal.transaction():
            for part in logs:
                journal.add_combinations(part.combinations)
                new += journal.record_all(part.calls, origin="imported")
            run.continue_with(experiment, catalog)
    run.note_invocation(
        {"command": "import-inspect", "files": [part.path.name for part in logs], "catalog": experiment.catalog}
    )
    return ImportedLogs(
        run=run.path,
        logs=len(logs),
        conversations=len({request.key for part in logs for request, _ in part.last_turns}),
        votes=len({request.key for part in logs for sample in part.samples for request, _ in sample.votes}),
        new=new,
        unfinished=sum(part.unfinished for part in logs),
        notes=tuple(note for part in logs for note in part.notes),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """A log with the experiment that it stands for and the conversations that it holds."""

    path: Path
    experiment: Experiment
    combinations: tuple[Combination, ...]
    samples: list[SampleCalls]
    unfinished: int
    notes: tuple[str, ...]

    @property
    def last_turns(self) -> Iterator[tuple[Request, Outcome]]:
        """The last call of each conversation."""
        return (sample.turns[-1] for sample in self.samples)

    @property
    def calls(self) -> Iterator[tuple[Request, Outcome]]:
        """All calls of the log."""
        for sample in self.samples:
            yield from sample.turns
            yield from sample.votes


def _part(path: Path, choices: ImportChoices, run: Run) -> _Part:
    """Read a log: first its header, which says how to read the samples, then the samples."""
    with opened_log(path) as log:
        facts = _facts(log)
        settings = _planned(settings_of(facts.get("settings"), source=str(path)), log)
        refuse_huge(settings, source=str(path))
        settings = replace(
            settings,
            catalog=_outside_name(settings.catalog, choices.catalog, shipped_catalogs(), "catalog", path),
            prompts=_outside_name(settings.prompts, choices.prompts, shipped_prompt_sets(), "prompts", path),
        )
        student = _student(log, choices.student)
        grader = _grader(log) if settings.asks_model else None
        experiment = task_experiment(settings, student, grader, name=run.name, source=str(path))
        catalog, prompts = load_catalog(settings.catalog), load_prompts(settings.prompts)
        refuse_plain(settings, catalog, has_outcomes=prompts.phrases.outcomes is not None)
        if facts.get("catalog_hash") != catalog.content_hash():
            raise UserError(
                f"{path} was made with another version of the catalogue {settings.catalog!r}.",
                hint=f"It was made by skillmix {_shown(facts.get('skillmix'))}; import it with that version.",
            )
        (cell,) = cells_of(experiment, catalog)
        by_id = {combination.id: combination for combination in cell.combinations}
        reader = SampleReader(student.name, next(iter(experiment.graders)), settings, by_id)
        samples, unfinished = _read_samples(log, reader)
    changed = facts.get("prompts_hash") != prompts.content_hash()
    note = f"{path.name}: its prompts have another wording than the prompt set {settings.prompts!r} has now"
    return _Part(path, experiment, tuple(cell.combinations), samples, unfinished, (note,) if changed else ())


def _facts(log: InspectLog) -> dict[str, Any]:
    """What the task wrote into the log about itself."""
    facts = mapping(mapping(log.spec.get("metadata")).get(FACTS))
    if not facts:
        raise UserError(
            f"{log.path} is not a log of our task, but of {_shown(log.spec.get('task'))}.",
            hint="Only logs of the task skillmix/skillmix can be imported.",
        )
    if facts.get("format") != LOG_FORMAT:
        raise UserError(
            f"{log.path} has the format {_shown(facts.get('format'))} of the task; this version reads {LOG_FORMAT}.",
            hint="Update skillmix.",
        )
    return facts


def _read_samples(log: InspectLog, reader: SampleReader) -> tuple[list[SampleCalls], int]:
    """The conversations of a log, and the number of samples without one; one error reports all faulty samples."""
    samples: list[SampleCalls] = []
    faults: list[str] = []
    seen: set[tuple[str, int]] = set()
    unfinished = 0
    for sample in log.samples:
        try:
            calls = reader.read(sample)
        except UserError as error:
            faults.append(error.message)
            continue
        if calls is None:
            unfinished += 1
        elif calls.place in seen:
            faults.append(f"sample {calls.place[0]}, epoch {calls.place[1] + 1}: it is in the log twice")
        else:
            seen.add(calls.place)
            samples.append(calls)
    if faults:
        raise faults_error(str(log.path), faults, hint="Nothing was imported.")
    return samples, unfinished


def _planned(settings: InspectTaskSettings, log: InspectLog) -> InspectTaskSettings:
    """The settings as the command line of Inspect changed them: `--epochs` and `--limit`."""
    config = mapping(log.spec.get("config"))
    epochs, limit = config.get("epochs"), config.get("limit")
    if type(epochs) is int and epochs > 0:
        settings = replace(settings, generations=epochs)
    if type(limit) is int and 0 < limit < settings.combinations and config.get("sample_shuffle") in (None, False):
        settings = replace(settings, combinations=limit)  # the draw of fewer combinations is its beginning
    return settings


def _outside_name(name: str, chosen: str | None, shipped: Sequence[str], option: str, path: Path) -> str:
    """The catalogue or prompt set of a log; a folder is taken from the user only, never from the log."""
    if chosen is not None:
        return chosen
    if name in shipped:
        return name
    raise UserError(
        f"{path} was made with {_shown(name)}, which is not shipped.", hint=f"Name its folder with --{option} DIR."
    )


def _student(log: InspectLog, name: str | None) -> AskedBy:
    model = _model_name(log.spec.get("model"), log.path)
    both = mapping(log.spec.get("model_generate_config")) | {
        key: value for key, value in log.config.items() if value is not None
    }
    student = checked_name(name, "student") if name else as_name(model)
    return _asked(student, model, both, temperature=STUDENT_TEMPERATURE, max_tokens=STUDENT_TOKENS)


def _grader(log: InspectLog) -> AskedBy:
    roles = mapping(log.spec.get("model_roles")).get(ROLE)
    role = mapping(roles[0] if isinstance(roles, list) and roles else roles)
    model = _model_name(role.get("model"), log.path)
    config = mapping(role.get("config"))
    return _asked(as_name(model), model, config, temperature=GRADER_TEMPERATURE, max_tokens=GRADER_TOKENS)


def _asked(name: str, model: str, config: Mapping[str, Any], *, temperature: float, max_tokens: int) -> AskedBy:
    """A model with the decoding of a log; the experiment checks the values."""
    given = {key: config[key] for key in ("temperature", "max_tokens", "top_p") if config.get(key) is not None}
    system = config.get("system_message")
    return AskedBy(
        name=name,
        model=model,
        temperature=given.get("temperature", temperature),
        max_tokens=given.get("max_tokens", max_tokens),
        top_p=given.get("top_p"),
        system=system if isinstance(system, str) and system else None,
    )


def _model_name(value: object, path: Path) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _LONGEST_MODEL:
        raise UserError(f"{path} names no model that can be read: {_shown(value)}.", hint="The log may be damaged.")
    if len(as_name(value)) > LONGEST_NAME:
        raise UserError(f"{path}: the name of its model is too long.", hint="Name the student with --student.")
    return value


def _joined_experiment(run: Run, logs: Sequence[_Part]) -> Experiment:
    """The experiment of the run so far, with the students, graders and steps of the logs."""
    document = _existing(run)
    for part in logs:
        own = part.experiment.model_dump(mode="json")
        if document is None:
            document = own
            continue
        differing = [key for key in _SAME if document.get(key) != own.get(key)]
        if differing:
            raise UserError(
                f"{part.path} has another {', '.join(differing)} than the run, or than another log.",
                hint="Import it into a run of its own.",
            )
        for section in ("students", "graders"):
            _add_models(document[section], own[section], section.removesuffix("s"), part.path)
        _add_steps(document["steps"], own["steps"])
    assert document is not None  # the parser wants at least one log
    return experiment_of(document, source=f"The logs for {run.path}")


def _existing(run: Run) -> dict[str, Any] | None:
    if not run.experiment_file.exists():
        return None
    students, graders = run.experiment.students.values(), run.experiment.graders.values()
    asked = [student.asked for student in students] + [grader.asked for grader in graders if grader.asked]
    is_ours = not run.is_imported and all(parse_spec(str(spec)).provider == "inspect" for spec in asked)
    if not is_ours:
        raise UserError(f"The run {run.path} exists and was not imported from Inspect.", hint="Use another run name.")
    return run.experiment.model_dump(mode="json")


def _add_models(known: dict[str, Any], new: Mapping[str, Any], what: str, path: Path) -> None:
    for name, settings in new.items():
        if known.setdefault(name, settings) != settings:
            differing = [key for key in settings if settings[key] != known[name].get(key)]
            raise UserError(
                f"{path} has the {what} {name!r} with another {', '.join(differing)}.",
                hint="Name its student with --student NAME." if what == "student" else "Import it into another run.",
            )


def _add_steps(known: list[Any], new: Sequence[Mapping[str, Any]]) -> None:
    by_name = {step["name"]: step for step in known}
    for step in new:
        if step["name"] in by_name:
            mine = by_name[step["name"]]
            mine["students"] = list(dict.fromkeys([*mine["students"], *step["students"]]))
        else:
            known.append(step)


def _shown(value: object) -> str:
    """An untrusted value, short enough for an error."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
