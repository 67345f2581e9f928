"""The teacher by code: its texts have full marks for every combination, and depend on the seed alone."""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import pytest

from skillmix.calls import CallProblem, Decoding, GenerateKey, Message, Outcome, Reply, Request, Subject
from skillmix.catalog.combinations import Combination, Draw, draw_combinations
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.grading.answers import RULES, extract_answer
from skillmix.grading.points import decide_points
from skillmix.models.composer import Composer
from skillmix.models.specs import check_spec, open_model, parse_spec
from skillmix.prompts.rubric import rubric_of, sentence_limit
from skillmix.runs.verdicts import RulesGrader, reading_of

FIGURES = load_catalog("figures")
COMPOSER = Composer(FIGURES)


def drawn(k: int, count: int, seed: int = 7) -> list[Combination]:
    return draw_combinations(Draw(FIGURES.pool("all"), "all", k, seed), count)


def text_for(combination: Combination, seed: int) -> str:
    text = COMPOSER.write(combination.skills, combination.topic, seed)
    assert text is not None
    return text


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_texts_have_full_marks(k: int) -> None:
    grader = RulesGrader(FIGURES)
    for seed, combination in enumerate(drawn(k, 1000)):
        text = text_for(combination, seed)
        reading = reading_of(
            grader.verdict(text, skills=combination.skills, topic=combination.topic), combination.skills
        )
        rubric = rubric_of(combination.skills, combination.topic)
        points = decide_points(rubric, extract_answer(f"Answer: {text}"), [reading], rounds=1, rules=RULES["default"])
        assert all(points), (combination, text, points)


def test_texts_are_plain_english_prose_of_few_words() -> None:
    words: set[str] = set()
    lengths = {1: 0, 2: 0, 3: 0}
    for k in lengths:
        for seed, combination in enumerate(drawn(k, 1000)):
            text = text_for(combination, seed)
            tokens = re.findall(r"[\w'-]+|[^\w\s]", text)
            words.update(tokens)
            lengths[k] += len(tokens)
            assert re.fullmatch(r"[A-Za-z' ,.;:?\"]+", text), text
            assert text[0].isupper() or (text[0] == '"' and text[1].isupper())
            assert text.endswith((".", "?", '."'))
            assert not re.search(r"  | [,.;?]|[,;][,.;?]|\{|\ba [aeiou]|\ban [^aeiou]", text), text
    assert 300 < len(words) < 700
    assert [round(length / 1000) for length in lengths.values()] == pytest.approx([11, 18, 26], abs=3)


def test_a_seed_gives_one_text_and_seeds_give_many() -> None:
    for combination in drawn(3, 10):
        texts = [text_for(combination, seed) for seed in range(300)]
        assert len(set(texts)) > 180
        assert texts == [text_for(combination, seed) for seed in range(300)]


def test_texts_do_not_depend_on_the_hashes_of_a_process() -> None:
    code = (
        "from skillmix.catalog.files import load_catalog\nfrom skillmix.models.composer import Composer\n"
        "c = load_catalog('figures'); w = Composer(c)\n"
        "print([w.write([c.skills[i].name, c.skills[i + 60].name], c.topics[i % 24], i) for i in range(80)])"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_texts_are_written_and_judged_in_little_time() -> None:
    combinations = drawn(3, 500)
    grader = RulesGrader(FIGURES)
    started = time.process_time()
    texts = [text_for(combination, seed) for seed, combination in enumerate(combinations)]
    written = time.process_time()
    for combination, text in zip(combinations, texts, strict=True):
        grader.verdict(text, skills=combination.skills, topic=combination.topic)
    assert (written - started) / 500 < 0.001
    assert (time.process_time() - written) / 500 < 0.001


def answer(combination: Combination | None, prompt: str, seed: int | None = 3, spec: str = "composer:") -> Outcome:
    subject = Subject(combination) if combination else None
    request = Request(GenerateKey("t", "c", 0, 1), spec, (Message("user", prompt),), Decoding(), seed, subject)

    async def only() -> AsyncIterator[Request]:
        yield request

    async def outcome() -> Outcome:
        async for _, reply in open_model(parse_spec(spec)).serve(only()):
            return reply
        raise AssertionError

    return asyncio.run(outcome())


def test_a_reply_has_the_form_that_its_prompt_asks_for() -> None:
    combination = drawn(2, 1)[0]
    bare = answer(combination, "simile owl; topic Baking")
    assert isinstance(bare, Reply)
    assert bare.text == text_for(combination, 3)
    framed = answer(combination, "Write the text after the word 'Answer:'.")
    assert isinstance(framed, Reply)
    assert extract_answer(framed.text).text == bare.text
    assert extract_answer(framed.text).status == "fine"
    without = answer(combination, "simile owl", seed=None)
    assert isinstance(without, Reply)
    assert without.text == COMPOSER.write(combination.skills, combination.topic, "generate/t/c/0/1")


def test_what_the_grammar_does_not_have_is_an_error() -> None:
    for asked in (None, Combination("", ("metaphor",), "Baking"), Combination("", (FIGURES.skills[0].name,), "Snow")):
        problem = answer(asked, "…")
        assert isinstance(problem, CallProblem)
        assert problem.kind == "fatal"
    with pytest.raises(UserError, match=r"the catalog 'verifiable', which has no grammar\.yaml"):
        check_spec("composer:verifiable")
    with pytest.raises(UserError, match="There is no catalog 'figure'"):
        check_spec("composer:figure")


def test_each_sentence_counts() -> None:
    """At k = 5 a text uses three or four sentences, at k = 1 and 2 one."""
    for k in (1, 2, 5):
        counts = {
            text_for(c, seed).count(". ") + text_for(c, seed).count("? ") + 1 for seed, c in enumerate(drawn(k, 300))
        }
        assert max(counts) == sentence_limit(k)
