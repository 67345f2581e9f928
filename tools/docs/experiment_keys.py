"""Write the keys of an experiment file, at the end of docs/experiments.md, from the classes that check them.

The type and the default of a key come from pydantic. The meaning of a key comes from the docstring below its field or
from `description`.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Final

from skillmix.experiment.experiment import AnswerSettings, BudgetSettings, Experiment, GraderSettings, StudentSettings
from skillmix.experiment.recipes import DataFilters, LeakageSettings
from skillmix.experiment.step_base import Section, Step
from skillmix.experiment.steps import AnyStep, PerSkill
from skillmix.experiment.train_step import LoraSettings, ReplaySettings
from tools.docs.markdown import table

_PARTS: Final[Mapping[str, type[Section]]] = {
    "The file": Experiment,
    "A student": StudentSettings,
    "A grader": GraderSettings,
    "`budget`": BudgetSettings,
    "`answer`": AnswerSettings,
    "`leakage`": LeakageSettings,
    "`dataset`": DataFilters,
    "`per_skill` of a dataset step": PerSkill,
    "`lora` of a train step": LoraSettings,
    "`replay` of a train step": ReplaySettings,
}
"""Sections that are not steps, by heading."""

_ABOUT: Final = """\
Any other key is an error, and the error suggests the nearest key. "Required" means that there is
no default."""


def part() -> str:
    """Return a section for each part of the file and for each kind of step."""
    parts = ["## Every key", _ABOUT]
    for title, section in _PARTS.items():
        parts += [f"### {title}", in_a_sentence(section), table_of_keys(section)]
    parts += ["### Steps", "Each entry of `steps` has a `stage`, which decides its other keys."]
    for step in step_classes():
        parts += [f"#### `stage: {stage_of(step)}`", in_a_sentence(step), table_of_keys(step)]
    return "\n\n".join(parts) + "\n"


def step_classes() -> tuple[type[Step], ...]:
    """Return the kinds of step, in the order of `AnyStep`."""
    kinds: tuple[type[Step], ...] = AnyStep.__origin__.__args__  # type: ignore[attr-defined]
    return kinds


def stage_of(step: type[Step]) -> str:
    """Return the value of `stage` by which an experiment file selects the kind of step."""
    return str(step.model_json_schema()["properties"]["stage"]["const"])


def in_a_sentence(section: type[Section]) -> str:
    """Return the first paragraph of a section's docstring."""
    return " ".join((inspect.getdoc(section) or "").partition("\n\n")[0].split())


def table_of_keys(section: type[Section]) -> str:
    """Return a table of a section's keys with type, default and meaning."""
    schema = section.model_json_schema()
    needed = set(schema.get("required", ()))
    rows = [
        [f"`{key}`", kind(form, schema.get("$defs", {})), "required" if key in needed else default(form), meaning]
        for key, form, meaning in _keys(section, schema)
    ]
    return table(["key", "type", "default", "meaning"], rows)


def _keys(section: type[Section], schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    for key, form in schema["properties"].items():
        if key != "stage":
            yield key, form, meaning_of(section, key, form.get("description"))


def meaning_of(section: type[Section], key: str, described: str | None) -> str:
    """Return the description of a key or, if there is none, the first paragraph about the section in its value."""
    kind_of_value = section.model_fields[key].annotation
    if described is None and inspect.isclass(kind_of_value) and issubclass(kind_of_value, Section):
        described = in_a_sentence(kind_of_value)
    if described is None:
        raise ValueError(f"{section.__name__}.{key} has no docstring: write what the key means")
    return " ".join(described.split())


_SECTIONS: Final = {
    "AnswerSettings": "[`answer`](#answer)",
    "BudgetSettings": "[`budget`](#budget)",
    "DataFilters": "[`dataset`](#dataset)",
    "GraderSettings": "[a grader](#a-grader)",
    "LeakageSettings": "[`leakage`](#leakage)",
    "LoraSettings": "[`lora`](#lora-of-a-train-step)",
    "PerSkill": "[`per_skill`](#per_skill-of-a-dataset-step)",
    "ReplaySettings": "[`replay`](#replay-of-a-train-step)",
    "StudentSettings": "[a student](#a-student)",
}
_NO_LIMIT: Final = 10**9
"""Maximums of this size or larger only catch typing errors, so the table omits them."""
_PLAIN: Final = {"string": "string", "boolean": "`true` or `false`", "integer": "integer", "number": "number"}


def kind(form: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    """Describe in words the type of value that a JSON schema allows."""
    if "$ref" in form:
        name = form["$ref"].rpartition("/")[2]
        return _SECTIONS[name] if name in _SECTIONS else kind(sections[name], sections)
    if "anyOf" in form:
        return " or ".join(kind(one, sections) for one in form["anyOf"] if one.get("type") != "null")
    if "oneOf" in form:  # a value, or a mapping of such values
        value, *tables = (kind(one, sections) for one in form["oneOf"])
        return f"{value}, or a mapping of such values" if tables else value
    if "const" in form:
        return f"`{form['const']}`"
    if "enum" in form:
        return ", ".join(f"`{value}`" for value in form["enum"])
    if form.get("type") == "array":
        return (
            f"list of {_plural(kind(form['items'], sections))}" if "oneOf" not in form["items"] else "[steps](#steps)"
        )
    if form.get("type") == "object":
        values = form.get("additionalProperties") or next(iter(form.get("patternProperties", {}).values()), None)
        return f"mapping of {_plural(kind(values, sections))}" if isinstance(values, dict) and values else "mapping"
    return _with_limits(form)


def _plural(words: str) -> str:
    plurals = {word: f"{word}s" for word in ("string", "integer", "list", "mapping")}
    plurals |= {"[a student]": "[students]", "[a grader]": "[graders]"}
    for one, many in plurals.items():
        if words.startswith(one):
            return many + words.removeprefix(one)
    return words.replace("number", "numbers", 1)


def _with_limits(form: Mapping[str, Any]) -> str:
    if "type" not in form:
        return "any value"
    low, high = form.get("minimum"), form.get("maximum")
    above, below = form.get("exclusiveMinimum"), form.get("exclusiveMaximum")
    words = _PLAIN[form["type"]]
    if low is not None or above is not None:
        words += f" from {low}" if low is not None else f" above {above}"
    if high is not None and high < _NO_LIMIT:
        words += f" to {high}" if low is not None else f", at most {high}"
    return f"{words}, below {below}" if below is not None else words


def default(form: Mapping[str, Any]) -> str:
    """Return the default of a key as YAML writes it; a dash for none."""
    value = form.get("default")
    if value is None or value == [] or value == {} or "$ref" in form:
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
