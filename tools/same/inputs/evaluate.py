"""Call the public interface of the package from a script and inside a running event loop."""

import asyncio
import sys

import skillmix

FIELDS = ("student", "grader", "setting", "k", "metric", "value", "low", "high", "bound_low", "bound_high", "one_try")


def show(evaluation: skillmix.Run) -> None:
    """Write the table and the records."""
    records = [" ".join(f"{name}={getattr(score, name)}" for name in FIELDS) for score in evaluation.scores]
    sys.stdout.write("\n".join([str(evaluation), f"complete: {evaluation.is_complete}", *records, ""]))


async def in_a_loop() -> None:
    """Evaluate as a notebook does."""
    student, grader = "scripted:student?skill=0.5", "scripted:grader"
    show(skillmix.evaluate(name="loop", student=student, grader=grader, k=[1, 2], combinations=4))


show(
    skillmix.evaluate(
        name="first-try",
        student="scripted:student?skill=0.8",
        grader="scripted:grader?noise=0.05",
        k=[1, 2, 3],
        combinations=10,
        rounds=1,
        seed=5,
    )
)
asyncio.run(in_a_loop())
