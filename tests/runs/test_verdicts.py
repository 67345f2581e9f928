"""Texts judged on several cores: the same results in the same order, whatever becomes of the workers."""

import os
from pathlib import Path

import pytest

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import combination_of
from skillmix.catalog.files import load_catalog
from skillmix.grading.answers import Answer
from skillmix.grading.points import StudentText
from skillmix.runs import verdicts
from skillmix.runs.run import Run
from skillmix.runs.texts import GradedConversation, judged_conversations
from skillmix.runs.verdicts import RulesGrader, cores, on_all_cores, reading_of


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog("verifiable")


@pytest.fixture
def run(catalog: Catalog, tmp_path: Path) -> Run:
    run = Run(tmp_path)
    run.catalog = catalog
    return run


def texts(catalog: Catalog, count: int) -> list[GradedConversation]:
    made = []
    for number in range(count):
        skills = [catalog.skills[n % len(catalog.skills)].name for n in (number, number + 3)]
        topic = catalog.topics[number % len(catalog.topics)]
        other = catalog.skills[7 * number % len(catalog.skills)]
        answer = Answer(f"{other.example} It was number {number} about {topic.lower()}.", "fine")
        made.append(GradedConversation(StudentText("s", combination_of(skills, topic), 0, answer), [], []))
    return made


def square_there(code: RulesGrader, number: int) -> tuple[int, int]:
    return number**2, os.getpid()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_judges_the_same_in_the_same_order(
    run: Run, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    code, source = RulesGrader(catalog), texts(catalog, 150)
    here = list(judged_conversations(run, source, code))
    monkeypatch.setattr(verdicts, "WORTH_IT", 10)

    there = list(judged_conversations(run, source, code, workers=workers))

    assert there == here
    assert [one._replace(judged=None) for one in here] == source


def test_workers_begin_only_after_many_texts(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    code = RulesGrader(catalog)
    few = list(on_all_cores(square_there, range(300), catalog, code, workers=2))
    assert {process for _, process in few} == {os.getpid()}
    monkeypatch.setattr(verdicts, "WORTH_IT", 100)

    many = list(on_all_cores(square_there, range(300), catalog, code, workers=2))

    assert [square for square, _ in many] == [number**2 for number in range(300)]
    assert {process for _, process in many[:100]} == {os.getpid()}
    assert os.getpid() not in {process for _, process in many[100:]}


def test_work_that_is_lost_with_a_worker_is_done_here(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "WORTH_IT", 0)
    monkeypatch.setattr(verdicts, "_BATCH", 1)
    items = [(os.getpid(), number) for number in range(20)]

    assert list(on_all_cores(ends_elsewhere, items, catalog, RulesGrader(catalog), workers=2)) == list(range(20))


def ends_elsewhere(code: RulesGrader, item: tuple[int, int]) -> int:
    first, number = item
    if os.getpid() != first:
        os._exit(3)
    return number


def test_an_error_in_a_worker_is_raised_here(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "WORTH_IT", 0)

    with pytest.raises(ZeroDivisionError):
        list(on_all_cores(inverse, [1, 0], catalog, RulesGrader(catalog), workers=2))


def inverse(code: RulesGrader, number: int) -> float:
    return 1 / number


def test_a_judged_text_earns_the_points_of_the_verdict(run: Run, catalog: Catalog) -> None:
    code, source = RulesGrader(catalog), texts(catalog, 112)
    plainly, with_words = (judged_conversations(run, source, code, with_words=is_with) for is_with in (False, True))
    for plain, found in zip((one.judged for one in plainly), with_words, strict=True):
        text, words = found.text, found.judged
        skills = text.combination.skills
        verdict = code.verdict(text.answer.text, skills=skills, topic=text.combination.topic)
        assert plain is not None and words is not None
        assert reading_of(plain, skills) == reading_of(words, skills) == reading_of(verdict, skills)
        assert words.is_woven(skills) == verdict.is_woven(skills)
        assert (words.reasons, words.unrequested) == (verdict.reasons, verdict.unrequested)
        assert words.words == tuple(verdict.quote(verdict.evidence.get(skill)) for skill in skills)


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "10000 100000\n"}, 1),
        ({"cpu.max": "9900000 100000\n"}, 8),
        ({"cpu.max": "?\n"}, 8),
    ],
)
def test_a_container_has_as_many_cores_as_its_limit_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], wanted: int
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(verdicts, "_CONTROL_GROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)

    assert cores() == wanted
