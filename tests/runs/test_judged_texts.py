"""Texts judged in worker processes: the same results in the same order, and one pool for a whole command."""

from pathlib import Path
from typing import cast

import pytest

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import combination_of
from skillmix.catalog.files import load_catalog
from skillmix.grading.answers import Answer
from skillmix.grading.ballots import StudentText
from skillmix.runs.judging import judged_texts, verdict_workers, worker_pool
from skillmix.runs.judging.judged_texts import JudgedText, judged_conversations, judged_with_words
from skillmix.runs.judging.verdict_workers import VerdictWorkers
from skillmix.runs.judging.worker_pool import shared_pool, shared_workers
from skillmix.runs.reading.gradings import GradedConversation
from skillmix.runs.rules_grader import RulesGrader, reading_of
from skillmix.runs.run import Run


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog("verifiable")


@pytest.fixture
def run(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(worker_pool, "is_there_a_second_core", lambda: True)
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


def test_workers_judge_the_same_in_the_same_order(run: Run, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    code, source = RulesGrader(catalog), texts(catalog, 150)
    here = list(judged_conversations(run, source, code))
    monkeypatch.setattr(judged_texts, "WORTH_IT", 10)
    with shared_workers():
        there = list(judged_conversations(run, source, code))
        pool = shared_pool(catalog)
        assert pool is not None and pool.is_started

    assert there == here
    assert [conversation for conversation, _ in here] == source


def test_a_judged_text_earns_the_points_of_the_verdict(run: Run, catalog: Catalog) -> None:
    code = RulesGrader(catalog)
    for (text, _, _), judged in judged_conversations(run, texts(catalog, 112), code):
        skills = text.combination.skills
        verdict = code.verdict(text.answer.text, skills=skills, topic=text.combination.topic)
        with_words = judged_with_words(code, text)
        assert reading_of(cast(JudgedText, judged), skills) == reading_of(with_words, skills)
        assert reading_of(with_words, skills) == reading_of(verdict, skills)
        assert with_words.is_woven(skills) == verdict.is_woven(skills)
        assert (with_words.reasons, with_words.unrequested) == (verdict.reasons, verdict.unrequested)
        assert with_words.words == tuple(verdict.quote(verdict.evidence.get(skill)) for skill in skills)


def test_all_parts_of_a_command_share_one_pool(run: Run, catalog: Catalog) -> None:
    assert shared_pool(catalog) is None
    with shared_workers():
        first = VerdictWorkers(catalog)
        with shared_workers():
            pool = shared_pool(load_catalog("verifiable"))
        assert pool is not None
        assert pool.submit(len, "abc") is not None
        first.close()
        assert pool.is_started
        assert VerdictWorkers(catalog)._pool is first._pool is pool
    assert not pool.is_started
    assert shared_pool(catalog) is None


def test_few_texts_start_no_worker(run: Run, catalog: Catalog) -> None:
    with shared_workers():
        list(judged_conversations(run, texts(catalog, 20), RulesGrader(catalog)))
        pool = shared_pool(catalog)
        assert pool is not None and not pool.is_started
    assert verdict_workers.WORTH_IT >= 500
