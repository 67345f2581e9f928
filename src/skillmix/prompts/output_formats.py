"""Output formats that an experiment can ask for: what prompts say about them, and how long a text may be.

A limit is in the units of its format. Like the limit of k - 1 sentences, it leaves fewer units than skills where it
can, so that some unit must show two skills. `grading/formats/` checks texts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

FormatName = Literal["list", "dialogue", "poem"]


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """A format in the words of a prompt."""

    name: FormatName
    request: str
    """The sentence that ends both prompts of a student."""
    unit: str
    """What the limit counts, in the singular."""
    fewest: int
    """The least number of units that a text in the format has."""
    room: int
    """The least limit, so that a text of the format fits for every k."""

    def limit(self, k: int) -> int:
        """How many units a text with k skills may have.

        >>> OUTPUT_FORMATS["list"].limit(1), OUTPUT_FORMATS["list"].limit(5)
        (2, 4)
        """
        return max(self.room, k - 1)


OUTPUT_FORMATS: Final[Mapping[FormatName, OutputFormat]] = {
    form.name: form
    for form in (
        OutputFormat(
            name="list",
            request="Write the text as a list: every item on a line of its own that begins with a dash, and one "
            "sentence at the most in each item.",
            unit="item",
            fewest=2,
            room=2,
        ),
        OutputFormat(
            name="dialogue",
            request="Write the text as a dialogue of two or more speakers: every turn on a line of its own that begins "
            "with the name of the speaker and a colon, and one sentence at the most in each turn.",
            unit="turn",
            fewest=2,
            room=2,
        ),
        OutputFormat(
            name="poem",
            request="Write the text as a poem of three or more short lines.",
            unit="line",
            fewest=3,
            room=4,
        ),
    )
}
"""Every output format by name. A new one is a row here and a check in `grading/formats/format_checks.py`."""
