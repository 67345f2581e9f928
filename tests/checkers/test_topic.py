import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import skillmix
from skillmix.checkers.passage import passage_of
from skillmix.checkers.topics import TopicWords, on_topic, topic_words

CATALOG = Path(skillmix.__file__).parent / "data"
LABELLED = Path(__file__).parent / "labelled"
NAMES: list[str] = yaml.safe_load((CATALOG / "verifiable/topics.yaml").read_text("utf-8"))
VOCABULARY: dict[str, dict[str, list[str]]] = yaml.safe_load(
    (CATALOG / "verifiable/vocabulary.yaml").read_text("utf-8")
)
WORDS: dict[str, TopicWords] = {
    name: topic_words(name, entry["alone"], entry["together"]) for name, entry in VOCABULARY.items()
}
TEXTS = yaml.safe_load((LABELLED / "topics.yaml").read_text("utf-8"))
SENSIBLE = [
    entry for entry in yaml.safe_load((LABELLED / "sensible.yaml").read_text("utf-8")) if entry["topic"] is not None
]


def fits(text: str, topic: str) -> bool:
    return on_topic(passage_of(text), WORDS[topic]) is not None


def plain(name: str) -> set[str]:
    return {word.removesuffix("s") for word in name.lower().replace("-", " ").split()}


def test_there_are_100_topics_of_our_own_with_20_to_70_words_each() -> None:
    paper = yaml.safe_load((CATALOG / "paper/topics.yaml").read_text("utf-8"))

    assert len(set(NAMES)) == len(NAMES) == 100
    assert list(VOCABULARY) == NAMES
    assert not {name.lower() for name in NAMES} & {name.lower() for name in paper}
    assert all(1 <= len(name.split()) <= 3 for name in NAMES)
    assert all(20 <= len(entry["alone"]) + len(entry["together"]) <= 70 for entry in VOCABULARY.values())


def test_no_word_of_a_name_is_on_both_sides() -> None:
    train = set().union(*map(plain, NAMES[:50]))
    held_out = set().union(*map(plain, NAMES[50:]))

    assert not train & held_out


@pytest.mark.parametrize("name", NAMES)
def test_a_topic_is_found_by_its_name_and_by_its_vocabulary(name: str) -> None:
    alone, together = VOCABULARY[name]["alone"], VOCABULARY[name]["together"]

    assert fits(f"We talked about {name} all evening.", name)
    assert all(fits(f"There was one more {word} than we had thought.", name) for word in alone)
    assert fits(f"We saw a {together[0]} and then a {together[-1]}.", name)
    assert not fits("The senator refused to say whether the law would be changed.", name)


@pytest.mark.parametrize("wanted", [True, False])
def test_labelled_texts(wanted: bool) -> None:
    texts = [entry for entry in TEXTS if entry["fits"] is wanted]

    wrong = [entry for entry in texts if fits(entry["text"], entry["topic"]) is not wanted]

    assert len(texts) >= 50
    assert len({entry["topic"] for entry in texts}) >= 50
    assert len(wrong) <= 0.05 * len(texts), wrong


def test_sensible_texts_are_on_their_topics_and_seldom_on_others() -> None:
    missed = [entry for entry in SENSIBLE if not fits(entry["text"], entry["topic"])]
    others = [
        (entry["text"], name)
        for entry in SENSIBLE
        for name in NAMES
        if name != entry["topic"] and fits(entry["text"], name)
    ]

    assert len(missed) <= 0.05 * len(SENSIBLE), missed
    assert len(others) <= 0.01 * len(SENSIBLE) * len(NAMES)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The trains ran at midnight.", "trains ran at midnight"),
        ("A night-train carried us.", "night-train"),
        ("The locomotive's whistle woke us.", "locomotive's"),
        ("She trained all night.", "trained all night"),
        ("The night was long.", None),
        ("The constraint was clear, and the knight agreed.", None),
    ],
)
def test_which_words_decide(text: str, found: str | None) -> None:
    span = on_topic(passage_of(text), WORDS["Night trains"])

    assert (text[span.start : span.end] if span else None) == found


@pytest.mark.parametrize(
    ("root", "forms"),
    [
        ("bake", ["bakes", "baked", "baking", "baker"]),
        ("knit", ["knits", "knitted", "knitting", "knitter"]),
        ("berry", ["berries"]),
        ("loaf", ["loaves"]),
        ("knife", ["knives"]),
        ("postman", ["postmen"]),
        ("box", ["boxes", "boxed"]),
        ("bee", ["bees"]),
    ],
)
def test_inflections_count(root: str, forms: list[str]) -> None:
    words = topic_words("Anything", [root], [])

    assert all(on_topic(passage_of(f"One {form} here."), words) for form in forms)


def test_other_words_that_look_alike_do_not_count() -> None:
    words = topic_words("Anything", ["bee", "broth", "cow", "cat"], [])

    for other in ("being", "beer", "brother", "cower", "cater"):
        assert on_topic(passage_of(f"One {other} here."), words) is None


def test_the_name_itself_decides_before_the_words_that_it_may_be_a_form_of() -> None:
    """A set of base forms would give them in another order in each process, and another verdict."""
    words = topic_words("Spelling bees", ["spelling"], ["spell"])

    assert sorted(words.name) == ["bees", "spelling"]
    assert words.forms["spells"] == "spell"


def test_every_process_gives_a_topic_the_same_words() -> None:
    script = (
        "import json, sys; from skillmix.checkers.topics import topic_words; "
        "print([sorted(topic_words(n, v['alone'], v['together']).name) for n, v in json.load(sys.stdin).items()])"
    )
    names = {
        subprocess.run(
            [sys.executable, "-c", script],
            input=json.dumps(VOCABULARY),
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "3")
    }

    assert names == {f"{[sorted(words.name) for words in WORDS.values()]}\n"}


@pytest.mark.parametrize(
    ("text", "topic", "is_on"),
    [
        ("He was skiing, she was staring.", "Telescopes", False),
        ("The star is starring tonight, and we scanned the sky.", "Telescopes", True),
        ("They astronomered and planetted all night.", "Telescopes", False),
        ("Every plumber except Tom snores, and I promise I will never mention kites.", "Kites", False),
        ("Crosswords aside, although it rained, we still went to the beach.", "Crosswords", False),
        ("Nobody mentioned the kite until its string snapped.", "Kites", True),
    ],
)
def test_invented_forms_and_pasted_names_do_not_count(text: str, topic: str, is_on: bool) -> None:
    assert fits(text, topic) is is_on
