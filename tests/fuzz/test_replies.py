"""Whatever models write, students or graders, is read without a fault and kept in the journal as it is."""

from pathlib import Path
from random import Random
from typing import Final

from skillmix.calls import Decoding, GenerateKey, Message, Reply, Request
from skillmix.catalog.files import load_catalog
from skillmix.datasets.copies import earlier_copies
from skillmix.datasets.corpus import corpus_of
from skillmix.datasets.leakage import NameFinder
from skillmix.grading.answers import count_sentences, extract_answer, names_skill
from skillmix.grading.reader import read_grades
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.journal import JournalReader, JournalWriter
from skillmix.runs.verdicts import RulesGrader
from tests.fuzz.common import cases
from tests.grading.test_reader import CASES
from tests.grading.test_reader_properties import assert_sound, mutated
from tests.nasty_texts import SCRAPS
from tests.runs.databases import messages

CATALOG: Final = load_catalog("verifiable")
SKILLS: Final = [skill.name for skill in CATALOG.skills]
EXAMPLES: Final = [skill.example for skill in CATALOG.skills]


def student_text(draw: Random) -> str:
    """Scraps, examples of skills, and pieces of both."""
    parts = []
    for _ in range(draw.randint(1, 8)):
        part = draw.choice(EXAMPLES) if draw.random() < 0.4 else "".join(draw.choices(SCRAPS, k=draw.randint(1, 9)))
        start = draw.randrange(len(part) + 1)
        parts.append(part[start:] if draw.random() < 0.3 else part)
    return draw.choice(("", " ", "\n", ". ")).join(parts)


def test_any_student_text_is_judged() -> None:
    grader = RulesGrader(CATALOG)
    finder = NameFinder(SKILLS)
    answers = []
    for _, draw in cases("student texts", few=1_500):
        text = student_text(draw)

        answer = extract_answer(text).text
        verdict = grader.verdict(answer, skills=draw.sample(SKILLS, 5), topic=draw.choice(CATALOG.topics))
        names_skill(answer, draw.choice(SKILLS), "word")
        finder.names_in(answer)

        assert count_sentences(answer, "original") >= 1
        assert count_sentences(answer) >= 0
        assert all(span is None or 0 <= span.start < span.end <= len(answer) for span in verdict.evidence.values())
        answers.append(answer)
    copies = earlier_copies(corpus_of(answers[:2_000]), threshold=0.5)
    assert all(earlier < number for number, earlier in enumerate(copies.tolist()))


def test_any_grader_reply_about_any_text_is_read() -> None:
    readable = 0
    for number, draw in cases("grader replies", few=2_000):
        case = CASES[number % len(CASES)]
        rubric = rubric_of(case["skills"], case["topic"])
        reply = mutated(case["reply"] or "", draw)
        for _ in range(draw.randint(0, 3)):
            place = draw.randrange(len(reply) + 1)
            reply = reply[:place] + "".join(draw.choices(SCRAPS, k=draw.randint(1, 4))) + reply[place:]
        text = draw.choice((None, reply, student_text(draw), reply[: len(reply) // 2]))

        reading = read_grades(rubric, reply, text=text)

        assert_sound(rubric, reply, reading)
        readable += reading.points is not None
    assert readable


def test_any_reply_is_kept_in_the_journal_and_read_back(tmp_path: Path) -> None:
    written: list[tuple[Request, Reply]] = []
    for number, draw in cases("kept replies", few=1_500, many=200_000):
        key = GenerateKey("s", "c", number, 1)
        asked = Message("user", student_text(draw))
        written.append((Request(key, "m", (asked,), Decoding(), number), Reply(student_text(draw), finish="stop")))
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        assert journal.record_all(written) == len(written)

    with JournalReader(tmp_path / "run.sqlite") as journal:
        found = {call.key: call.outcome for call in journal.calls("generate")}
        messages(journal)

    for request, reply in written:
        outcome = found[request.key]
        assert isinstance(outcome, Reply)
        assert outcome.text == Message("assistant", reply.text).content
