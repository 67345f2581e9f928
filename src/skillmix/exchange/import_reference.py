"""`skillmix import-reference`: turn records of the original SKILL-MIX code into a run.

The layout of the records is `k<k>_s<seed>_v<version>_r<generation>/<student>/records.csv` for conversations and
`…/<student>/graded/by_<grader>_on_text_<turn>_<vote>_<version>/records.csv` for gradings. The original code stores
some votes under several numbers, so files that are equal byte for byte count as one vote.
"""

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from skillmix.calls import (
    GenerateKey,
    GradeKey,
    Message,
    Reply,
    as_name,
    imported_request,
    text_id,
)
from skillmix.catalog.catalog import RESERVED_NAMES, fold_name
from skillmix.catalog.combinations import Combination, combination_of
from skillmix.errors import UserError
from skillmix.grading.answers import extract_answer, plain_answer
from skillmix.runs.journal.journal import JournalWriter
from skillmix.runs.run import imported_document, new_run
from skillmix.runs.texts import graded_conversations

_GENERATION_FOLDER = re.compile(r"k(?P<k>\d+)_s(?P<seed>-?\d+)_v(?P<version>.+)_r(?P<round>\d+)")
_GRADING_FOLDER = re.compile(r"by_(?P<grader>.+)_on_text_(?P<turn>\d+)_(?P<vote>\d+)_(?P<version>[^_]+)")
_BETWEEN_SKILLS = re.compile(r",\s*\n\s*")
_BEFORE_ANSWER = "The student's answer was: \""
_AFTER_ANSWER = re.compile(r"\"[^\S\n]*+\n[^\S\n]*+\n\s*+(?<=\n)For reference, here are")
_LAYOUT = "Expected folders such as k3_s10_vdefault_r1/<student>/records.csv below it."

Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class ImportedReference:
    """Counts of the imported records and of their faults."""

    run: Path
    conversations: int
    texts_from_prompts: int
    """Texts without a record of their conversation, taken from the grader's prompt."""
    gradings: int
    """Rows of grading files, copies included."""
    copies: int
    """Gradings in files that equal another vote's file."""
    unreadable: dict[str, int]
    """Distinct gradings that cannot be read, by reason."""
    unmatched: int
    """Gradings whose text is missing."""


@dataclass(slots=True)
class _Import:
    """Counters and generation numbers while folders are read."""

    journal: JournalWriter
    conversations: int = 0
    texts_from_prompts: int = 0
    gradings: int = 0
    copies: int = 0
    unmatched: int = 0
    next_generation: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Conversation:
    """Where a student's text was stored."""

    generation: int
    text: str


def import_reference(folder: Path, run_name: str) -> ImportedReference:
    """Store every conversation and every different grading below a folder."""
    run = new_run(run_name)
    students = list(_student_folders(folder))
    if not students:
        raise UserError(f"No records of the original code lie in {folder}.", hint=_LAYOUT)
    document = imported_document(run, stage="import-reference")
    run.require_same_import(document)
    with run.write() as journal, journal.transaction():
        progress = _Import(journal)
        for student, path in students:
            _import_student(progress, student, path)
        run.begin_import(document)
    run.note_invocation({"command": "import-reference", "folder": folder.resolve().name})
    with run.read() as stored:
        readings = [reading for conversation in graded_conversations(run, stored) for reading in conversation.readings]
    problems = Counter(reading.problem for reading in readings if reading and reading.problem)
    return ImportedReference(
        run=run.path,
        conversations=progress.conversations,
        texts_from_prompts=progress.texts_from_prompts,
        gradings=progress.gradings,
        copies=progress.copies,
        unreadable=dict(problems.most_common()),
        unmatched=progress.unmatched,
    )


def _student_folders(folder: Path) -> Iterator[tuple[str, Path]]:
    """Students and their folders, generations in order; a student with two prompts at one k is two students."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.", hint=_LAYOUT)
    found = []
    for path in [folder, *folder.iterdir()]:
        match = _GENERATION_FOLDER.fullmatch(path.resolve().name)
        if match and path.is_dir():
            order = (int(match["k"]), int(match["seed"]), match["version"], int(match["round"]))
            found += [
                (order, student)
                for student in path.iterdir()
                if (student / "records.csv").is_file() or (student / "graded").is_dir()
            ]
    folders = {path.name for _, path in found}
    if len({as_name(name) for name in folders}) < len(folders):
        raise UserError(f"Two students in {folder} have one name but for case and marks.", hint="Rename a folder.")
    versions = defaultdict(set)
    for (k, _, version, _), path in found:
        versions[path.name, k].add(version)
    for (k, _, version, _), path in sorted(found):
        name = path.name if len(versions[path.name, k]) == 1 else f"{path.name}-v{version}"
        yield as_name(name), path


def _import_student(progress: _Import, student: str, path: Path) -> None:
    stored: dict[tuple[str, int], _Conversation] = {}
    records = path / "records.csv"
    if records.is_file():
        for combination, occurrence, row in _rows_by_combination(records):
            stored[combination.id, occurrence] = _store_conversation(progress, student, combination, row)
    for grader, files in _grading_files(path / "graded").items():
        for round_number, file in enumerate(_different(progress, files)):
            for combination, occurrence, row in _rows_by_combination(file):
                key = (combination.id, occurrence)
                if key not in stored and not records.is_file():
                    _store_text(progress, student, combination, row, stored, occurrence)
                if key not in stored:
                    progress.unmatched += 1
                    continue
                text = stored[key]
                grade_key = GradeKey(
                    student=student,
                    combination=combination.id,
                    generation=text.generation,
                    text=text_id(text.text),
                    grader=grader,
                    round=round_number,
                    attempt=0,
                )
                prompt, reply = _turns(row)[0]
                request = imported_request(grade_key, (*_system(row), Message("user", prompt)))
                progress.journal.record(request, Reply(reply), origin="imported")


def _rows_by_combination(file: Path) -> Iterator[tuple[Combination, int, Row]]:
    """Rows with their combination and how often it came before: the original draws with replacement."""
    seen: Counter[str] = Counter()
    for number, row in enumerate(_csv_rows(file), start=1):
        skills = [_printable(name) for name in _BETWEEN_SKILLS.split(row["skills"])]
        try:
            combination = combination_of([name for name in skills if name], _printable(row["topic"]))
            for skill in combination.skills:
                if fold_name(skill) in RESERVED_NAMES:
                    raise UserError(
                        f"The skill name {skill!r} is reserved for a criterion.", hint="Rename it in the records."
                    )
        except UserError as error:
            raise UserError(f"{file}, record {number}: {error.message}", hint=error.hint) from None
        yield combination, seen[combination.id], row
        seen[combination.id] += 1


def _printable(name: str) -> str:
    """A name on one line, without the control characters that a terminal would obey."""
    return " ".join("".join(c if c.isprintable() else " " for c in name).split())


def _csv_rows(file: Path) -> list[Row]:
    csv.field_size_limit(1 << 30)
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            rows = list(reader)
            columns = set(reader.fieldnames or ())
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{file} cannot be read as CSV: {error}.", hint="Nothing of it was imported.") from None
    missing = sorted({"skills", "topic", "model_input_0"} - columns)
    if missing:
        raise UserError(f"{file} lacks the columns {', '.join(missing)}.", hint="Nothing of it was imported.")
    for number, row in enumerate(rows, start=1):
        # A cell that is not there is unknown; taken as empty, it would be an answer that earns nothing.
        if None in row or None in row.values():
            raise UserError(
                f"{file}, record {number}: it does not have {len(columns)} cells, as the first line has.",
                hint="Nothing of it was imported.",
            )
    return rows


def _turns(row: Row) -> list[tuple[str, str]]:
    """Prompt and reply of each turn: the two columns before each model input, whatever the roles are called."""
    columns = list(row)
    turns: list[tuple[str, str]] = []
    for number in range(len(columns)):
        name = f"model_input_{number}"
        if name in columns and columns.index(name) >= 2:
            index = columns.index(name)
            turns.append((row[columns[index - 2]], row[columns[index - 1]]))
    if not turns:
        raise UserError(
            "A record has no prompt and reply before its model_input_0.", hint="The original writes them there."
        )
    return turns


def _system(row: Row) -> tuple[Message, ...]:
    prompt = row.get("system prompt", "")
    return (Message("system", prompt),) if prompt else ()


def _store_conversation(progress: _Import, student: str, combination: Combination, row: Row) -> _Conversation:
    turns = _turns(row)
    generation = _next_generation(progress, student, combination)
    messages = _system(row)
    outcomes = []
    for number, (prompt, reply) in enumerate(turns, start=1):
        messages = (*messages, Message("user", prompt))
        key = GenerateKey(student, combination.id, generation, turn=number)
        outcomes.append((imported_request(key, messages), Reply(reply)))
        messages = (*messages, Message("assistant", reply))
    progress.journal.record_all(outcomes, origin="imported")
    progress.conversations += 1
    return _Conversation(generation, extract_answer(turns[-1][1]).text)


def _store_text(
    progress: _Import,
    student: str,
    combination: Combination,
    row: Row,
    stored: dict[tuple[str, int], _Conversation],
    occurrence: int,
) -> None:
    """Without the conversation, the grader's prompt still holds the text that was graded."""
    _, _, answer = _turns(row)[0][0].partition(_BEFORE_ANSWER)
    ends = [found.start() for found in _AFTER_ANSWER.finditer(answer)]
    if not ends:
        return
    text = plain_answer(answer[: ends[-1]]).text
    generation = _next_generation(progress, student, combination)
    key = GenerateKey(student, combination.id, generation, turn=1)
    progress.journal.record(imported_request(key), Reply(text), origin="imported-text")
    progress.texts_from_prompts += 1
    stored[combination.id, occurrence] = _Conversation(generation, text)


def _next_generation(progress: _Import, student: str, combination: Combination) -> int:
    generation = progress.next_generation[student, combination.id]
    progress.next_generation[student, combination.id] += 1
    if generation == 0:
        progress.journal.add_combinations([combination])
    return generation


def _grading_files(folder: Path) -> dict[str, list[Path]]:
    """Grading files of the last graded turn, by grader, votes in order; a grader with two prompts is two graders."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _GRADING_FOLDER.fullmatch(path.name)
        if match and (path / "records.csv").is_file():
            found.append(
                (
                    match["grader"],
                    match["version"],
                    int(match["turn"]),
                    int(match["vote"]),
                    path / "records.csv",
                )
            )
    last = max((turn for _, _, turn, _, _ in found), default=0)
    versions = defaultdict(set)
    for grader, version, *_ in found:
        versions[grader].add(version)
    files: dict[str, list[Path]] = defaultdict(list)
    for grader, version, turn, _, file in sorted(found):
        if turn == last:
            files[as_name(grader if len(versions[grader]) == 1 else f"{grader}-{version}")].append(file)
    return files


def _different(progress: _Import, files: Iterable[Path]) -> Iterator[Path]:
    """The files with content of their own; the others are copies of a vote, not votes."""
    seen = set()
    for file in files:
        rows = len(_csv_rows(file))
        progress.gradings += rows
        content = blake2b(file.read_bytes()).digest()
        if content in seen:
            progress.copies += rows
        else:
            seen.add(content)
            yield file
