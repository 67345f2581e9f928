"""The prompt that asks which of several skills a passage of a corpus shows: a template with named slots."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skillmix.catalog.catalog import Skill
from skillmix.catalog.files import SHIPPED
from skillmix.catalog.yaml import read_text
from skillmix.errors import faults_error
from skillmix.hashing import short_id
from skillmix.prompts.prompt_set import fill, slots_of

SHIPPED_FILE: Final = SHIPPED / "prompts" / "frequency" / "passage.txt"
_DEFINITIONS: Final = {
    "definitions": "- {s.name}: {s.definition}\n  Example: {s.example}",
    "bare_definitions": "- {s.name}: {s.definition}",
}
"""The line of one skill, in each slot that gives definitions."""
_ALLOWED: Final = ("passage", "skills", "mark", *_DEFINITIONS)


@dataclass(frozen=True, slots=True)
class PassagePrompt:
    """A template with its slots checked."""

    template: str

    def content_hash(self) -> str:
        """A hash that changes whenever the wording changes."""
        return short_id("passage prompt", self.template)

    def text(self, skills: Sequence[Skill], passage: str) -> str:
        """The prompt about one passage; its mark depends on the passage, so that no passage can hold its own mark."""
        values = {
            "passage": passage,
            "mark": f"===== {short_id('mark', passage)} =====",
            "skills": "; ".join(skill.name for skill in skills),
        }
        for slot, layout in _DEFINITIONS.items():
            values[slot] = "\n".join(layout.format(s=skill) for skill in skills)
        return fill(self.template, values)


def load_passage_prompt(file: Path | None = None) -> PassagePrompt:
    """Load the shipped prompt, or the user's own; one error reports all its faults."""
    template = read_text(file or SHIPPED_FILE).strip()
    slots = slots_of(template)
    faults = [] if template else ["the file is empty"]
    faults += [f"missing slot: {slot}" for slot in ("passage", "skills") if slot not in slots]
    if not slots & _DEFINITIONS.keys():
        faults.append("missing slot: definitions")
    faults += [f"unknown slot: {slot}" for slot in sorted(slots - set(_ALLOWED))]
    if faults:
        raise faults_error(str(file), faults, hint=f"Slots: {', '.join(_ALLOWED)}.")
    return PassagePrompt(template)
