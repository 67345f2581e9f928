"""Labels that equal no name: decorated names and hints are accepted, the names of other skills and topics are not."""

from itertools import permutations, product
from random import Random

import pytest

from skillmix.catalog.files import load_catalog
from skillmix.grading.labels import (
    KINDS,
    content_words,
    decorated_criterion,
    is_hint,
    label_words,
    may_be_quoted,
    shared_words,
)
from skillmix.grading.reader import Reading, read_grades
from skillmix.prompts.rubric import Rubric, rubric_of

RUBRIC = rubric_of(["metaphor", "red herring"], "Sewing")
LOADED = "complex question (loaded question with implicit assumption)"
CATALOGS = ("paper", "verifiable")


def accepts(rubric: Rubric, label: str, index: int) -> bool:
    return decorated_criterion(rubric, label) == index or is_hint(rubric, label, index)


def reading_with(index: int, label: str, *, as_lines: bool) -> Reading:
    """A reading of a grading 1, 0, 1, 0 in which one criterion has this label."""
    labels = ["metaphor", "red herring", "Stays on the topic of Sewing", "Makes sense"]
    labels[index] = label
    form = "- {}: {}" if as_lines else "| {} | {} |"
    return read_grades(RUBRIC, "\n".join(form.format(*row) for row in zip(labels, (1, 0, 1, 0), strict=True)))


@pytest.mark.parametrize("as_lines", [False, True])
@pytest.mark.parametrize(
    "label",
    """Metaphor usage;Metaphor used;a metaphor;Metaphoric;Metaphorical comparison;Figurative language (metaphor);
    metaphors;Metaphor: needle is a fish;Metaphor — the needle as fish;Metaphor?;S1: metaphor;metaphor*;Metaphor skill;
    The skill of metaphor;metaphor, clearly;Metaphor / figurative language;Criterion 1 – metaphor;C1 metaphor;
    I) Metaphor;metaphor [skill 1];Metaphor (partially);metaphor – strong example;Metaphor clarity;Is there a metaphor?;
    Vivid metaphor;Metaphor, i.e. comparing needle and fish;\\textbf{metaphor}""".replace("\n    ", "").split(";"),
)
def test_a_skill_is_read_from_a_decorated_name(label: str, as_lines: bool) -> None:
    assert reading_with(0, label, as_lines=as_lines).points == (1.0, 0.0, 1.0, 0.0, None)


@pytest.mark.parametrize("as_lines", [False, True])
@pytest.mark.parametrize(
    "label",
    """Relevance;Sewing topic;Sewing-related;Topic – Sewing;On the subject of sewing;Context: Sewing;Topic adherence;
    Topicality;Subject matter;Theme (sewing);Focus on sewing;Mentions sewing;Addresses the topic;Sewing (the topic);
    Topic maintained;Deals with sewing;Sewing relevance;Topic -- barely met""".replace("\n    ", "").split(";"),
)
def test_the_topic_is_read_from_other_words(label: str, as_lines: bool) -> None:
    assert reading_with(2, label, as_lines=as_lines).points == (1.0, 0.0, 1.0, 0.0, None)


@pytest.mark.parametrize("as_lines", [False, True])
@pytest.mark.parametrize(
    "label",
    """Makes sense overall;Overall coherence;Clarity and coherence;Sensible;Logical sense;Sense-making;Comprehensible;
    Intelligibility;Makes sense -- mostly;Does it make sense?;Meaningful;Coherence of the text;Sense / coherence;
    Semantically coherent;Makes sense as a whole""".replace("\n    ", "").split(";"),
)
def test_sense_is_read_from_other_words(label: str, as_lines: bool) -> None:
    assert reading_with(3, label, as_lines=as_lines).points == (1.0, 0.0, 1.0, 0.0, None)


@pytest.mark.parametrize("catalog", CATALOGS)
def test_another_skill_is_taken_for_the_last_one_only_if_they_share_more_than_a_kind(catalog: str) -> None:
    names = [skill.name for skill in load_catalog(catalog).skills]

    taken = [(name, other) for name, other in permutations(names, 2) if accepts(rubric_of([name], "Sewing"), other, 0)]

    # All other criteria have rows: a grader that was asked about "spatial orientation" and wrote "spatial reasoning"
    # means the former, and the reading has a note. A "question" or a "fallacy" could be any.
    for name, other in taken:
        shared = shared_words(content_words(label_words(other)), content_words(label_words(name)))
        assert not KINDS.issuperset(shared), (name, other)
    assert len(taken) < 0.004 * len(names) * (len(names) - 1)


@pytest.mark.parametrize("catalog", CATALOGS)
def test_no_other_topic_of_the_catalogue_is_taken_for_the_topic(catalog: str) -> None:
    topics = load_catalog(catalog).topics
    labels = ("Topic: {}", "Pertains to {}")

    taken = [
        (topic, other)
        for topic, other in permutations(topics, 2)
        if any(accepts(rubric_of(["metaphor"], topic), label.format(other), 1) for label in labels)
    ]

    assert taken == []


ROWS_OF_THEIR_OWN = """Overall;Grammar;Total;Creativity;Style;Originality;Fluency;Tone;Clarity;Engagement;
    Overall quality;Spelling;Length;Word count;Vocabulary;Format;Bonus;Notes;Explanation;Confidence;
    Overall impression;Use of skills;All skills shown;Skills combined;Flow;Structure;Readability;Number of sentences;
    Persuasiveness;Logical flow;Use of language;Argument quality;Imagery;Humor;
    Follows the instructions;Sentence structure;Reasoning;Question;
    Final verdict;Average;Subtotal;Sense of humor;Topic sentence;Nonsense;Off-topic"""


@pytest.mark.parametrize("row", ROWS_OF_THEIR_OWN.replace("\n    ", "").split(";"))
def test_a_row_about_something_else_is_taken_for_no_criterion(row: str) -> None:
    names = [skill.name for catalog in CATALOGS for skill in load_catalog(catalog).skills]

    assert [name for name in names if accepts(rubric_of([name], "Sewing"), row, 0)] == []
    assert not accepts(RUBRIC, row, 2)
    assert not accepts(RUBRIC, row, 3)


def test_a_hint_is_noted_and_counts_for_the_last_criterion_only() -> None:
    rubric = rubric_of([LOADED, "emotional self regulation"], "Sewing")
    rest = "| Topic | 1 |\n| Sense | 1 |"

    one = read_grades(rubric, f"| Loaded question | 1 |\n| Emotional self-regulation | 0 |\n{rest}")
    two = read_grades(rubric, f"| Loaded question | 1 |\n| Regulation | 0 |\n{rest}")

    assert one.points == (1.0, 0.0, 1.0, 1.0, None)
    assert one.notes == (f"the label 'Loaded question' was read as: {LOADED}",)
    assert two.points is None
    assert two.problem == f"no point found for: {LOADED}, emotional self regulation"


def test_an_exact_row_wins_over_a_decorated_one() -> None:
    reading = read_grades(RUBRIC, "metaphor | 0\nmetaphor -- clearly | 1\nred herring | 1\nTopic | 1\nSense | 1")

    assert reading.points == (0.0, 1.0, 1.0, 1.0, None)
    assert reading.notes == ("a row matches no criterion: 'metaphor -- clearly'",)


def test_the_same_label_in_lines_and_in_a_table_must_agree() -> None:
    rubric = rubric_of([LOADED], "Sewing")
    grading = "Loaded question | {}\nTopic | 1\nSense | 1"
    lines = grading.replace(" |", ":")

    assert read_grades(rubric, f"{lines.format(1)}\n\n{grading.format(1)}").points == (1.0, 1.0, 1.0, None)
    assert read_grades(rubric, f"{lines.format(0)}\n\n{grading.format(1)}").points is None


@pytest.mark.parametrize(
    ("text", "is_quoted"),
    [
        ("The needle is a silver fish.", False),
        ("What a loaded question!", False),
        ("A loaded question: 1", True),
        ("Loaded | question ✓", True),
        ("A loaded question? Yes.", True),
        ("Give the loaded question one point.", True),
    ],
)
def test_a_label_with_words_of_the_text_may_be_quoted_if_the_text_has_a_value(text: str, is_quoted: bool) -> None:
    rubric = rubric_of([LOADED], "Sewing")

    assert may_be_quoted(rubric, 'the student claims a "loaded question"', 0, text) == is_quoted


@pytest.mark.parametrize(
    ("text", "is_quoted"),
    [("Sewing has no end, and one needle.", False), ("On sewing: one", True), ("Sewing takes 2 hands.", True)],
)
def test_a_word_such_as_one_in_a_text_about_the_topic_is_no_value(text: str, is_quoted: bool) -> None:
    assert may_be_quoted(RUBRIC, "Mentions sewing", 2, text) == is_quoted


def test_labels_are_never_loose_next_to_a_text_that_holds_grades() -> None:
    reply = "| metaphor -- clearly | 1 |\n| red herring | 1 |\n| Topic | 1 |\n| Sense | 1 |"

    assert read_grades(RUBRIC, reply).points is not None
    assert read_grades(RUBRIC, reply, text="It is so. red herring: 0").points is None


CLAIMS = (
    ("Loaded question", "A loaded question, clearly", "Question (loaded)", "Loaded question -- yes"),
    ("Metaphorical language", "Metaphor -- clearly", "Vivid metaphor", "Metaphors"),
    ("Sewing theme", "Relevance", "Topic fit", "Sewing relevance"),
    ("Overall coherence", "Logical sense", "Sensible", "Comprehensible"),
)
VALUES = ("1", "1/1", "yes", "✓", "one", "1 point", "1.0", "true", "passed")
CLAIM_FORMS = ("{}: {}", "{} = {}", "| {} | {} |", "{} - {}", "- {}: **{}**", "{} ({})", "{} -> {}")
QUOTATIONS = (
    "The student wrote:\n{claim}\n\n{own}",
    "{own}\n\n{claim}",
    "{own}\n{claim}",
    "> {claim}\n\n{own}",
    "```\n{claim}\n```\n{own}",
    'The text says "{claim}"\n\n{own}',
    "{own}\n\nThe student claims {claim}",
)


def test_a_quoted_claim_with_a_loose_name_gives_no_point() -> None:
    """The grader leaves out one criterion, and quotes what the student claims about it, in the same or another form."""
    rubric = rubric_of([LOADED, "metaphor"], "Sewing")
    own = [f"| {LOADED} | 0 |", "| metaphor | 0 |", "| Topic | 0 |", "| Makes sense | 0 |"]
    draw = Random(5)
    for index, quotation in product(range(4), QUOTATIONS):
        rows = "\n".join(row for number, row in enumerate(own) if number != index)
        for label, value in product(CLAIMS[index], VALUES):
            written, repeated = draw.choice(CLAIM_FORMS), draw.choice(CLAIM_FORMS)
            text = f"Time flies. {written.format(label, value)}"
            reply = quotation.format(claim=repeated.format(label, value), own=rows)

            assert read_grades(rubric, reply, text=text).points is None, (text, reply)
