"""`skillmix import-inspect` turns logs of the Inspect task into a run with the same scores as an ordinary run.

The settings in a log define the combinations that the task drew, so combinations that are missing from a log are also
missing from the run, and count as unknown. Points are recomputed from the texts and the graders' replies.

Logs are read without Inspect: `.json` files, and `.eval` files, which are zip archives of JSON files. They are
untrusted. Nothing is unpacked to the disk, and names inside an archive are never used as paths. Every size is limited
while the data are read, because a small archive can contain terabytes of zeros.
"""

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, TypeGuard, get_args

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
from skillmix.exchange import task_settings
from skillmix.exchange.import_texts import Imported
from skillmix.exchange.task_settings import FILTERED, AskedBy, InspectTaskSettings, settings_of
from skillmix.experiment.experiment import Experiment, experiment_of
from skillmix.experiment.plan import cells_of
from skillmix.models.specs import parse_spec
from skillmix.prompts.prompt_set import load_prompts, shipped_prompt_sets, turns_with
from skillmix.render import shortened
from skillmix.runs.run import Run, new_run
from skillmix.runs.verdicts import answer_of

_DAMAGED: Final = "The file is damaged or not a log of Inspect AI. Nothing was imported."
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")
_ZSTD: Final = 93
_HEADERS: Final = ("header.json", "_journal/start.json")
"""The header files of a finished log and of the log of an interrupted evaluation."""


LONGEST_JSON: Final = 256 << 20
LONGEST_ENTRY: Final = 64 << 20
LONGEST_ARCHIVE: Final = 8 << 30
"""The size limits in bytes of a `.json` log, of a file in an archive, and of all files in an archive together."""
MOST_ENTRIES: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class InspectLog:
    """One log, with its header and an iterator over its samples."""

    path: Path
    header: dict[str, Any]
    samples: Iterator[object] = field(repr=False)

    @property
    def spec(self) -> dict[str, Any]:
        """The section `eval`, which contains the task, the model and the settings."""
        return mapping(self.header.get("eval"))

    @property
    def config(self) -> dict[str, Any]:
        """The sampling settings from the task and the command line."""
        return mapping(mapping(self.header.get("plan")).get("config"))


def mapping(value: object) -> dict[str, Any]:
    """Return a JSON object, or an empty object for any other value."""
    return value if isinstance(value, dict) else {}


@contextmanager
def opened_log(path: Path) -> Iterator[InspectLog]:
    """Open a log of either format; the samples can be read until the block ends."""
    if not path.is_file():
        raise UserError(f"There is no log at {path}.", hint="Inspect writes its logs to the folder logs/.")
    no_samples = UserError(f"{path} contains no samples.", hint="Run the evaluation without --no-log-samples.")
    with path.open("rb") as stream:
        if stream.read(2) == b"PK":
            archive = _Archive(path, stream)
            # If two files have the same name, the last one counts.
            samples = sorted(n for n in archive.files if n.startswith("samples/") and n.endswith(".json"))
            header = next((name for name in _HEADERS if name in archive.files), None)
            if not samples:
                raise no_samples
            if header is None:
                raise UserError(f"{path} has no header.", hint=_DAMAGED)
            yield InspectLog(path, archive.document(header), map(archive.document, samples))
            return
    if path.stat().st_size > LONGEST_JSON:
        raise UserError(
            f"{path} has {path.stat().st_size} bytes, but a .json log may have at most {LONGEST_JSON}.",
            hint="Convert it: inspect log convert FILE --to eval --output-dir DIR",
        )
    document = _object(path.read_bytes(), str(path))
    samples = document.pop("samples", None)
    if not isinstance(samples, list):
        raise no_samples
    yield InspectLog(path, document, iter(samples))


def _object(raw: bytes, source: str) -> dict[str, Any]:
    try:
        document = json.loads(raw)  # Inspect writes NaN, which is not JSON, for a score without a value
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else f"not valid JSON ({error})"
        raise UserError(f"{source} is {reason}.", hint=_DAMAGED) from None
    if not isinstance(document, dict):
        raise UserError(f"{source} is not a JSON object.", hint=_DAMAGED)
    return document


class _Archive:
    """Reads the files in an `.eval` log, which is a zip archive, within the size limits."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self._path = path
        self._stream = stream
        self._read = 0
        try:
            self._zip = zipfile.ZipFile(stream)
        except (zipfile.BadZipFile, ValueError, OverflowError, NotImplementedError) as error:
            raise UserError(f"{path} is a damaged archive ({error}).", hint=_DAMAGED) from None
        self.files = self._zip.NameToInfo
        if len(self.files) > MOST_ENTRIES:
            raise UserError(f"{path} contains more than {MOST_ENTRIES} files.", hint=_DAMAGED)

    def document(self, name: str) -> dict[str, Any]:
        """Return one file as a JSON object."""
        source = f"{name!r} in {self._path}"
        try:
            raw = self._content(self.files[name])
        except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, OSError, ValueError) as error:
            raise UserError(f"{source} cannot be read ({error}).", hint=_DAMAGED) from None
        self._read += len(raw)
        if len(raw) > LONGEST_ENTRY:
            raise UserError(f"{source} has more than {LONGEST_ENTRY} bytes.", hint=_DAMAGED)
        if self._read > LONGEST_ARCHIVE:
            raise UserError(f"{self._path} contains more than {LONGEST_ARCHIVE} bytes.", hint=_DAMAGED)
        return _object(raw, source)

    def _content(self, info: zipfile.ZipInfo) -> bytes:
        """Return the data of one file, up to one byte more than allowed."""
        most = LONGEST_ENTRY + 1
        if info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            with self._zip.open(info) as file:
                return file.read(most)
        if info.compress_type != _ZSTD or info.flag_bits & 1:
            raise ValueError(f"it is encrypted, or has a compression that Inspect does not use ({info.compress_type})")
        # Python's zipfile supports Zstandard only from version 3.14, so find the data after the local header.
        self._stream.seek(info.header_offset)
        mark, name, extra = _LOCAL_HEADER.unpack(self._stream.read(_LOCAL_HEADER.size))
        if mark != b"PK\3\4":
            raise ValueError("its local header is damaged")
        self._stream.seek(name + extra, 1)
        raw = _zstd_content(self._stream.read(min(info.compress_size, LONGEST_ENTRY)), most)
        if len(raw) < most and zlib.crc32(raw) != info.CRC:
            raise ValueError("its checksum differs")
        return raw


def _zstd_content(raw: bytes, most: int) -> bytes:
    """Decompress at most `most` bytes with zstandard, which Inspect requires, or with pyarrow."""
    try:
        import zstandard
    except ImportError:
        try:
            import pyarrow
        except ImportError:
            raise UserError(
                "An .eval log is compressed with Zstandard, and no installed package can read it.",
                hint="pip install 'skillmix[inspect]', or convert the log: inspect log convert FILE --to json "
                "--output-dir DIR",
            ) from None
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(raw), "zstd") as reader:
            return bytes(reader.read(most))
    try:
        with zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as reader:
            return bytes(reader.read(most))
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None


_ROLES: Final[Mapping[str, Role]] = {role: role for role in get_args(Role)}
_SAME: Final = ("seed", "catalog", "partition", "prompts", "exclude")
"""The settings that must be equal in all logs of a run."""

Calls = list[tuple[Request, Outcome]]


@dataclass(frozen=True, slots=True)
class _ReadLog:
    """The content of a log: its experiment, its conversations as lists of calls, and its votes."""

    path: Path
    experiment: Experiment
    combinations: tuple[Combination, ...]
    conversations: list[Calls]
    votes: Calls
    unfinished: int
    notes: list[str]


def import_inspect(
    paths: Sequence[Path],
    run_name: str,
    *,
    student: str | None = None,
    catalog: str | None = None,
    prompts: str | None = None,
) -> Imported:
    """Store conversations and votes from logs; importing a log again changes nothing, and more logs extend the run.

    By default, the student has the name of its model. If the task used a folder as its catalog or prompt set, `catalog`
    or `prompts` must name the folder.
    """
    run = new_run(run_name)
    logs = [_read_log(path, run, student, catalog, prompts) for path in dict.fromkeys(paths)]
    _joined_experiment(run, logs)  # raise errors before any folder is created
    new = 0
    with run.write() as journal:
        experiment = _joined_experiment(run, logs)  # another import may have changed the run in the meantime
        source = load_catalog(experiment.catalog)
        run.checked_document(experiment, source)
        with journal.transaction():
            for log in logs:
                journal.add_combinations(log.combinations)
                new += sum(journal.record_all(turns, origin="imported") for turns in log.conversations)
                new += journal.record_all(log.votes, origin="imported")
            run.continue_with(experiment, source)
            run.note_invocation({"command": "import-inspect", "files": [log.path.name for log in logs]})
    return Imported(
        run=run.path,
        conversations=len({turns[-1][0].key for log in logs for turns in log.conversations}),
        gradings=len({request.key for log in logs for request, _ in log.votes}),
        new=new,
        unfinished=sum(log.unfinished for log in logs),
        notes=tuple(note for log in logs for note in log.notes),
    )


def _read_log(
    path: Path, run: Run, student_name: str | None, catalog_folder: str | None, prompts_folder: str | None
) -> _ReadLog:
    """Read a log, starting with its header, which determines how to read the samples."""
    with opened_log(path) as log:
        facts = mapping(mapping(log.spec.get("metadata")).get(task_settings.FACTS))
        if not facts:
            raise UserError(
                f"{path} is not a log of skillmix/skillmix, but of {_shown(log.spec.get('task'))}.",
                hint="Only logs of the task skillmix/skillmix can be imported.",
            )
        if facts.get("format") != task_settings.LOG_FORMAT:
            known = f"this version of skillmix reads {task_settings.LOG_FORMAT}"
            raise UserError(f"{path} has the format {_shown(facts.get('format'))}; {known}.", hint="Update skillmix.")
        settings = _settings_as_run(log, settings_of(facts.get("settings"), source=str(path)))
        shipped = {"catalog": shipped_catalogs(), "prompts": shipped_prompt_sets()}
        for option, folder in (("catalog", catalog_folder), ("prompts", prompts_folder)):
            name = getattr(settings, option)
            if folder is None and name not in shipped[option]:  # only the user may choose a folder, never the log
                message = f"{path} was made with {option} from a folder, {_shown(name)}."
                raise UserError(message, hint=f"Name the folder with --{option} DIR.")
            settings = settings.model_copy(update={option: folder or name})
        model, config = _model_name(log.spec.get("model"), path), mapping(log.spec.get("model_generate_config"))
        config |= {key: value for key, value in log.config.items() if value is not None}
        name = checked_name(student_name, "student") if student_name else as_name(model)
        student = AskedBy(name, model, {**task_settings.STUDENT_DECODING, **_decoding(config)})
        grader = None
        if settings.asks_model:
            roles = mapping(log.spec.get("model_roles")).get(task_settings.ROLE)
            role = mapping(roles[0] if isinstance(roles, list) and roles else roles)
            model, decoding = _model_name(role.get("model"), path), _decoding(mapping(role.get("config")))
            grader = AskedBy(as_name(model), model, {**task_settings.GRADER_DECODING, **decoding})
        experiment = task_settings.task_experiment(settings, student, grader, name=run.name, source=str(path))
        catalog, prompts = load_catalog(settings.catalog), load_prompts(settings.prompts)
        task_settings.refuse_plain(settings, catalog, has_outcomes=prompts.phrases.outcomes is not None)
        if facts.get("catalog_hash") != catalog.content_hash():
            raise UserError(
                f"{path} was made with a different version of the catalog {settings.catalog!r}.",
                hint=f"Import it with skillmix {_shown(facts.get('skillmix'))}, which made it.",
            )
        (cell,) = cells_of(experiment, catalog)
        combinations = {combination.id: combination for combination in cell.combinations}
        reader = _SampleReader(student.name, next(iter(experiment.graders)), settings, combinations)
        conversations, votes, unfinished = reader.read_all(log)
    notes = []
    if facts.get("prompts_hash") != prompts.content_hash():
        notes.append(f"{path.name} was made with a different wording of the prompt set {settings.prompts!r}")
    return _ReadLog(path, experiment, tuple(cell.combinations), conversations, votes, unfinished, notes)


def _settings_as_run(log: InspectLog, settings: InspectTaskSettings) -> InspectTaskSettings:
    """Apply `--epochs` and `--limit` of Inspect's command line to the settings."""
    config, changed = mapping(log.spec.get("config")), settings.model_dump()
    epochs, limit = config.get("epochs"), config.get("limit")
    if type(epochs) is int and epochs > 0:
        changed["generations"] = epochs
    if type(limit) is int and 0 < limit < settings.combinations and config.get("sample_shuffle") in (None, False):
        changed["combinations"] = limit  # a smaller draw is a prefix of a larger draw
    return settings_of(changed, source=str(log.path))


def _model_name(value: object, path: Path) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 200:
        raise UserError(f"{path} has an invalid model: {_shown(value)}.", hint="The log may be damaged.")
    if len(as_name(value)) > LONGEST_NAME:
        raise UserError(f"{path}: the name of its model is too long.", hint="Name the student with --student.")
    return value


def _decoding(config: Mapping[str, Any]) -> dict[str, object]:
    """Convert a log's sampling settings for an experiment file; the experiment checks the values."""
    given = {key: config[key] for key in ("temperature", "max_tokens", "top_p") if config.get(key) is not None}
    system = config.get("system_message")
    return given | ({"system": system} if isinstance(system, str) and system else {})


@dataclass(frozen=True, slots=True)
class _SampleReader:
    """Reads the samples of a log."""

    student: str
    grader: str
    settings: InspectTaskSettings
    combinations: Mapping[str, Combination]

    def read_all(self, log: InspectLog) -> tuple[list[Calls], Calls, int]:
        """Return the turns of each finished conversation, all votes, and the number of unfinished samples."""
        conversations: dict[object, Calls] = {}
        votes: Calls = []
        faults: list[str] = []
        unfinished = 0
        for record in map(mapping, log.samples):
            try:
                turns = self._turns(record)
                if turns is None:
                    unfinished += 1
                    continue
                key = turns[0][0].key
                if key in conversations:
                    raise UserError(f"sample {key.combination}, epoch {key.generation + 1}: it is in the log twice")
                votes += list(self._votes(record, turns))
                conversations[key] = turns
            except UserError as error:
                faults.append(error.message)
        if faults:
            raise faults_error(str(log.path), faults, hint="The log is damaged or was modified. Nothing was imported.")
        return list(conversations.values()), votes, unfinished

    def _turns(self, record: Mapping[str, Any]) -> Calls | None:
        """Return the student's calls; None if the conversation is unfinished or the sample was marked invalid."""
        name, epoch = record.get("id"), record.get("epoch")
        combination = self.combinations.get(name) if isinstance(name, str) else None
        if combination is None:
            raise UserError(f"sample {_shown(name)}: the task does not draw this combination")
        if type(epoch) is not int or not 1 <= epoch <= self.settings.generations:
            raise UserError(f"sample {combination.id}: its epoch {_shown(epoch)} is invalid")
        facts = mapping(record.get("store")).get(task_settings.TURNS_KEY)
        if record.get("invalidation") is not None or not isinstance(facts, list) or not facts:
            return None
        wanted = turns_with(self.settings.prompts)
        is_filtered = mapping(facts[-1]).get("finish") == FILTERED
        if len(facts) > wanted or (len(facts) < wanted and not is_filtered):
            return None
        where = f"sample {combination.id}, epoch {epoch}"
        messages = _messages(record, where)
        roles = [message.role for message in messages[-2 * len(facts) :]]
        if roles != ["user", "assistant"] * len(facts):
            raise UserError(f"{where}: its messages do not end with {len(facts)} turns of user and assistant")
        calls: Calls = []
        for number, fact in enumerate(facts):
            place = len(messages) - 2 * (len(facts) - number) + 1  # the index of the turn's reply
            key = GenerateKey(self.student, combination.id, epoch - 1, ONLY_TURN if wanted == 1 else number + 1)
            outcome = _outcome(messages[place].content, mapping(fact))
            calls.append((imported_request(key, tuple(messages[:place])), outcome))
        if not all(isinstance(outcome, Reply) for _, outcome in calls[:-1]):
            raise UserError(f"{where}: it continues after a refusal")
        return calls

    def _votes(self, record: Mapping[str, Any], turns: Calls) -> Iterator[tuple[Request, Outcome]]:
        """Yield the grader's replies about a text; the points in the log are ignored."""
        request, last = turns[-1]
        key = request.key
        text = answer_of(last.text if isinstance(last, Reply) else None, "imported", len(turns)).text
        where = f"sample {key.combination}, epoch {key.generation + 1}"
        score = mapping(mapping(record.get("scores")).get(task_settings.SCORER))
        votes = mapping(score.get("metadata")).get("votes", [])
        if not isinstance(votes, list) or (votes and not self.settings.asks_model):
            raise UserError(f"{where}: its votes do not come from the task's grader")
        seen = set()
        for vote in map(mapping, votes):
            number, attempt, reply = vote.get("round"), vote.get("attempt"), vote.get("reply")
            if not _is_below(number, self.settings.rounds) or not _is_below(attempt, self.settings.attempts):
                raise UserError(f"{where}: it has an invalid vote of round {_shown(number)}, attempt {_shown(attempt)}")
            if (number, attempt) in seen:
                raise UserError(f"{where}: it has two votes of round {number}, attempt {attempt}")
            seen.add((number, attempt))
            if reply is not None and not isinstance(reply, str):
                raise UserError(f"{where}: the reply of round {number} is not a text")
            place = (key.student, key.combination, key.generation, text_id(text))
            yield imported_request(GradeKey(*place, self.grader, number, attempt)), _outcome(reply, vote)


def _is_below(value: object, limit: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < limit


def _outcome(text: str | None, facts: Mapping[str, Any]) -> Outcome:
    finish = facts.get("finish")
    if text is None or finish == FILTERED:
        return CallProblem("final", "content filter")
    known = isinstance(finish, str) and finish != "unknown" and len(finish) <= 60
    return Reply(text, finish if known else None, facts.get("input_tokens"), facts.get("output_tokens"))


def _messages(record: Mapping[str, Any], where: str) -> list[Message]:
    attachments = mapping(record.get("attachments"))
    messages = record.get("messages")
    made = []
    for message in map(mapping, messages if isinstance(messages, list) else []):
        role = _ROLES.get(str(message.get("role")))
        if role is None:
            raise UserError(f"{where}: it has a message with the invalid role {_shown(message.get('role'))}")
        made.append(Message(role, _text(message.get("content"), attachments, where)))
    return made


def _text(content: object, attachments: Mapping[str, Any], where: str) -> str:
    """Return the text of a message, ignoring reasoning and other parts."""
    if isinstance(content, list):
        parts = [mapping(part) for part in content]
        return "".join(_text(part.get("text"), attachments, where) for part in parts if part.get("type") == "text")
    if not isinstance(content, str):
        raise UserError(f"{where}: a message has no text")
    if not content.startswith("attachment://"):
        return content
    stored = attachments.get(content.removeprefix("attachment://"))
    if not isinstance(stored, str):
        raise UserError(f"{where}: a message refers to an attachment that is missing in the log")
    return stored


def _joined_experiment(run: Run, logs: Sequence[_ReadLog]) -> Experiment:
    """Add the students, graders and steps of the logs to the run's current experiment."""
    documents = [(log.path, log.experiment.model_dump(mode="json")) for log in logs]
    joined = documents[0][1]
    if run.exists:
        students, graders = run.experiment.students.values(), run.experiment.graders.values()
        asked = [student.asked for student in students] + [grader.asked for grader in graders if grader.asked]
        if run.is_imported or any(parse_spec(str(spec)).provider != "inspect" for spec in asked):
            raise UserError(
                f"The run {run.path} exists and was not imported from Inspect.", hint="Choose another name with --run."
            )
        joined = run.experiment.model_dump(mode="json")
    for path, own in documents:
        differing = [key for key in _SAME if joined.get(key) != own.get(key)]
        if differing:
            raise UserError(
                f"The {', '.join(differing)} of {path} differs from the run or from an earlier log.",
                hint="Import it into another run.",
            )
        hints = {"students": "Rename its student with --student NAME.", "graders": "Import it into another run."}
        for section, hint in hints.items():
            for name, settings in own[section].items():
                known = joined[section].setdefault(name, settings)
                differing = [key for key in settings if settings[key] != known.get(key)]
                if known != settings:
                    what = section.removesuffix("s")
                    message = f"{path} has the {what} {name!r} with a different {', '.join(differing)}."
                    raise UserError(message, hint=hint)
        steps = {step["name"]: step for step in joined["steps"]}
        for step in own["steps"]:
            mine = steps.setdefault(step["name"], step)
            mine["students"] = list(dict.fromkeys([*mine["students"], *step["students"]]))
        joined["steps"] = list(steps.values())
    return experiment_of(joined, source=f"The logs for {run.path}")


def _shown(value: object) -> str:
    """Format an untrusted value for an error message."""
    return shortened(repr(value))
