"""Model output of any form is read in time linear in its length: a model in a loop writes one sign 30,000 times."""

import ast
import importlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

import skillmix
from skillmix.catalog.catalog import fold_name
from skillmix.catalog.files import load_catalog
from skillmix.checkers.judge import clauses_of
from skillmix.checkers.passage import passage_of
from skillmix.checkers.registry import CHECKERS
from skillmix.checkers.sense import sense_problem
from skillmix.checkers.topics import on_topic, topic_words
from skillmix.datasets.corpus import corpus_of, distinct_share
from skillmix.datasets.leakage import NameFinder
from skillmix.grading.answers import count_sentences, extract_answer, names_skill
from skillmix.grading.blocks import _quotable
from skillmix.grading.labels import label_words, text_words
from skillmix.grading.reader import read_grades
from skillmix.grading.tables import read_leading_value, read_value
from skillmix.prompts.rubric import label_forms, rubric_of
from tests.nasty_texts import Repeated, hostile_texts, superlinear, texts_against

PACKAGE = Path(skillmix.__file__).parent
LONG = bool(os.environ.get("SKILLMIX_LONG"))
MIXTURES = 5_000 if LONG else 120
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if re.search(r"^import re$", path.read_text("utf-8"), re.M))
BOUNDED: Final = {  # expressions that only see a few characters, and why
    "grading/answers:_MAY_BE_LAST",  # at most _LONGEST_ABBREVIATION before a full stop
}


def examples_over_and_over() -> Iterator[Repeated]:
    """Texts that show skills, as one endless sentence and as many."""
    for skill in load_catalog("verifiable").skills:
        yield Repeated(f"{skill.example} ")
        yield Repeated(f"{skill.example.rstrip('.!?')}, and ")


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


Use = tuple[str, "re.Pattern[str]", str]


def expressions() -> Iterator[Use]:
    """Every compiled expression of the package, with each way in which it is used."""
    sources = [path.read_text("utf-8") for path in MODULES]
    ways_of: dict[str, set[str]] = {}
    for name, way in re.findall(rf"\b(\w+)\.({_WAYS})\(", "\n".join(sources)):
        ways_of.setdefault(name, set()).add(way)
    for path, source in zip(MODULES, sources, strict=True):
        module = importlib.import_module(f"skillmix.{name_of(path).replace('/', '.')}")
        for name in re.findall(r"^(\w+)(?:: Final)? = re\.compile\(", source, re.MULTILINE):
            ways = ways_of.get(name, set())
            assert ways or name.isupper(), f"{path.name}: {name} is not used"
            for way in sorted(ways):
                yield f"{name_of(path)}:{name}.{way}", getattr(module, name), way


_WAYS: Final = "search|match|fullmatch|sub|split|finditer|findall"


def work_of(pattern: "re.Pattern[str]", way: str) -> Callable[[str], object]:
    if way == "sub":
        return lambda text: pattern.sub("", text)
    if way == "finditer":
        return lambda text: list(pattern.finditer(text))
    method: Callable[[str], object] = getattr(pattern, way)
    return method


@pytest.mark.parametrize(("name", "pattern", "way"), [pytest.param(*use, id=use[0]) for use in expressions()])
def test_an_expression_takes_time_linear_in_what_it_reads(name: str, pattern: "re.Pattern[str]", way: str) -> None:
    if name.partition(".")[0] in BOUNDED:
        return
    work = work_of(pattern, way)

    slow = (superlinear(work, text, length=4_000) for text in texts_against(pattern))

    assert next(filter(None, slow), None) is None


# Expressions made at run time, each around a name or a key that is escaped.
MADE_FROM_NAMES: Final = {
    ("grading/answers", "search"),
    ("models/servers/openai", "search"),
    ("models/servers/masking", "sub"),
    ("models/scripted", "search"),
}
# Used on our own words when the module is loaded, or on the label of a model.
NOT_FOR_OUTPUT: Final = {("checkers/sense", "findall"), ("calls", "sub")}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_expressions_are_constants_that_the_test_above_finds(path: Path) -> None:
    calls = {
        (name_of(path), node.func.attr)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "re" and re.fullmatch(_WAYS, node.func.attr)
    }

    assert calls <= MADE_FROM_NAMES | NOT_FOR_OUTPUT


TOPIC: Final = topic_words("Sewing", ["needle"], ["thread"])


def read_afresh(reply: str, text: str | None = None) -> object:
    """A reading that no cache of an earlier one shortens."""
    for cached in (fold_name, read_value, label_forms, _quotable, label_words, text_words):
        cached.cache_clear()
    return read_grades(rubric_of(["metaphor", f"red herring {len(reply)}"], "Sewing"), reply, text=text)


def check_skills(text: str) -> None:
    passage = passage_of(text)
    for checker in CHECKERS.values():
        checker(passage)


def check_sense(text: str) -> None:
    passage = passage_of(text)
    on_topic(passage, TOPIC)
    sense_problem(passage)


def cut_into_clauses(text: str) -> None:
    clauses_of(passage_of(text))


OUTPUT_READERS: Final[dict[str, Callable[[str], object]]] = {
    "extract the answer": extract_answer,
    "count sentences": count_sentences,
    "count sentences as the original does": lambda text: count_sentences(text, "original"),
    "find a skill's name": lambda text: (names_skill(text, "metaphor"), names_skill(text, "metaphor", "word")),
    "read a reply": read_afresh,
    "read a reply about a text": lambda text: read_afresh("metaphor: 1\n" + text, text),
    "read a reply about such a text": lambda text: read_afresh("| metaphor | 1 |\n| red herring | 1 |", text),
    "read a cell": lambda text: (read_value.__wrapped__(text), read_leading_value(text)),
    "split into words": lambda text: distinct_share(corpus_of([text]), 3),
    "find held-out names": NameFinder(["metaphor", "red herring", "the the the dog"]).names_in,
    "check skills": check_skills,
    "check sense and topic": check_sense,
    "cut into clauses": cut_into_clauses,
}
LENGTHS: Final = {"check skills": 1_000, "check sense and topic": 2_000, "cut into clauses": 2_000}
TEXTS: Final = [*hostile_texts(MIXTURES), *examples_over_and_over()]


@pytest.mark.parametrize("reader", OUTPUT_READERS)
def test_model_output_is_read_in_linear_time(reader: str) -> None:
    work = OUTPUT_READERS[reader]

    slow = (superlinear(work, text, length=LENGTHS.get(reader, 6_000)) for text in TEXTS)

    assert next(filter(None, slow), None) is None


@pytest.mark.parametrize("sign", ["_", "#", "*", " ", "\n", "."])
def test_an_answer_of_40_000_equal_signs_is_extracted_at_once(sign: str) -> None:
    start = time.thread_time()

    extract_answer("Answer: " + sign * 40_000)

    assert time.thread_time() - start < 0.5
