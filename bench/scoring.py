"""Measure the CPU time of reading and scoring stored gradings: `python bench/scoring.py [GRADINGS …]`.

The run has replies of a realistic length (a table, a total and an explanation; 1 in 25 cannot be parsed), three votes
per text and three texts per combination. It is scored from the journal as by `skillmix scores`.
"""

import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from skillmix.calls import Decoding, GenerateKey, GradeKey, Message, Reply, Request, text_id
from skillmix.catalog.combinations import Combination, Draw, draw_combinations
from skillmix.catalog.files import load_catalog
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.run import Run
from skillmix.scores.scoring import run_scores

SIZES = (12_500, 25_000, 50_000, 100_000)
VOTES, TEXTS = 3, 3
EXPLANATION = (
    "Explanation: the student's text keeps to the topic and can be understood without effort. {skill} is shown in the "
    "first half of the sentence, where the speaker says one thing and means another; the point is earned. What is "
    "asked for beside it is less clear: a reader would have to guess, and a guess is not a demonstration. The text "
    "has no more sentences than it may have. Thus the total points earned are as the table says.\n\n"
) * 3


def reply(combination: Combination, rng: random.Random) -> str:
    """Return a realistic reply of a grader."""
    if rng.random() < 0.04:
        return "I am sorry, but there is not enough to grade in this text."
    rubric = rubric_of(combination.skills, combination.topic)
    points = [rng.random() < 0.85 for _ in rubric.criteria]
    rows = "".join(f"| {c.phrase:<60} | {int(p)} |\n" for c, p in zip(rubric.criteria, points, strict=True))
    head = "Here's the grading table:\n\n| Criteria | Points Earned |\n|---|---|\n"
    return f"{head}{rows}| Total Points Earned | {sum(points)} |\n\n{EXPLANATION.format(skill=combination.skills[0])}"


def calls(combinations: list[Combination], rng: random.Random) -> Iterator[tuple[Request, Reply]]:
    """Yield texts and their gradings."""
    decoding = Decoding()
    for combination in combinations:
        for generation in range(TEXTS):
            text = f"The {combination.topic.lower()} hour has come, number {rng.random()}; who would not be glad of it?"
            key = GenerateKey("student", combination.id, generation, 1)
            yield (
                Request(key, "m", (Message("user", "Write"),), decoding, 1),
                Reply(f"Answer: {text}\n\nExplanation: x"),
            )
            for vote in range(VOTES):
                grade = GradeKey("student", combination.id, generation, text_id(text), "grader", vote, 0)
                yield Request(grade, "g", (Message("user", "Grade"),), decoding, 1), Reply(reply(combination, rng))


def make_run(folder: Path, gradings: int) -> None:
    """Make a run with this many gradings, over k = 1 to 5."""
    rng = random.Random(0)
    catalog = load_catalog("paper")
    each = gradings // (VOTES * TEXTS) // 5 + 1
    drawn: list[Combination] = []
    for k in range(1, 6):
        drawn += draw_combinations(Draw(catalog.pool("all"), "all", k, 0), each)
    run = Run(folder)
    with run.write() as journal:
        run.begin_import({"name": "bench", "catalog": "paper"})
        journal.add_combinations(drawn)
        journal.record_all(calls(drawn, rng))


def main() -> None:
    """Print a row for each size."""
    sizes = [int(word) for word in sys.argv[1:]] or SIZES
    print("| gradings | CPU s | µs per grading | cells |\n|---:|---:|---:|---:|")
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            make_run(Path(folder) / "bench", size)
            start = time.process_time()
            cells = len(run_scores(str(Path(folder) / "bench")))
            spent = time.process_time() - start
        print(f"| {size} | {spent:.2f} | {1e6 * spent / size:.0f} | {cells} |")


if __name__ == "__main__":
    main()
