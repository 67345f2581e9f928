"""`skillmix import-texts` turns texts from elsewhere, with or without gradings, into a run."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from skillmix.calls import (
    GenerateKey,
    GradeKey,
    Message,
    Origin,
    Reply,
    Request,
    Role,
    checked_name,
    imported_request,
    text_id,
)
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination, combination_of
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError, errors_of, faults_error
from skillmix.files import LARGE, located_fault, read_text
from skillmix.prompts.prompt_set import load_prompts
from skillmix.runs.run import imported_document, new_run
from skillmix.runs.verdicts import answer_of


class _Turn(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    role: Role
    content: str


class _Line(BaseModel):
    """One line of the imported file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    skills: list[str]
    topic: str
    student: str
    text: str | None = None
    messages: list[_Turn] | None = None
    gradings: dict[str, list[str]] = {}

    @model_validator(mode="after")
    def _one_form(self) -> "_Line":
        if (self.text is None) == (self.messages is None):
            raise ValueError("give either text or messages")
        roles = [turn.role for turn in self.messages or []]
        turns = roles[1:] if roles[:1] == ["system"] else roles
        if self.messages is not None and (not turns or turns != ["user", "assistant"] * (len(turns) // 2)):
            raise ValueError("messages must alternate between user and assistant and end with assistant")
        return self


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import: the run, counts of the imported records, and notes for the user."""

    run: Path
    conversations: int
    gradings: int
    new: int  # calls that the run did not contain before
    unfinished: int = 0  # samples that were not imported, because they are unfinished or were marked invalid
    notes: tuple[str, ...] = ()


def import_texts(file: Path, run_name: str, *, catalog: str, prompts: str = "standard") -> Imported:
    """Store the conversation and gradings of each line; lines that the run already contains change nothing."""
    run = new_run(run_name)
    source = load_catalog(catalog)
    lines = _validated_lines(file, source)
    document = imported_document(run, stage="import-texts", catalog=source, prompts=load_prompts(prompts))
    run.require_same_import(document)
    seen: Counter[tuple[str, str]] = Counter()
    gradings = new = 0
    with run.write() as journal, journal.transaction():
        journal.add_combinations(combination for _, combination in lines)
        for line, combination in lines:
            generation = seen[line.student, combination.id]
            seen[line.student, combination.id] += 1
            outcomes, origin = _conversation(line, combination, generation)
            new += journal.record_all(outcomes, origin=origin)
            text = answer_of(outcomes[-1][1].text, origin, turn=1).text
            place = (line.student, combination.id, generation, text_id(text))
            for grader, replies in line.gradings.items():
                keys = [GradeKey(*place, grader, number, attempt=0) for number in range(len(replies))]
                graded = [(imported_request(key), Reply(reply)) for key, reply in zip(keys, replies, strict=True)]
                gradings += len(graded)
                new += journal.record_all(graded, origin="imported")
        run.begin_import(document)
        run.note_invocation({"command": "import-texts", "file": file.name})
    return Imported(run=run.path, conversations=len(lines), gradings=gradings, new=new)


def _validated_lines(file: Path, catalog: Catalog) -> list[tuple[_Line, Combination]]:
    lines: list[tuple[_Line, Combination]] = []
    faults: list[str] = []
    # Do not use splitlines, because JSON strings may contain line separators other than the line feed.
    for number, raw in enumerate(read_text(file, most=LARGE).split("\n"), start=1):
        if not raw.strip():
            continue
        try:
            lines.append(_line(raw, catalog))
        except ValidationError as error:
            faults.append(f"line {number}: {'; '.join(located_fault(fault, _Line) for fault in error.errors())}")
        except UserError as error:
            faults.append(f"line {number}: {error.message} {error.hint or ''}".rstrip())
    if not faults and not lines:
        faults.append("the file is empty")
    if faults:
        hint = (
            'Nothing was imported. Write lines of the form {"skills": […], "topic": …, "student": …, "text" or '
            '"messages": …}, perhaps with "gradings": {grader: [reply, …]}.'
        )
        raise faults_error(str(file), faults, hint=hint)
    return lines


def _line(raw: str, catalog: Catalog) -> tuple[_Line, Combination]:
    try:
        document = json.loads(raw, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not valid JSON ({error})") from None
    line = _Line.model_validate(document)
    for name, what in ((line.student, "student"), *((grader, "grader") for grader in line.gradings)):
        checked_name(name, what)
    errors = errors_of([lambda: catalog.require_skills(line.skills), lambda: catalog.topic(line.topic)])
    if errors:
        raise UserError("; ".join(fault for error in errors for fault in error.faults))
    skills = [skill.name for skill in catalog.require_skills(line.skills)]
    return line, combination_of(skills, catalog.topic(line.topic))


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document: dict[str, object] = {}
    for key, value in pairs:
        if key in document:
            raise ValueError(f"the key {key!r} is given twice")
        document[key] = value
    return document


def _conversation(line: _Line, combination: Combination, generation: int) -> tuple[list[tuple[Request, Reply]], Origin]:
    if line.text is not None:
        key = GenerateKey(line.student, combination.id, generation, turn=1)
        return [(imported_request(key), Reply(line.text))], "imported-text"
    messages = [Message(turn.role, turn.content) for turn in line.messages or []]
    outcomes: list[tuple[Request, Reply]] = []
    for index, message in enumerate(messages):
        if message.role == "assistant":
            key = GenerateKey(line.student, combination.id, generation, turn=len(outcomes) + 1)
            outcomes.append((imported_request(key, tuple(messages[:index])), Reply(message.content)))
    return outcomes, "imported"
