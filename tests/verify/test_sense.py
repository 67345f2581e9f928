import re
import time
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import skillmix
from skillmix.verify.passage import passage_of
from skillmix.verify.sense import runs_of, sense_problem
from skillmix.verify.word_order import OTHER_CLASSES, order_score, word_order

LABELLED = Path(__file__).parent / "labelled"
SENSIBLE: list[str] = [entry["text"] for entry in yaml.safe_load((LABELLED / "sensible.yaml").read_text("utf-8"))]
BAD: dict[str, list[str]] = defaultdict(list)
for entry in yaml.safe_load((LABELLED / "bad.yaml").read_text("utf-8")):
    BAD[entry["kind"]].append(entry["text"])
KINDS = sorted(BAD.keys() - {"fluent nonsense"})
HALVES = {"fit": 0, "test": 1}

PAPER_SKILLS = yaml.safe_load((Path(skillmix.__file__).parent / "catalogs/paper/skills.yaml").read_text("utf-8"))
PROMPT_RUNS = runs_of(text for skill in PAPER_SKILLS for text in (skill["definition"], skill["example"]))


def makes_sense(text: str) -> bool:
    return sense_problem(passage_of(text), PROMPT_RUNS) is None


def test_the_labelled_set_is_large_enough() -> None:
    assert len(SENSIBLE) >= 200
    assert sum(len(BAD[kind]) for kind in KINDS) >= 200
    assert min(len(BAD[kind]) for kind in KINDS) >= 25


@pytest.mark.parametrize("half", HALVES)
def test_sensible_texts_pass(half: str) -> None:
    texts = SENSIBLE[HALVES[half] :: 2]

    failing = [text for text in texts if not makes_sense(text)]

    assert len(failing) <= 0.05 * len(texts), failing


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("kind", KINDS)
def test_texts_without_sense_fail(kind: str, half: str) -> None:
    texts = BAD[kind][HALVES[half] :: 2]

    passing = [text for text in texts if makes_sense(text)]

    assert len(passing) <= 0.1 * len(texts), passing


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "fewer than 4 words"),
        ("Bread is good and " + "warm and " * 20 + "soft.", "more than 40 words"),
        ("1. Bread is warm. 2. Bread is soft.", "a list"),
        ("The bread was so warm that the", "no end mark"),
        ("This sentence shows anaphora, as you can see.", "the task"),
        ("I said no, no, no, no, no to the bread.", "four times running"),
        ("We baked the bread at home. We baked the bread at home.", "a sentence is repeated"),
        ("The bread is warm and the bread is warm and the bread is warm.", "in circles"),
        ("The smell of bread, the warmth of the oven, the end of winter.", "no finite verb"),
        ("The of bread is a warm to and the.", "no usual order"),
    ],
)
def test_the_reason_is_given(text: str, reason: str) -> None:
    assert reason in (sense_problem(passage_of(text)) or "")


@pytest.mark.parametrize(
    "text",
    [
        "Never, never, never, never again will I bake for thirty people.",
        "I would tell you what the baker did next, but --",
        "“Is it fresh?” she asked. “It was,” he said.",
        "If there is no flour, there is no bread; there is no flour; so there is no bread.",
        "We kneaded and we waited and we baked and we burned it.",
        "Warning: the oven is hot, and so is the baker's temper.",
        "Thank you for the bread.",
    ],
)
def test_figures_are_no_faults(text: str) -> None:
    assert sense_problem(passage_of(text)) is None


def test_a_copy_has_eight_words_of_the_prompt_in_a_row() -> None:
    runs = runs_of(["The baker sleeps by day, for the bread is baked at night."])

    copy = sense_problem(passage_of("My uncle sleeps by day for the bread is baked badly."), runs)
    own = sense_problem(passage_of("My uncle sleeps by day, for the bread is cheap then."), runs)

    assert copy == "it copies 8 words in a row from the prompt"
    assert own is None


def test_the_order_of_words_counts_and_repetition_does_not_make_it_worse() -> None:
    usual = passage_of("The old man went to the market in the morning.").sentences[0]
    reversed_order = passage_of("Morning the in market the to went man old the.").sentences[0]

    assert order_score(usual) > 0.5
    assert order_score(reversed_order) < -0.3


def test_the_table_is_whole() -> None:
    classes, log_odds = word_order()

    assert set(OTHER_CLASSES) <= classes.keys()
    assert len(log_odds) == max(classes.values()) + 1
    assert {len(row) for row in log_odds} == {len(log_odds)}


@given(st.text())
@settings(max_examples=200)
def test_no_text_is_too_strange(text: str) -> None:
    sense_problem(passage_of(text), PROMPT_RUNS)


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 50_000 + "sure",
        "sure" + "." * 50_000,
        "write a " * 8_000,
        "write a " + "x" * 50_000,
        "1. " * 20_000,
        "(" * 50_000 + "skill",
        '."' * 30_000 + " answer",
        "the bread is. " * 4_000,
        "\U0001f35e" * 20_000,
    ],
    ids=lambda text: re.sub(r"\W+", " ", text[:12]).strip() or "marks",
)
def test_long_strange_texts_are_read_in_linear_time(text: str) -> None:
    passage = passage_of(text)
    start = time.process_time()

    sense_problem(passage, PROMPT_RUNS)

    assert time.process_time() - start < 2


def test_a_sentence_without_a_word_is_judged_like_any_other() -> None:
    assert sense_problem(passage_of("The baker sleeps by day. ___. The bread is baked at night.")) is None
