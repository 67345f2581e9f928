import re
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import skillmix
from skillmix.catalog.catalog import Skill
from skillmix.catalog.files import load_catalog
from skillmix.checkers.passage import passage_of
from skillmix.checkers.sense import OTHER_CLASSES, PromptTexts, order_score, prompt_texts, sense_problem, word_order
from tests.nasty_texts import takes_longer

LABELLED = Path(__file__).parent / "labelled"
SENSIBLE: list[str] = [entry["text"] for entry in yaml.safe_load((LABELLED / "sensible.yaml").read_text("utf-8"))]
BAD: dict[str, list[str]] = defaultdict(list)
for entry in yaml.safe_load((LABELLED / "bad.yaml").read_text("utf-8")):
    BAD[entry["kind"]].append(entry["text"])
KINDS = sorted(BAD.keys() - {"fluent nonsense"})
HALVES = {"fit": 0, "test": 1}

SKILLS = load_catalog("verifiable").skills
PAPER_SKILLS = yaml.safe_load((Path(skillmix.__file__).parent / "data/paper/skills.yaml").read_text("utf-8"))
PROMPT_TEXTS = PromptTexts(
    {f"{part} {skill['name']}": skill[part] for skill in PAPER_SKILLS for part in ("definition", "example")}
)


def makes_sense(text: str) -> bool:
    return sense_problem(passage_of(text), PROMPT_TEXTS) is None


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
        ("", "it has 0 words where at least 4 are needed"),
        ("Bread.", "it has 1 word where at least 4 are needed"),
        ("It is warm.", "it has 3 words where at least 4 are needed"),
        ("Bread is good and " + "warm and " * 20 + "soft.", "a sentence has 45 words where 40 are allowed"),
        ("1. Bread is warm. 2. Bread is soft.", "it is a list, a table or code, not prose"),
        ("The bread was so warm that the", "it breaks off: its last sentence has no end mark"),
        ("Here we are. Sure, here is\none short text.", 'it talks about the task: "Sure, here"'),
        ("This sentence shows anaphora, as you can see.", 'it talks about the task: "This sentence shows"'),
        (
            "I said no, no, no, no, no to the bread.",
            'the word "no" occurs 5 times in a row where 4 are allowed',
        ),
        ("We baked the bread at home. We baked the bread at home.", "the same sentence occurs 2 times"),
        ("The bread is warm and soft. " * 3, "the same sentence occurs 3 times"),
        (
            "The bread is warm and the bread is warm and the bread is warm.",
            "it runs in circles: too many of its phrases are repeated",
        ),
        ("The smell of bread, the warmth of the oven, the end of winter.", "most of it has no finite verb"),
        ("The of bread is a warm to and the.", "its words are in no usual order"),
    ],
)
def test_the_reason_is_given(text: str, reason: str) -> None:
    assert sense_problem(passage_of(text)) == reason


def test_a_reason_quotes_only_the_beginning_of_a_long_word() -> None:
    problem = sense_problem(passage_of(f"I said {'o' * 5000} {'o' * 5000} " * 1 + f"{'o' * 5000} " * 4 + "to it."))

    assert problem == f'the word "{"o" * 59}…" occurs 6 times in a row where 4 are allowed'


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
    shown = PromptTexts({"the example": "The baker sleeps by day, for the bread is baked at night."})

    copy = sense_problem(passage_of("My uncle sleeps by day for the bread is baked badly."), shown)
    own = sense_problem(passage_of("My uncle sleeps by day, for the bread is cheap then."), shown)

    assert copy == "8 words in a row are copied from the example"
    assert own is None


EXAMPLE = "Every Sunday my father fries fresh fish for the whole street before we all go down to the sea."


@pytest.mark.parametrize("count", [8, 9, 12])
def test_the_words_of_a_copy_are_counted(count: int) -> None:
    shown = PromptTexts({"the definition": "Nothing of it is here.", "the example": EXAMPLE})
    text = f"I know that {' '.join(EXAMPLE.split()[:count]).lower()} when he is glad."

    assert sense_problem(passage_of(text), shown) == f"{count} words in a row are copied from the example"


def test_seven_words_of_an_example_are_no_copy() -> None:
    shown = PromptTexts({"the example": EXAMPLE})
    text = f"I know that {' '.join(EXAMPLE.split()[:7]).lower()} when he is glad."

    assert sense_problem(passage_of(text), shown) is None


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.name)
def test_an_example_with_one_word_changed_is_a_copy(skill: Skill) -> None:
    shown = prompt_texts(SKILLS)
    words = skill.example.split()

    for index in range(len(words)):
        changed = passage_of(" ".join([*words[:index], "Zanzibar", *words[index + 1 :]]) + " And then we slept.")
        copy = shown.copied_by(changed)
        assert shown.example_in(changed) == f'the example of "{skill.name}"' or copy is not None, changed.text


def test_an_example_whose_words_are_all_there_in_another_text_is_no_copy() -> None:
    shown = PromptTexts(
        {"the example": "I promise that I will water your plants every evening."}, examples=["the example"]
    )

    copied = sense_problem(passage_of("I promise that I will water your cactus every evening."), shown)
    own = sense_problem(passage_of("I promise that I will water your fern, for its leaves drop if it is dry."), shown)

    assert copied == "it is the example with one word changed"
    assert own is None


def test_words_of_two_examples_are_not_one_copy() -> None:
    first, second = EXAMPLE.split()[:9], EXAMPLE.split()[9:]
    shown = PromptTexts({"the first": " ".join(first), "the second": " ".join(second)})

    problem = sense_problem(passage_of(EXAMPLE), shown)

    assert problem == f"{len(second)} words in a row are copied from the second"
    assert len(second) == 10


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
    sense_problem(passage_of(text), PROMPT_TEXTS)


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

    assert not takes_longer(lambda: sense_problem(passage, PROMPT_TEXTS), seconds=2)


def test_a_sentence_without_a_word_is_judged_like_any_other() -> None:
    assert sense_problem(passage_of("The baker sleeps by day. ___. The bread is baked at night.")) is None
