"""A hash of everything that scores and reports are read from; large files count by their size and time."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import skillmix
from skillmix.errors import UserError
from skillmix.hashing import short_id
from skillmix.models.lineage_files import LINEAGE_FILE
from skillmix.prompts.prompt_set import load_prompts
from skillmix.runs.conversations import model_name
from skillmix.runs.decisions import code_version
from skillmix.runs.finished.step_records import FileState, file_state, journal_state
from skillmix.runs.people import is_rater_file
from skillmix.runs.run import Run
from skillmix.runs.students import with_trained


def reading_state(run: Run, *, with_people: bool = True) -> str | None:
    """The state of a run; None if it is imported, or if a file that belongs to it cannot be read.

    The same state means the same scores and the same report. Another state may mean so too, after a copy for instance.
    Without people, the answers of people do not count.
    """
    try:
        return None if run.is_imported else short_id("state", *_parts(run, with_people=with_people))
    except UserError:
        return None


def _parts(run: Run, *, with_people: bool) -> Iterable[Any]:
    experiment = with_trained(run.known_experiment, run)
    catalog = run.catalog
    prompts = {experiment.prompts, *(s.prompts for s in experiment.students.values() if s.prompts)}
    yield run.document
    yield [e.model_dump(mode="json") for e in run.earlier]
    yield {step: sorted(ids) for step, ids in run.around.by_step.items()}
    yield [file for file in journal_state(run.journal) if with_people or not is_rater_file(str(file[0]))]
    yield catalog.content_hash()
    yield {topic: list(map(list, words)) for topic, words in catalog.vocabulary.items()}
    yield {name: load_prompts(name).content_hash() for name in sorted(prompts)}
    yield code_version()
    if catalog.code is not None:
        yield catalog.code.hash
    yield run.finished.seconds(run.experiment.steps)
    yield _package_state()
    yield {name: model_name(settings.asked) for name, settings in experiment.students.items()}
    for settings in experiment.students.values():
        declared = [Path(path) for path in (settings.lineage, *settings.trained_on) if path is not None]
        yield file_state([*declared, *(path / LINEAGE_FILE for path in declared)])
    for step in run.known_experiment.steps:
        if not step.reads_whole_run:
            yield file_state(run.step(step.name).rglob("*"))


@cache
def _package_state() -> FileState:
    """The state of the package's own files, so that a changed table or page shows."""
    files = Path(skillmix.__file__).parent.rglob("*.*")
    return file_state(file for file in files if file.suffix != ".pyc")
