"""What the steps of an experiment depend on: names in words, each with a setting or a hash.

A dependency is whatever could change what a step makes. Settings of speed and access, such as `concurrency`, `timeout`
and `budget`, are none; neither are later steps.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import file_digest
from pathlib import Path
from typing import Any, Final

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.files import own_or_shipped
from skillmix.catalog.own_code import CODE_FILE
from skillmix.experiment.experiment import Experiment, GraderSettings, StudentSettings
from skillmix.experiment.step_base import Step
from skillmix.hashing import short_id
from skillmix.prompts.files import load_prompts
from skillmix.runs.conversations import model_name
from skillmix.runs.reading.decisions import code_version
from skillmix.runs.run import Run
from skillmix.runs.students import lineage_of_student

_SPEED_AND_ACCESS: Final = {"concurrency", "timeout", "key", "insecure", "batch"}
_SHOWN_OTHERWISE: Final = {"model", "prompts", "rounds", "tuned_from", "trained_on", "lineage"}
"""Settings of models for which a dependency has more than the setting itself."""

Dependencies = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Everything that dependencies are read from."""

    experiment: Experiment
    """With a student for every train step that has made its checkpoint."""
    catalog: Catalog
    run: Run
    _models: dict[str, str] = field(default_factory=dict)

    def model(self, spec: str) -> str:
        """The name of a model in requests; the lineage in it is read once."""
        if spec not in self._models:
            self._models[spec] = model_name(spec)
        return self._models[spec]

    def prompts(self, name: str | None) -> list[str]:
        """A prompt set, by default that of the experiment, and its hash."""
        chosen = name or self.experiment.prompts
        return [chosen, load_prompts(chosen).content_hash()]


def of_settings(step: Step, *, without: Iterable[str] = ()) -> Dependencies:
    """The settings of a step."""
    settings = step.model_dump(mode="json", exclude={"name", "stage", *without})
    return {f"its {name}": value for name, value in settings.items()}


def of_draws(inputs: StepInputs) -> Dependencies:
    """What decides every draw, and the code that decides about texts."""
    experiment, catalog = inputs.experiment, inputs.catalog
    return {
        "the seed": experiment.seed,
        "the catalogue": catalog.content_hash(),
        **{f"the catalogue {name}": member.content_hash() for name, member in catalog.members.items() if name},
        "the words of the topics": short_id({t: list(map(list, w)) for t, w in catalog.vocabulary.items()}),
        "the partition": experiment.partition,
        "the exclude list": experiment.exclude,
        "the code that reads replies and checks texts": code_version(),
        **({f"the {CODE_FILE} of the catalogue": catalog.code.hash} if catalog.code else {}),
    }


def of_calls(students: Iterable[str], graders: Iterable[str], inputs: StepInputs) -> Dependencies:
    """Everything that decides the calls of students and graders, apart from the draws, and what their replies earn."""
    experiment = inputs.experiment
    found: Dependencies = {
        "the prompt set": inputs.prompts(None),
        "the rules": experiment.rules,
        "the treatment of missing markers": experiment.answer.missing_marker,
    }
    for name in dict.fromkeys(students):
        if name in experiment.students:
            found |= _of_student(name, experiment.students[name], inputs)
    for name in dict.fromkeys(graders):
        found |= _of_grader(name, experiment.graders[name], inputs)
    return found


def _of_student(name: str, settings: StudentSettings, inputs: StepInputs) -> Dependencies:
    found = {f"the {key} of the student {name}": value for key, value in _settings(settings).items()}
    found[f"the model of the student {name}"] = inputs.model(settings.asked)
    found[f"the prompts of the student {name}"] = inputs.prompts(settings.prompts)
    if settings.declares_lineage:
        lineage = lineage_of_student(inputs.experiment, name)
        found[f"the lineage of the student {name}"] = lineage.identity if lineage else None
    return found


def _of_grader(name: str, settings: GraderSettings, inputs: StepInputs) -> Dependencies:
    found = {f"the {key} of the grader {name}": value for key, value in _settings(settings).items()}
    found[f"the model of the grader {name}"] = inputs.model(settings.asked) if settings.asked else settings.model
    found[f"the prompts of the grader {name}"] = settings.prompts
    found[f"the rounds of the grader {name}"] = settings.votes
    return found


def _settings(settings: StudentSettings | GraderSettings) -> Mapping[str, Any]:
    return settings.model_dump(mode="json", exclude=_SPEED_AND_ACCESS | _SHOWN_OTHERWISE)


def of_files(name: str, files: Iterable[str]) -> Dependencies:
    """The content of files that the experiment names."""
    return {f"{name} {file}": _hash_of(own_or_shipped(file)) for file in files}


def _hash_of(file: Path) -> str | None:
    try:
        with file.open("rb") as content:
            return file_digest(content, "blake2b").hexdigest()
    except OSError:
        return None
