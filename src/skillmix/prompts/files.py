"""Read prompt sets from folders: those of the package, or the user's own."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from shutil import rmtree
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from skillmix.catalog.catalog import Skill
from skillmix.catalog.files import SHIPPED
from skillmix.errors import UserError, faults_error
from skillmix.files import fault_words, known_keys, read_shared_yaml, read_text, with_nearest
from skillmix.prompts.prompt_set import (
    KNOWN_FILES,
    LEAD_FILE,
    PLAIN_FILES,
    STUDENT_FILES,
    PromptSet,
    WorkedExample,
    is_known,
    prompt_set,
)
from skillmix.prompts.rubric import FormatName, OutcomePhrases, Phrases
from skillmix.render import did_you_mean, name_hint

_OneLine = Annotated[str, StringConstraints(pattern=r"^[^\n|]*\S[^\n|]*$")]


class _OutcomesEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    complies: _OneLine
    refuses: _OneLine
    evades: _OneLine


class _CriteriaFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    skill: _OneLine = Phrases().skill
    topic: _OneLine = Phrases().topic
    sense: _OneLine = Phrases().sense
    length: _OneLine = Phrases().length
    outcomes: _OutcomesEntry | None = None


def shipped_prompt_sets() -> list[str]:
    """Names of the prompt sets in the package."""
    return list(_shipped_names())


@cache
def _shipped_names() -> tuple[str, ...]:
    return tuple(sorted(path.parent.name for path in (SHIPPED / "prompts").glob("*/generate-1.txt")))


def prompt_folder(name: str) -> Path:
    """The folder of a shipped prompt set, or else the folder with this path."""
    return SHIPPED / "prompts" / name if name in shipped_prompt_sets() else Path(name)


def turns_with(name: str) -> int:
    """Turns of a conversation with a prompt set, by its files; two if its folder is gone."""
    first, second = (prompt_folder(name) / file for file in STUDENT_FILES)
    return 1 if first.is_file() and not second.is_file() else 2


def load_prompts(name: str, output_format: FormatName | None = None) -> PromptSet:
    """Load a shipped prompt set by name, or a folder by path; it asks for an output format if one is given."""
    if name in _shipped_names():
        return _shipped_set(name, output_format)
    folder = Path(name)
    if not folder.is_dir():
        raise UserError(
            f"There is no prompt set {name!r}.",
            hint=name_hint(
                name,
                shipped_prompt_sets(),
                otherwise=f"Shipped: {', '.join(shipped_prompt_sets())}. Or give a folder that has generate-1.txt.",
            ),
        )
    return _set_in(folder, folder.resolve().name, output_format)


@cache
def _shipped_set(name: str, output_format: FormatName | None) -> PromptSet:
    """A set of the package, read once: a run asks for it a dozen times, and its files change only with the code."""
    return _set_in(SHIPPED / "prompts" / name, name, output_format)


def _set_in(folder: Path, name: str, output_format: FormatName | None) -> PromptSet:
    files = sorted(file.name for file in folder.glob("*.txt"))
    unknown = [file for file in files if not is_known(file)]
    if unknown:
        questions = [did_you_mean(file, (*STUDENT_FILES, *PLAIN_FILES, LEAD_FILE)) for file in unknown]
        raise UserError(
            f"Prompt set {name!r} has files with unknown names: {', '.join(unknown)}.",
            hint=" ".join([*filter(None, questions), f"Known: {KNOWN_FILES}."]),
        )
    texts = {file: read_text(folder / file) for file in files if (folder / file).is_file()}
    return prompt_set(
        name,
        texts,
        phrases=replace(_phrases(folder / "criteria.yaml"), format=output_format),
        examples=_examples(folder / "examples.yaml"),
    )


class _ExampleSkill(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    definition: str
    example: str


class _ExampleEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    topic: str
    skills: Annotated[list[_ExampleSkill], Field(min_length=1)]
    answers: Annotated[list[str], Field(min_length=2, max_length=2)]


def _examples(path: Path) -> tuple[WorkedExample, ...]:
    if not path.is_file():
        return ()
    shape = list[_ExampleEntry]
    try:
        entries = TypeAdapter(shape).validate_python(read_shared_yaml(path))
    except ValidationError as error:
        faults = [
            f"{_location(fault['loc'])}: {fault_words(fault, keys=known_keys(shape, fault['loc']))}"
            for fault in error.errors()
        ]
        hint = "Each entry has a topic, skills with a name, a definition and an example each, and two answers."
        raise faults_error(str(path), faults, hint=hint) from None
    return tuple(
        WorkedExample(
            skills=tuple(Skill(s.name, "", s.definition, s.example) for s in entry.skills),
            topic=entry.topic,
            answers=(entry.answers[0], entry.answers[1]),
        )
        for entry in entries
    )


def _location(location: Sequence[int | str]) -> str:
    """The location of a fault in a file; entries count from 1."""
    return ".".join(str(part + 1) if isinstance(part, int) else part for part in location) or "the file"


def _phrases(path: Path) -> Phrases:
    if not path.is_file():
        return Phrases()
    try:
        entries = _CriteriaFile.model_validate(read_shared_yaml(path))
    except ValidationError as error:
        faults = []
        for fault in error.errors():
            key = _location(fault["loc"])
            if key == "outcomes":
                faults.append("outcomes must have a line each for complies, refuses and evades")
            elif fault["type"] == "extra_forbidden":
                known = known_keys(_CriteriaFile, fault["loc"])
                faults.append(with_nearest(f"{key} is not a known key", str(fault["loc"][-1]), known))
            else:
                faults.append(f"{key} must be one line of text without '|'")
        raise faults_error(str(path), faults, hint="Keys: skill, topic, sense, length, outcomes.") from None
    outcomes = OutcomePhrases(**entries.outcomes.model_dump()) if entries.outcomes else None
    return Phrases(entries.skill, entries.topic, entries.sense, entries.length, outcomes)


def copy_prompts(name: str, folder: Path) -> list[str]:
    """Copy the files of a prompt set to a folder that does not exist or is empty; return their names."""
    load_prompts(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not an empty folder.", hint="Name a new folder.")
    source = prompt_folder(name)
    names = sorted(file.name for file in source.iterdir() if file.suffix in (".txt", ".yaml"))
    was_there = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for file in names:
            (folder / file).write_bytes((source / file).read_bytes())
    except OSError:
        if not was_there:
            rmtree(folder, ignore_errors=True)
        raise
    return names
