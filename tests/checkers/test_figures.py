"""The exact checks of catalog `figures`: every frame shows its own skill and no other, whatever else is in a text."""

import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import yaml

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Draw, draw_combinations, draw_ladder
from skillmix.catalog.files import load_catalog
from skillmix.catalog.grammar import filled
from skillmix.checkers.passage import passage_of
from skillmix.checkers.registry import checker_of, figure_finder
from skillmix.checkers.topics import OtherTopics, topic_words
from skillmix.errors import UserError
from skillmix.files import SHIPPED
from skillmix.grading.answers import RULES, Answer, names_skill
from skillmix.grading.points import decide_points, text_score
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.verdicts import RulesGrader, reading_of

FIGURES = load_catalog("figures")
GRADER = RulesGrader(FIGURES)
FIND = figure_finder(FIGURES.figures)
OWL = "simile with an owl"


def shown(text: str) -> set[str]:
    return set(FIND(passage_of(text)))


def graded(text: str, *skills: str, topic: str = "Baking") -> dict[str, float | None]:
    verdict = GRADER.verdict(text, skills=skills, topic=topic)
    rubric = rubric_of(skills, topic)
    points = decide_points(
        rubric, Answer(text, "fine"), [reading_of(verdict, skills)], rounds=1, rules=RULES["default"]
    )
    return {metric: text_score(points, metric) for metric in ("full_marks", "all_skills")}


def frames() -> list[tuple[str, str, str]]:
    """A skill, a text and a topic, for every frame of every figure: each word once, and each topic once."""
    assert FIGURES.grammar is not None
    plain = FIGURES.grammar.plain
    cases = []
    for skill in FIGURES.skills:
        own = FIGURES.grammar.figures[skill.figure or ""]
        whole = [*own.own, *(part + plain[0] for part in own.before), *(plain[0] + part for part in own.after)]
        for number, frame in enumerate(whole):
            for topic in Random(f"{skill.name}{number}").sample(FIGURES.topics, 3):
                slots = FIGURES.grammar.topics[topic].slots[number % 2]
                clause = plain[number % len(plain)].format_map(slots)
                text = filled(frame, skill.word or "").format_map({**slots, "Clause": clause})
                cases.append((skill.name, f"{text}.", topic))
    return cases


def test_every_frame_shows_its_own_skill_and_no_other_on_its_own_topic_and_no_other() -> None:
    cases = frames()
    others = OtherTopics({t: topic_words(t, *FIGURES.vocabulary[t]) for t in FIGURES.topics})
    assert len(cases) > 3000
    for skill, text, topic in cases:
        passage = passage_of(text)
        assert set(FIND(passage)) == {skill}, text
        assert others.word_in(passage, topic) is None, text
        assert GRADER.verdict(text, skills=(skill,), topic=topic).topic is not None, text


def test_plain_clauses_show_no_skill_and_their_topic_only() -> None:
    assert FIGURES.grammar is not None
    for topic, words in FIGURES.grammar.topics.items():
        for slots in words.slots:
            for frame in FIGURES.grammar.plain:
                verdict = GRADER.verdict(f"{frame.format_map(slots)}.", skills=(), topic=topic)
                assert not verdict.unrequested
                assert verdict.topic is not None


@pytest.mark.parametrize("skill", FIGURES.skills, ids=lambda skill: skill.name)
def test_an_example_shows_exactly_its_skill_and_no_topic(skill: object) -> None:
    assert shown(skill.example) == {skill.name}  # type: ignore[attr-defined]
    others = OtherTopics({t: topic_words(t, *FIGURES.vocabulary[t]) for t in FIGURES.topics})
    assert others.word_in(passage_of(skill.example), "") is None  # type: ignore[attr-defined]


def test_no_frame_names_its_skill() -> None:
    assert not [(skill, text) for skill, text, _ in frames() if names_skill(text, skill)]


def test_the_catalogue_has_proper_articles_and_enough_of_everything() -> None:
    assert (len(FIGURES.skills), len(FIGURES.figures), len(FIGURES.topics)) == (144, 18, 24)
    assert all(len(alone) >= 5 for alone, _ in FIGURES.vocabulary.values())
    assert FIGURES.skill(OWL).definition.startswith("Compare someone or something to an owl")
    assert not [s for s in FIGURES.skills if " a owl" in f" {s.name} {s.definition} {s.example}"]


def test_words_of_topics_are_disjoint() -> None:
    owners: dict[str, str] = {}
    for topic, (alone, _) in FIGURES.vocabulary.items():
        words = topic_words(topic, alone, ())
        for form in words.forms:
            assert owners.setdefault(form, topic) == topic, form


def test_full_marks_need_exactly_the_requested_skills_and_all_skills_does_not() -> None:
    text = "At three o'clock, the baker worked like an owl in the bakery."
    assert graded(text, OWL, "hour of three o'clock") == {"full_marks": 1.0, "all_skills": 1.0}
    assert graded(text, OWL) == {"full_marks": 0.0, "all_skills": 1.0}
    assert graded(text, OWL, "hour of four o'clock") == {"full_marks": 0.0, "all_skills": 0.0}
    verdict = GRADER.verdict(text, skills=(OWL,), topic="Baking")
    assert verdict.unrequested == ("hour of three o'clock",)
    assert verdict.reasons["sense"] == (
        "it shows a skill that was not requested: hour of three o'clock, \"three o'clock\""
    )


def test_a_word_of_another_topic_costs_the_point_for_the_topic() -> None:
    text = "The baker worked like an owl with a Needle."
    assert graded(text, OWL) == {"full_marks": 0.0, "all_skills": 1.0}
    verdict = GRADER.verdict(text, skills=(OWL,), topic="Baking")
    assert verdict.reasons == {"topic": '"Needle" is a word of another topic, Sewing'}
    assert "topic" in GRADER.verdict("He worked like an owl today.", skills=(OWL,), topic="Baking").reasons


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The baker is a fox, and the cake was as light as a mouse.", {"metaphor with a fox", "simile with a mouse"}),
        ("The baker was not an owl but a fox, as proud as owls.", {"antithesis with an owl"}),
        ("“The cake is late,” said Laura.", {"quotation of Laura"}),
        ("It is late, isn’t it, Laura?", {"tag question to Laura"}),
        ("It is late, isn't it, Laura.", set()),
        ("Three miles, ten miles and thirteen miles.", {"distance of three miles", "distance of ten miles"}),
        ("Three owls, four owls and three foxes.", set()),
        ("Three cakes, three pans, three bakers.", {"anaphora on three"}),
        ("I WISH WE WERE IN PARIS", {"wish for Paris"}),
        ("I wish you luck. They were in Paris.", set()),
        ("The threebythree six-by-six grid", set()),
        ("", set()),
    ],
)
def test_patterns(text: str, found: set[str]) -> None:
    assert shown(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "wish " * 20_000 + "Paris",
        "Paris " + "wish" + " " * 50_000 + "x" * 50_000,
        "owl " + "as as " * 20_000,
        "three" + ", three" * 20_000,
        'Laura ," ' + ', " ' * 20_000,
        "Paris if only " + "a\n" * 50_000,
    ],
)
def test_hostile_texts_take_no_long_time(text: str) -> None:
    passage = passage_of(text)
    started = time.process_time()
    FIND(passage)
    assert time.process_time() - started < 1


def test_the_registry_finds_figures_of_loaded_catalogues(tmp_path: Path) -> None:
    checker = checker_of(OWL)
    assert checker is not None
    text = "He slept like an owl."
    span = checker(passage_of(text))
    assert span is not None
    assert text[span.start : span.end] == "like an owl"
    assert checker_of("simile with a whale") is None


def copied(folder: Path, **changed: str) -> Path:
    folder.mkdir(exist_ok=True)
    for file in (SHIPPED / "figures").glob("*.yaml"):
        (folder / file.name).write_text(changed.get(file.stem, file.read_text("utf-8")), encoding="utf-8")
    return folder


def test_a_folder_may_have_other_words(tmp_path: Path) -> None:
    figures = (SHIPPED / "figures/figures.yaml").read_text("utf-8").replace("[owl,", "[eagle,")
    catalog = load_catalog(str(copied(tmp_path / "mine", figures=figures)))
    assert catalog.skill("simile with an eagle").word == "eagle"
    text = "The baker worked like an eagle."
    assert RulesGrader(catalog).verdict(text, skills=("simile with an eagle",), topic="Baking").reasons == {}
    assert catalog.content_hash() != FIGURES.content_hash()


def test_all_faults_of_the_files_are_reported_at_once(tmp_path: Path) -> None:
    figures = yaml.safe_load((SHIPPED / "figures/figures.yaml").read_text("utf-8"))
    figures["figures"]["simile"]["kind"] = "anima"
    figures["figures"]["tag"]["patterns"] = ["(a+)+"]
    figures["figures"]["wish"]["name"] = "a wish"
    grammar = (
        (SHIPPED / "figures/grammar.yaml").read_text("utf-8").replace("the {who} promised {word}", "{whom} {word}")
    )
    grammar = grammar.replace("\n  emphasis:", "\n  emfasis:")
    folder = copied(tmp_path / "mine", figures=yaml.safe_dump(figures), grammar=grammar)
    with pytest.raises(UserError) as caught:
        load_catalog(str(folder))
    assert "figures.yaml: figures, tag, patterns, entry 1: must be words, marks and slots" in caught.value.message
    figures["figures"]["tag"]["patterns"] = []
    with pytest.raises(UserError) as caught:
        load_catalog(str(copied(folder, figures=yaml.safe_dump(figures), grammar=grammar)))
    for fault in (
        "figures.yaml, simile: there are no words of kind 'anima'. Did you mean \"animal\"?",
        "figures.yaml, wish, name: {word} or {a word} is missing",
        "grammar.yaml: there is no figure 'emfasis'. Did you mean \"emphasis\"?",
        "grammar.yaml: the figure 'emphasis' is missing",
        "grammar.yaml, promise: '{whom} {word} {a thing}' has an unknown slot: whom",
    ):
        assert fault in caught.value.message


def figures_of(catalog: Catalog, skills: tuple[str, ...]) -> list[str | None]:
    return [catalog.skill(name).figure for name in skills]


@pytest.mark.parametrize("k", [2, 3, 5])
def test_no_draw_takes_a_figure_twice(k: int) -> None:
    side = FIGURES.pool("all")
    drawn = draw_combinations(Draw(side, "all", k, seed=1), 400)
    assert all(len(set(figures_of(FIGURES, c.skills))) == k for c in drawn)
    ladder = draw_ladder(Draw(side, "all", k, seed=1), 200)
    assert all(len(set(figures_of(FIGURES, c.skills))) == k for c in ladder)
    free = draw_combinations(Draw(replace(side, one_of_each={}), "all", k, seed=1), 400)
    assert any(len(set(figures_of(FIGURES, c.skills))) < k for c in free)


def test_the_checkers_of_all_skills_read_a_text_once() -> None:
    checkers = [checker for skill in FIGURES.skills if (checker := checker_of(skill.name)) is not None]
    passages = [passage_of(f"At {word} o'clock, the baker worked like an owl.") for word in ("three", "four")] * 50
    assert len(checkers) == 144
    started = time.process_time()
    counts = [sum(checker(passage) is not None for checker in checkers) for passage in passages]
    assert set(counts) == {2}
    assert (time.process_time() - started) / len(passages) < 0.002


def test_two_catalogues_with_different_patterns_for_a_skill_are_refused(tmp_path: Path) -> None:
    figures = (SHIPPED / "figures/figures.yaml").read_text("utf-8").replace('"like {a word}"]', '"unlike {a word}"]')
    load_catalog(str(copied(tmp_path / "mine", figures=figures)))
    try:
        with pytest.raises(UserError, match="Two catalogs have different patterns for the skill 'simile with an owl'"):
            checker_of(OWL)
    finally:
        load_catalog(str(copied(tmp_path / "mine")))
