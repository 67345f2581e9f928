"""Whatever a grader writes, the reader neither crashes nor invents: 1,000,000 mutations in a long run."""

import os
import random
import re
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from skillmix.catalog.catalog import before_parenthesis, fold_name
from skillmix.grading.answers import count_sentences, extract_answer
from skillmix.grading.labels import criterion_words, shared_words
from skillmix.grading.reader import Reading, read_grades
from skillmix.prompts.rubric import Rubric, rubric_of
from tests.grading.test_reader import CASES, GOLDEN
from tests.nasty_texts import takes_longer

LONG = bool(os.environ.get("SKILLMIX_LONG"))
MUTATIONS = 1_000_000 if LONG else 20_000
SNIPPETS = (
    "| metaphor | 1 |",
    "Point earned: 1",
    "Point earned for red herring: 0",
    "|---|---|",
    "| Criteria | Points Earned |",
    "```",
    "Total: 5",
    "> ",
    "**",
    "1/1",
    "N/A",
    "½",
    "१",
    "\x00",
    "\u202e",
    "\n\n",
    "|",
    ":",
    "(",
    "-" * 50,
    "makes sense: 1",
    "fallacy of",
)


def mutated(reply: str, rng: random.Random) -> str:
    """A reply after a few edits of lines and characters."""
    for _ in range(rng.randint(1, 6)):
        lines = reply.split("\n")
        place = rng.randrange(len(lines))
        rng.choice(EDITS)(lines, place, rng)
        reply = "\n".join(lines) or " "
    return reply


Lines = list[str]


def drop_line(lines: Lines, place: int, rng: random.Random) -> None:
    del lines[place]


def repeat_line(lines: Lines, place: int, rng: random.Random) -> None:
    lines.insert(rng.randrange(len(lines) + 1), lines[place])


def shuffle(lines: Lines, place: int, rng: random.Random) -> None:
    lines[:] = rng.sample(lines, len(lines))


def add_snippet(lines: Lines, place: int, rng: random.Random) -> None:
    lines.insert(place, rng.choice(SNIPPETS))


def put_into_line(lines: Lines, place: int, rng: random.Random) -> None:
    cut = rng.randrange(len(lines[place]) + 1)
    lines[place] = lines[place][:cut] + rng.choice(SNIPPETS) + lines[place][cut:]


def cut_off(lines: Lines, place: int, rng: random.Random) -> None:
    del lines[place + 1 :]


def drop_character(lines: Lines, place: int, rng: random.Random) -> None:
    cut = rng.randrange(len(lines[place]) + 1)
    lines[place] = lines[place][:cut] + lines[place][cut + 1 :]


def other_digits(lines: Lines, place: int, rng: random.Random) -> None:
    lines[place] = re.sub(r"\d", lambda _: rng.choice("0123"), lines[place])


EDITS = (drop_line, repeat_line, shuffle, add_snippet, put_into_line, cut_off, drop_character, other_digits)

TOPIC_WORDS = ("topic", "relevan", "pertain", "relat", "context")
SENSE_WORDS = ("sense", "coheren")


def assert_sound(rubric: Rubric, reply: str, reading: Reading) -> None:
    """Points only for criteria whose names stand in the reply, and only from 0 to 1."""
    assert (reading.points is None) != (reading.problem is None)
    if reading.points is None:
        assert reading.problem
        return
    assert len(reading.points) == len(rubric.criteria)
    said = fold_name(reply)
    for criterion, point in zip(rubric.criteria, reading.points, strict=True):
        assert point is None or 0 <= point <= 1
        if any(note.endswith(f" was read as: {criterion.name}") for note in reading.notes):
            own = criterion_words(rubric, rubric.criteria.index(criterion))
            assert shared_words(said.split(), own)
        elif criterion.kind == "skill":
            assert point is not None
            assert fold_name(before_parenthesis(criterion.name)) in said
        elif criterion.kind == "topic":
            assert point is not None
            assert rubric.folded_topic in said or any(word in said for word in TOPIC_WORDS)
        elif criterion.kind == "sense":
            assert point is not None
            assert any(word in said for word in SENSE_WORDS)


def test_mutated_replies_are_read_soundly() -> None:
    rng = random.Random(7)
    assert GOLDEN.exists()
    readable = 0
    for number in range(MUTATIONS):
        case = CASES[number % len(CASES)]
        rubric = rubric_of(case["skills"], case["topic"])
        reply = mutated(case["reply"] or "", rng)

        reading = read_grades(rubric, reply, text=case.get("text"))

        assert_sound(rubric, reply, reading)
        readable += reading.points is not None
    assert MUTATIONS / 20 < readable < MUTATIONS


def test_a_mutation_that_drops_a_criterion_is_never_read() -> None:
    """Remove every line that mentions one criterion: no reading may survive."""
    for case in CASES:
        if case["points"] is None:
            continue
        rubric = rubric_of(case["skills"], case["topic"])
        for criterion in rubric.criteria[: rubric.k]:
            short = fold_name(before_parenthesis(criterion.name))
            if short not in fold_name(case["reply"]):
                continue  # the reply only hints at this criterion
            lines = [line for line in case["reply"].splitlines() if short not in fold_name(line)]

            reading = read_grades(rubric, "\n".join(lines), text=case.get("text"))

            assert reading.points is None, f"{case['id']} without {criterion.name}"


@settings(max_examples=20_000 if LONG else 500, deadline=None)
@given(st.text(alphabet=st.characters(), max_size=400), st.text(max_size=100))
def test_random_text_is_never_a_grade(reply: str, text: str) -> None:
    rubric = rubric_of(["metaphor", "accident (fallacy)"], "Sewing")

    assert read_grades(rubric, reply, text=text).points is None


@settings(max_examples=5_000 if LONG else 300, deadline=None)
@given(st.lists(st.sampled_from([*SNIPPETS, "metaphor", "Sewing", "0", "1", " ", "\n", "yes", "no"]), max_size=60))
def test_random_scraps_of_replies_are_read_soundly(scraps: list[str]) -> None:
    rubric = rubric_of(["metaphor"], "Sewing")
    reply = "".join(scraps)

    assert_sound(rubric, reply, read_grades(rubric, reply))


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40))
def test_any_names_make_a_rubric(skill: str, topic: str) -> None:
    rubric = rubric_of([skill], topic)

    reading = read_grades(rubric, f"| {skill} | 1 |\n| {topic} | 1 |\n| sense | 1 |")

    assert (reading.points is None) != (reading.problem is None)


def test_reading_time_is_linear_in_the_length_of_a_reply() -> None:
    """Hostile lines must not make a regular expression run away."""
    rubric = rubric_of(["metaphor"], "Sewing")
    hostile = (
        "| " * 2000,
        ": " * 4000,
        "Point earned for " * 2000,
        "(" * 8000,
        "- " * 8000,
        " " * 20000 + "1",
        "\t1" * 5000,
    )
    for line in hostile:
        read = partial(read_grades, rubric, "\n".join([line] * 5), text=line)
        assert not takes_longer(read, seconds=2), line[:40]


def test_counting_and_extracting_take_time_linear_in_the_text() -> None:
    for text in ("e.g. " * 16_000, "A. " * 16_000, "...! " * 16_000, "Answer: Explanation " * 8_000, "\n- " * 16_000):
        assert not takes_longer(partial(count_sentences, text), seconds=1), text[:20]
        assert not takes_longer(partial(extract_answer, text), seconds=1), text[:20]
