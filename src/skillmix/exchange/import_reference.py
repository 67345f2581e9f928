"""`skillmix import-reference` turns records of the original SKILL-MIX code into a run.

Conversations are stored in `k<k>_s<seed>_v<version>_r<generation>/<student>/records.csv`, and gradings in
`…/<student>/graded/by_<grader>_on_text_<turn>_<vote>_<version>/records.csv`. The original code stores some votes
several times under different numbers, so files with identical bytes count as one vote.
"""

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from skillmix.calls import GenerateKey, GradeKey, Message, Reply, as_name, imported_request, text_id
from skillmix.catalog.catalog import RESERVED_NAMES, fold_name
from skillmix.catalog.combinations import Combination, combination_of
from skillmix.errors import UserError
from skillmix.grading.answers import extract_answer, plain_answer
from skillmix.render import one_line
from skillmix.runs.journal import JournalWriter
from skillmix.runs.run import imported_document, new_run
from skillmix.runs.texts import graded_conversations

_GENERATION_FOLDER = re.compile(r"k(?P<k>\d+)_s(?P<seed>-?\d+)_v(?P<version>.+)_r(?P<round>\d+)")
_GRADING_FOLDER = re.compile(r"by_(?P<grader>.+)_on_text_(?P<turn>\d+)_(?P<vote>\d+)_(?P<version>[^_]+)")
_BETWEEN_SKILLS = re.compile(r",\s*\n\s*")
_BEFORE_ANSWER = "The student's answer was: \""
_AFTER_ANSWER = re.compile(r"\"[^\S\n]*+\n[^\S\n]*+\n\s*+(?<=\n)For reference, here are")
_LAYOUT = "Name a folder that contains records such as k3_s10_vdefault_r1/<student>/records.csv."
_NOTHING = "Correct the file; nothing in it was imported."
Row = dict[str, str]


@dataclass(slots=True)
class ImportedReference:
    """Counts of imported records and of faults in the records."""

    run: Path
    conversations: int = 0
    texts_from_prompts: int = 0  # texts whose conversation has no record, taken from the grader's prompt
    gradings: int = 0  # rows in grading files, including copies
    copies: int = 0  # gradings in files that are copies of another vote's file
    unreadable: dict[str, int] = field(default_factory=dict)  # distinct gradings that cannot be parsed, by reason
    unmatched: int = 0  # gradings whose text is missing


def import_reference(folder: Path, run_name: str) -> ImportedReference:
    """Store every conversation and every distinct grading in a folder."""
    run = new_run(run_name)
    students = list(_student_folders(folder))
    if not students:
        raise UserError(f"There are no records of the original code in {folder}.", hint=_LAYOUT)
    document = imported_document(run, stage="import-reference")
    run.require_same_import(document)
    with run.write() as journal, journal.transaction():
        importer = _Importer(journal, ImportedReference(run.path))
        for student, path in students:
            importer.import_student(student, path)
        run.begin_import(document)
        run.note_invocation({"command": "import-reference", "folder": folder.resolve().name})
    with run.read() as stored:
        readings = [reading for one in graded_conversations(run, stored) for reading in one.readings]
    problems = Counter(reading.problem for reading in readings if reading and reading.problem)
    importer.counts.unreadable = dict(problems.most_common())
    return importer.counts


def _student_folders(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield students with their folders, ordered by generation; a student with two prompts at one k counts as two."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.", hint=_LAYOUT)
    found = []
    for path in [folder, *folder.iterdir()]:
        match = _GENERATION_FOLDER.fullmatch(path.resolve().name)
        if match and path.is_dir():
            order = (int(match["k"]), int(match["seed"]), match["version"], int(match["round"]))
            students = [own for own in path.iterdir() if (own / "records.csv").is_file() or (own / "graded").is_dir()]
            found += [(order, student) for student in students]
    folders = {path.name for _, path in found}
    if len({as_name(name) for name in folders}) < len(folders):
        raise UserError(
            f"The names of two students in {folder} differ only in case or punctuation.", hint="Rename a folder."
        )
    versions = defaultdict(set)
    for (k, _, version, _), path in found:
        versions[path.name, k].add(version)
    for (k, _, version, _), path in sorted(found):
        name = path.name if len(versions[path.name, k]) == 1 else f"{path.name}-v{version}"
        yield as_name(name), path


class _Importer:
    """Stores records in a journal, and counts them."""

    def __init__(self, journal: JournalWriter, counts: ImportedReference) -> None:
        self._journal = journal
        self.counts = counts
        self._generations: Counter[tuple[str, str]] = Counter()

    def import_student(self, student: str, path: Path) -> None:
        """Store the conversations of a folder, and the gradings of the last graded turn."""
        stored: dict[tuple[str, int], tuple[int, str] | None] = {}  # the generation and the text of each conversation
        records = path / "records.csv"
        if records.is_file():
            for combination, occurrence, row in _rows_by_combination(records):
                stored[combination.id, occurrence] = self._store_conversation(student, combination, row)
        for grader, files in _grading_files(path / "graded").items():
            for round_number, file in enumerate(self._different(files)):
                for combination, occurrence, row in _rows_by_combination(file):
                    place = (combination.id, occurrence)
                    prompt, reply = _turns(row)[0]
                    if stored.get(place) is None and not records.is_file():
                        stored[place] = self._store_text(student, combination, prompt)
                    found = stored.get(place)
                    if found is None:
                        self.counts.unmatched += 1
                        continue
                    generation, text = found
                    key = GradeKey(student, combination.id, generation, text_id(text), grader, round_number, 0)
                    request = imported_request(key, (*_system(row), Message("user", prompt)))
                    self._journal.record(request, Reply(reply), origin="imported")

    def _store_conversation(self, student: str, combination: Combination, row: Row) -> tuple[int, str]:
        turns, messages, outcomes = _turns(row), _system(row), []
        generation = self._next_generation(student, combination)
        for number, (prompt, reply) in enumerate(turns, start=1):
            messages = (*messages, Message("user", prompt))
            key = GenerateKey(student, combination.id, generation, turn=number)
            outcomes.append((imported_request(key, messages), Reply(reply)))
            messages = (*messages, Message("assistant", reply))
        self._journal.record_all(outcomes, origin="imported")
        self.counts.conversations += 1
        return generation, extract_answer(turns[-1][1]).text

    def _store_text(self, student: str, combination: Combination, prompt: str) -> tuple[int, str] | None:
        """Store the graded text in a grader's prompt, if there is one."""
        _, _, answer = prompt.partition(_BEFORE_ANSWER)
        ends = [found.start() for found in _AFTER_ANSWER.finditer(answer)]
        if not ends:
            return None
        text = plain_answer(answer[: ends[-1]]).text
        generation = self._next_generation(student, combination)
        key = GenerateKey(student, combination.id, generation, turn=1)
        self._journal.record(imported_request(key), Reply(text), origin="imported-text")
        self.counts.texts_from_prompts += 1
        return generation, text

    def _next_generation(self, student: str, combination: Combination) -> int:
        generation = self._generations[student, combination.id]
        self._generations[student, combination.id] += 1
        if generation == 0:
            self._journal.add_combinations([combination])
        return generation

    def _different(self, files: Iterable[Path]) -> Iterator[Path]:
        """Yield one file for each distinct content; files with equal content are copies of one vote."""
        seen = set()
        for file in files:
            rows = len(_csv_rows(file))
            self.counts.gradings += rows
            content = blake2b(file.read_bytes()).digest()
            if content in seen:
                self.counts.copies += rows
            else:
                seen.add(content)
                yield file


def _rows_by_combination(file: Path) -> Iterator[tuple[Combination, int, Row]]:
    """Yield each row with its combination and the number of earlier rows with the same combination."""
    seen: Counter[str] = Counter()
    for number, row in enumerate(_csv_rows(file), start=1):
        skills = [one_line(name) for name in _BETWEEN_SKILLS.split(row["skills"])]
        try:
            combination = combination_of([name for name in skills if name], one_line(row["topic"]))
            reserved = next((skill for skill in combination.skills if fold_name(skill) in RESERVED_NAMES), None)
            if reserved is not None:
                raise UserError(f"The skill name {reserved!r} is reserved for a criterion.", hint="Rename the skill.")
        except UserError as error:
            raise UserError(f"{file}, record {number}: {error.message}", hint=error.hint) from None
        yield combination, seen[combination.id], row
        seen[combination.id] += 1


def _csv_rows(file: Path) -> list[Row]:
    csv.field_size_limit(1 << 30)
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            rows = list(reader)
            columns = set(reader.fieldnames or ())
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{file} cannot be read as CSV: {error}.", hint=_NOTHING) from None
    missing = sorted({"skills", "topic", "model_input_0"} - columns)
    if missing:
        raise UserError(f"{file} lacks columns: {', '.join(missing)}.", hint=_NOTHING)
    for number, row in enumerate(rows, start=1):
        if None in row or None in row.values():  # treated as empty, a missing answer would earn nothing
            raise UserError(f"{file}, record {number}: it does not have {len(columns)} cells.", hint=_NOTHING)
    return rows


def _turns(row: Row) -> list[tuple[str, str]]:
    """Return the prompt and reply of each turn, which are in the two columns before each model input."""
    columns = list(row)
    places = {name: index for index, name in enumerate(columns) if name.startswith("model_input_") and index >= 2}
    names = [name for number in range(len(columns)) if (name := f"model_input_{number}") in places]
    if not names:
        raise UserError("A record has no prompt and reply before its column model_input_0.", hint=_NOTHING)
    return [(row[columns[places[name] - 2]], row[columns[places[name] - 1]]) for name in names]


def _system(row: Row) -> tuple[Message, ...]:
    prompt = row.get("system prompt", "")
    return (Message("system", prompt),) if prompt else ()


def _grading_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of the last graded turn by grader, in the order of votes.

    A grader with two prompts counts as two graders.
    """
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _GRADING_FOLDER.fullmatch(path.name)
        if match and (path / "records.csv").is_file():
            order = int(match["turn"]), int(match["vote"])
            found.append((match["grader"], match["version"], *order, path / "records.csv"))
    last = max((turn for _, _, turn, _, _ in found), default=0)
    versions = defaultdict(set)
    for grader, version, *_ in found:
        versions[grader].add(version)
    files: dict[str, list[Path]] = defaultdict(list)
    for grader, version, turn, _, file in sorted(found):
        if turn == last:
            files[as_name(grader if len(versions[grader]) == 1 else f"{grader}-{version}")].append(file)
    return files
