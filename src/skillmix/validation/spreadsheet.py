"""Write a rater's task as a CSV spreadsheet with one row for each question, and read it back with checks.

Texts come from models, and a spreadsheet program interprets a cell that begins with "=" as a formula. Such cells get a
leading apostrophe, so that a program never evaluates them. The rater may sort the rows, and a program may use another
separator, but a changed text, question or criterion is a fault.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skillmix.calls import human_grader
from skillmix.errors import UserError, faults_error
from skillmix.files import read_text
from skillmix.runs.people import HumanAnswer, Vote
from skillmix.validation.sample import AnnotationItem
from skillmix.validation.task import AnnotationTask, fault_of

COLUMNS: Final = ("item", "rater", "text", "topic", "criterion", "question", "definition", "example", "vote", "comment")
_VOTES: Final[Mapping[str, Vote]] = {
    "1": 1, "1.0": 1, "yes": 1, "y": 1, "0": 0, "0.0": 0, "no": 0, "n": 0, "?": None, "unsure": None,
}  # fmt: skip
_WORDS: Final[Mapping[Vote, str]] = {1: "1", 0: "0", None: "?"}
_FORMULA: Final = re.compile(r"[\s\x00-\x1f]*[=+\-@\t\r|%\uff1d\uff0b\uff0d\uff20]")
_SEPARATOR_LINE: Final = re.compile(r'"?sep=([,;\t])"?[,;\t]*\r?\n', re.IGNORECASE)
_ID_LETTER: Final = "t"
"""The first character of each id, because a program might rewrite an id that looks like a number."""
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LARGEST: Final = 100_000_000
_Row = dict[str, str]
"""Cells by column."""


def write_spreadsheet(task: AnnotationTask, rater: str, file: Path) -> bool:
    """Write a rater's task with the answers so far; return False and keep the file if it may have unstored votes."""
    if file.exists() and _has_new_votes(task, rater, file):
        return False
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for item in task.texts(rater):
        answer = task.answer(rater, item)
        about = [_ID_LETTER + item.id, human_grader(rater), item.words, item.combination.topic]
        for question in task.questions(item):
            asked = [question.name, question.words, question.definition, question.example]
            vote = _WORDS[answer.votes[question.name]] if answer else ""
            comment = answer.comment if answer and question.name == item.criteria[0].name else ""
            writer.writerow([guarded(cell) for cell in (*about, *asked, vote, comment)])
    partial = file.with_name(f"{file.name}.partial")
    # The byte-order mark makes spreadsheet programs read the file as UTF-8.
    partial.write_bytes(content.getvalue().encode("utf-8-sig"))
    partial.replace(file)
    return True


def _has_new_votes(task: AnnotationTask, rater: str, file: Path) -> bool:
    """Return whether a file is not a task, or may contain a vote that is not stored."""
    try:
        if not any(row["vote"].strip() for _, row in _rows(file)):
            return False
        read = read_spreadsheet(task, rater, file).answers
    except UserError:
        return True
    stored = {own: task.answer(rater, task.items[own]) for own in read}
    return not all(one is not None and one.says_the_same(read[own]) for own, one in stored.items())


def guarded(cell: str) -> str:
    """Return the cell, with a leading apostrophe if a spreadsheet program would interpret it as a formula.

    >>> guarded("=1+1"), guarded("Time flies."), guarded("- a list")
    ("'=1+1", 'Time flies.', "'- a list")
    """
    plain = _CONTROLS.sub("\ufffd", cell)
    return f"'{plain}" if _FORMULA.match(cell) else plain


@dataclass(frozen=True, slots=True)
class SpreadsheetAnswers:
    """The answers in a spreadsheet, by item."""

    answers: Mapping[str, HumanAnswer]
    empty: int
    """The number of texts without any vote."""


def read_spreadsheet(task: AnnotationTask, rater: str, file: Path) -> SpreadsheetAnswers:
    """Read a filled-in spreadsheet, or raise one error with all faults."""
    rows, wanted = list(_rows(file)), human_grader(rater)
    other = next((row["rater"].strip() for _, row in rows if row["rater"].strip() != wanted), None)
    if other is not None:
        raise UserError(
            f"{file} is not the task of {rater}: a row has the rater {other[:80]!r}, not {wanted!r}.",
            hint="Nothing was stored. Name the rater of the file with --rater.",
        )
    by_item: dict[str, dict[str, _Row]] = {}
    faults: list[str] = []
    for number, row in rows:
        try:
            item, name = _checked_question(task, row)
            if name in by_item.setdefault(item.id, {}):
                raise ValueError(f"it repeats the question on {name!r}")
            by_item[item.id][name] = row
        except ValueError as fault:
            faults.append(f"row {number}: {fault}")
    answers = {}
    for own, of_item in by_item.items():
        votes = {name: _VOTES[row["vote"].strip().casefold()] for name, row in of_item.items() if row["vote"].strip()}
        comments = dict.fromkeys(row["comment"].strip() for row in of_item.values())
        if votes:
            answers[own] = HumanAnswer(votes, "\n".join(filter(None, comments)))
    if not faults:  # a row with a fault would also count as a missing vote
        own_texts = set(task.assignment.texts[rater])
        for own, answer in answers.items():
            found = fault_of(task.items[own], answer)
            if own not in own_texts and task.answer(rater, task.items[own]) is None:
                found = f"it is not assigned to {rater}; import with the options used for the export"
            faults += [f"the text {_ID_LETTER}{own}: {found}"] if found else []
    if faults:
        raise faults_error(str(file), faults, hint="Nothing was stored. Each question needs a vote: 1, 0 or ?.")
    return SpreadsheetAnswers(answers, len(by_item) - len(answers))


def _checked_question(task: AnnotationTask, row: _Row) -> tuple[AnnotationItem, str]:
    """Return the text and the criterion of a row; a ValueError describes a fault in the row."""
    own = row["item"].strip()
    item = task.items.get(own.removeprefix(_ID_LETTER)) if own.startswith(_ID_LETTER) else None
    if item is None:
        raise ValueError(f"the run has no text {row['item'][:40]!r}")
    question = next((q for q in task.questions(item) if _is_same(row["criterion"], q.name)), None)
    if question is None:
        raise ValueError(f"{row['criterion'][:60]!r} is not a criterion of its text")
    expected = {"text": item.words, "topic": item.combination.topic, "question": question.words}
    changed = next((name for name, cell in expected.items() if not _is_same(row[name], cell)), None)
    if changed is not None:
        raise ValueError(f"the {changed} was changed")
    if row["vote"].strip() and row["vote"].strip().casefold() not in _VOTES:
        raise ValueError(f"{row['vote'].strip()[:20]!r} is not a vote")
    return item, question.name


def _is_same(cell: str, expected: str) -> bool:
    """Return whether a cell equals the written value, apart from whitespace, which programs change."""
    plain = _CONTROLS.sub("\ufffd", expected)
    return " ".join(cell.split()) in (" ".join(plain.split()), " ".join(guarded(expected).split()))


def _rows(file: Path) -> Iterator[tuple[int, _Row]]:
    """Yield the rows of a spreadsheet with their numbers; added columns are ignored."""
    content = read_text(file, most=_LARGEST)
    named = _SEPARATOR_LINE.match(content)
    if named is not None:
        content = content[named.end() :]
    # In some locales, spreadsheet programs write semicolons or tabs.
    separator = max((",", ";", "\t"), key=content.partition("\n")[0].count) if named is None else named[1]
    longest = csv.field_size_limit(_LARGEST)
    try:
        rows = list(csv.reader(io.StringIO(content, newline=""), delimiter=separator, strict=True))
    except csv.Error as error:
        raise UserError(f"{file} is not CSV: {error}.", hint="Save it as CSV again.") from None
    finally:
        csv.field_size_limit(longest)
    header = [name.strip() for name in rows[0]] if rows else []
    missing = [name for name in COLUMNS if header.count(name) != 1]
    if missing:
        raise UserError(
            f"{file} is not a task: it has no column {missing[0]!r}.", hint="Export the task again, and copy the votes."
        )
    places = {name: header.index(name) for name in COLUMNS}
    return (
        (number, {name: row[place] if place < len(row) else "" for name, place in places.items()})
        for number, row in enumerate(rows[1:], start=2 if named is None else 3)
        if any(cell.strip() for cell in row)
    )
