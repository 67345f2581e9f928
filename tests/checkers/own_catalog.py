"""A catalog folder with code of its own, for tests."""

from pathlib import Path

from skillmix.checkers import registry
from skillmix.checkers.registry import own_checkers
from skillmix.runs.verdicts import RulesGrader

SKILLS = """
- {name: color pair, category: colors, definition: "Two colors joined by and.", example: "Red and blue flags flew."}
- {name: number word, category: numbers, definition: "A number from one to five.", example: "Two gulls sat there."}
"""
PARTITIONS = """
default: half
partitions:
  half: {train: {categories: [colors]}, held-out: {categories: [numbers]}}
topics: {train: [Ships], held-out: [Gulls]}
"""
VOCABULARY = """
Ships: {alone: [ship, boat], together: [sail, mast, harbour, deck]}
Gulls: {alone: [gull], together: [wing, beak, shore]}
"""
CHECKERS = """
import re
from pathlib import Path

from skillmix.checkers import Passage, Span

COLOURS = re.compile(r"\\b(red|blue|green|white|black) and (red|blue|green|white|black)\\b")
NUMBERS = {"one", "two", "three", "four", "five"}
Path(__file__).with_name("was-run").touch()


def color_pair(passage: Passage) -> Span | None:
    found = COLOURS.search(passage.lower)
    return Span(found.start(), found.end()) if found else None


def number_word(passage: Passage) -> Span | None:
    return next((Span(word.start, word.end) for word in passage.words if word.lower in NUMBERS), None)


CHECKERS = {"color pair": color_pair, "number word": number_word}
LOOKS_FOR = {"color pair": "two colors joined by \\"and\\""}
"""


def write_catalog(folder: Path, *, code: str | None = CHECKERS) -> Path:
    """Write the catalog; its code leaves the file `was-run` beside itself when it is run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "skills.yaml").write_text(SKILLS, encoding="utf-8")
    (folder / "topics.yaml").write_text("[Ships, Gulls]\n", encoding="utf-8")
    (folder / "partitions.yaml").write_text(PARTITIONS, encoding="utf-8")
    (folder / "vocabulary.yaml").write_text(VOCABULARY, encoding="utf-8")
    if code is not None:
        (folder / "checkers.py").write_text(code, encoding="utf-8")
    return folder


def was_run(folder: Path) -> bool:
    """Whether the code of the catalog was run since this was last asked; from now on, it would be run again."""
    own_checkers.cache_clear()
    registry._with_own.cache_clear()
    mark = folder / "was-run"
    found = mark.exists()
    mark.unlink(missing_ok=True)
    return found


def earned_there(code: RulesGrader, text: str) -> list[bool | None]:
    """In a worker process: whether a text earns the point for the first skill."""
    verdict = code.verdict(text, skills=["color pair"], topic="Ships")
    return [verdict.earns("color pair")]
