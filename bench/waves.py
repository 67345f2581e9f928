"""What a dataset step that writes holds in memory, and what its waves cost, without models and without a journal.

    python bench/waves.py --conversations 20000 100000 [--per-skill 1000] [--folder /tmp/bench-waves]

Waves are planned and learned as in a run, but a stand-in decides at once: about half of the conversations have full
marks, with texts of 20 to 60 words and one vote. `--per-skill` sets a floor, and four times as many as the ceiling.
Each size has a process of its own. `bytes each` is the growth of its memory by conversation, from before the first wave
to the end of the last one. CPU time is that of the main thread: `drawing` is the time to plan waves and to draw their
candidates, `learning` the time from the decisions on a wave to its end.
"""

import argparse
import gc
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dataset import words
from skillmix.calls import Call, Decoding, GenerateKey, Reply
from skillmix.catalog.combinations import Combination
from skillmix.catalog.files import load_catalog
from skillmix.datasets.from_runs import plan_of, writers_of
from skillmix.datasets.kept_texts import KeptText
from skillmix.datasets.writing.decided_texts import ConversationKey, DecidedText, DecidedTexts
from skillmix.datasets.writing.sampling import Sampler
from skillmix.datasets.writing.waves import Waves
from skillmix.experiment.experiment import experiment_of
from skillmix.experiment.steps import DatasetStep
from skillmix.hashing import digest
from skillmix.runs.calling import StepContext
from skillmix.runs.reading.decisions import DecidedConversation, Decision
from skillmix.runs.reading.graded_conversations import WrittenConversation
from skillmix.runs.run import Run
from skillmix.runs.scheduler import CallCounts

SPENT = {"_learn": 0.0, "next_wave": 0.0}
BY_WAVE: list[float] = []


def decide(self: DecidedTexts, conversations: Sequence[ConversationKey]) -> list[DecidedText]:
    """Stand in for the thread that decides: objects as it makes them, with strings of their usual lengths."""
    return [decided(combination, generation) for combination, generation in conversations]


def decided(combination: str, generation: int) -> DecidedText:
    """A conversation with full marks or without, by its key."""
    chance = random.Random(f"{combination} {generation}")
    is_full = chance.random() < 0.5
    replies = tuple(f"Answer: {' '.join(words(chance))}.\n\nExplanation: it is so." for _ in range(2))
    hashes = [digest(combination, generation, number, size=16).hex() for number in range(5)]
    turns = [
        Call(
            GenerateKey("writer", combination, generation, n + 1),
            Reply(said),
            "scripted:student",
            (hashes[n],),
            Decoding(),
            1,
            hashes[n + 2],
            "call",
            "",
        )
        for n, said in enumerate(replies)
    ]
    text = hashes[4][:16]
    written = WrittenConversation(("writer", combination, generation), tuple(turns), None)
    conversation = DecidedConversation(written, (Decision(int(is_full), text, "fine", sys.intern("[[1, 1, 1]]")),))
    if not is_full:
        return DecidedText(conversation, None)
    meant = Combination(combination, ("red herring", "metaphor", "modus ponens"), "Gardening")
    facts = ("fine", "scripted:student", (hashes[2], hashes[3]), "standard", ("judge",), ("[[1, 1, 1]]",))
    span = (8, len(replies[1]) - 30)
    return DecidedText(
        conversation, KeptText("bench", "writer", meant, generation, span, text, (replies[0], replies[1]), *facts)
    )


def timed(owner: Any, name: str) -> None:
    """Count the CPU time of a method in the main thread."""
    method = getattr(owner, name)

    def wrapped(*arguments: Any) -> Any:
        started = time.thread_time()
        try:
            return method(*arguments)
        finally:
            SPENT[name] += time.thread_time() - started
            if name == "_learn":
                BY_WAVE.append(time.thread_time() - started)

    setattr(owner, name, wrapped)


def waves_of(conversations: int, floor: int) -> Waves:
    """A step that needs about that many conversations."""
    limits = {"per_skill": {"floor": floor, "ceiling": 4 * floor}} if floor else {}
    step = {"name": "d", "stage": "dataset", "writer": "writer", "graders": ["judge"], "k": [3]}
    document = {
        "name": "bench",
        "catalog": "paper",
        "students": {"writer": {"model": "scripted:student"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [step | limits | {"target": {3: conversations // 2}, "least": 0}],
    }
    experiment, catalog = experiment_of(document, source="bench"), load_catalog("paper")
    run = Run(Path.cwd() / "runs/bench")
    run.continue_with(experiment, catalog)
    nothing: Any = None
    context = StepContext(experiment, catalog, run, nothing, nothing)
    chosen = next(one for one in experiment.steps if isinstance(one, DatasetStep))
    return Waves(chosen, context, plan_of(chosen, context), writers_of(run.name, experiment), CallCounts())


def memory() -> float:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure(conversations: int, floor: int) -> None:
    """The child's part."""
    DecidedTexts._decide = decide  # type: ignore[method-assign,assignment]
    timed(Waves, "_learn")
    timed(Sampler, "next_wave")
    waves = waves_of(conversations, floor)

    before = memory()
    with waves._decided:
        for k, wave in waves._planned():
            waves._of_k(k).begin(wave)
    gc.collect()
    tried = sum(y.written for y in waves.yields)
    result = {
        "tried": tried,
        "kept": sum(y.full_marks for y in waves.yields),
        "taken": digest([text.provenance for text in waves.texts], [y.waves for y in waves.yields]).hex()[:8],
        "waves": sum(y.waves for y in waves.yields),
        "each": (memory() - before) / tried,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "drawing": SPENT["next_wave"],
        "learning": SPENT["_learn"],
        "last": BY_WAVE[-1],
    }
    print(json.dumps(result))


def main() -> None:
    """Measure each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, nargs="+", default=[20_000, 100_000])
    parser.add_argument("--per-skill", type=int, default=0, metavar="FLOOR")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/bench-waves"))
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        return measure(options.measure, options.per_skill)
    print("| tried | full marks | taken | waves | bytes each | peak MB | drawing s | learning s | of the last wave |")
    print("|---:|---:|---|---:|---:|---:|---:|---:|---:|")
    for size in options.conversations:
        folder = options.folder / f"{size}-{options.per_skill}"
        folder.mkdir(parents=True, exist_ok=True)
        call = [sys.executable, str(Path(__file__).resolve()), "--per-skill", str(options.per_skill)]
        done = subprocess.run(
            [*call, "--measure", str(size)], cwd=folder, stdout=subprocess.PIPE, text=True, check=True
        )
        r = json.loads(done.stdout.splitlines()[-1])
        print(
            f"| {r['tried']:,} | {r['kept']:,} | {r['taken']} | {r['waves']} | {r['each']:,.0f} | {r['peak']:.0f} | "
            f"{r['drawing']:.2f} | {r['learning']:.2f} | {r['last']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
