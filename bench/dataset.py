"""Graded conversations to a data set: time and memory, with a cold and with a warm cache of decisions.

    python bench/dataset.py --conversations 1000000 --folder /tmp/bench-dataset

The run is made up, but whole: two turns and the votes of a grader in the journal, texts of 20 to 60 words, about half
of them with full marks. It is kept in the folder, so that the second call measures at once.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from skillmix.config.catalogs import load_catalog
from skillmix.config.prompt_sets import load_prompts
from skillmix.core.calls import Decoding, GenerateKey, GradeKey, Message, Reply, Request, text_id
from skillmix.core.combinations import Combination, Draw, draw_combinations
from skillmix.core.rubric import rubric_of
from skillmix.core.text_rules import extract_answer
from skillmix.engine.run_folder import RunFolder

EXPERIMENT = {
    "name": "bench",
    "seed": 0,
    "catalog": "paper",
    "leakage": {"reserved": 0.0},
    "students": {"writer": {"model": "scripted:student"}},
    "graders": {"judge": {"model": "scripted:grader", "rounds": 3}},
    "steps": [
        {"name": "texts", "stage": "generate", "students": ["writer"], "settings": ["train"], "k": [1]},
        {"name": "grades", "stage": "grade", "of": ["texts"], "graders": ["judge"]},
    ],
}
_AT_ONCE = 2000


def make_run(folder: Path, conversations: int, votes: int) -> None:
    """Write the journal."""
    run = RunFolder(folder / "runs/bench")
    run.path.mkdir(parents=True, exist_ok=True)
    document = json.loads(json.dumps(EXPERIMENT))
    document["graders"]["judge"]["rounds"] = votes
    catalog = load_catalog("paper")
    document["catalog_hash"] = catalog.content_hash()
    run.experiment_file.write_text(yaml.safe_dump(document), encoding="utf-8")
    started = time.monotonic()
    with run.write() as journal:
        batch: list[tuple[Request, Reply]] = []
        meant: list[Combination] = []
        for number, (combination, calls) in enumerate(_conversations(conversations, votes), start=1):
            meant.append(combination)
            batch += calls
            if number % _AT_ONCE == 0 or number == conversations:
                journal.add_combinations(meant)
                journal.record_all(batch)
                batch, meant = [], []
                print(f"\r{number} conversations, {time.monotonic() - started:.0f} s", end="", file=sys.stderr)
    print(file=sys.stderr)


def _conversations(count: int, votes: int) -> Iterator[tuple[Combination, list[tuple[Request, Reply]]]]:
    catalog, prompts = load_catalog("paper"), load_prompts("standard")
    side = catalog.pool("train")
    chance = random.Random(0)
    words = [f"{a}{b}{c}" for a in "bdfglmnprst" for b in ("a", "ee", "io", "u") for c in ("", "n", "sk", "lt", "mer")]
    words += [f"{one}{other}" for one in words[:60] for other in words[60:120]]
    weights = [1 / (place + 5) for place in range(len(words))]
    total: list[float] = []
    for weight in weights:
        total.append(weight + (total[-1] if total else 0.0))
    decoding = Decoding()
    shares = {1: 0.002, 2: 0.35, 3: 0.648}
    for k, share in shares.items():
        draw = Draw(side=side, setting="train", k=k, seed=0, purpose="training")
        for combination in draw_combinations(
            draw, int(count * share) + (k == 3) * (count - sum(int(count * s) for s in shares.values()))
        ):
            first, second = prompts.student_prompts(catalog, combination)
            rubric = rubric_of(combination.skills, combination.topic, phrases=prompts.phrases)
            said = [
                f"Answer: {' '.join(chance.choices(words, cum_weights=total, k=chance.randint(20, 60))).capitalize()}."
                "\n\nExplanation: every skill is somewhere in it."
                for _ in range(2)
            ]
            asked = (Message("user", first),)
            again = (*asked, Message("assistant", said[0]), Message("user", second))
            calls = [
                (_request(GenerateKey("writer", combination.id, 0, turn), messages, decoding), Reply(reply))
                for turn, messages, reply in ((1, asked, said[0]), (2, again, said[1]))
            ]
            text = extract_answer(said[1]).text
            prompt = (Message("user", prompts.grader_prompt(catalog, combination, answer=text, variant="gpt")),)
            is_good = chance.random() < 0.5
            for vote in range(votes):
                points = [1] * len(rubric.criteria) if is_good else [0, *[1] * (len(rubric.criteria) - 1)]
                table = "\n".join(f"| {c.phrase} | {p} |" for c, p in zip(rubric.criteria, points, strict=True))
                reply = f"| Criteria | Points Earned |\n|---|---|\n{table}\n\nExplanation: vote {vote} on {text[:200]}"
                key = GradeKey("writer", combination.id, 0, text_id(text), "judge", vote, 0)
                calls.append((_request(key, prompt, decoding), Reply(reply)))
            yield combination, calls


def _request(key: GenerateKey | GradeKey, messages: tuple[Message, ...], decoding: Decoding) -> Request:
    return Request(key, "scripted:student", messages, decoding, 1)


def measured(folder: Path) -> tuple[float, float, int]:
    """Wall seconds, CPU seconds and peak MB of one `skillmix dataset`, in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--measure"]
    result = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    wall, cpu, peak, texts = json.loads(result.stdout.splitlines()[-1])
    print(f"{texts} texts in the set", file=sys.stderr)
    return wall, cpu, peak


def measure() -> None:
    """The child's part."""
    from skillmix.cli import main

    started = time.monotonic()
    sys.stdout = sys.stderr
    assert main(["dataset", "bench", "--recipe", "D(1,2,3)", "--reserved", "0"]) == 0
    sys.stdout = sys.__stdout__
    wall = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    with Path("runs/bench/dataset/train.jsonl").open("rb") as lines:
        texts = sum(1 for _ in lines)
    print(json.dumps([wall, time.process_time(), peak, texts]))


def main() -> None:
    """Make the run if it is not there, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=20_000)
    parser.add_argument("--votes", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/bench-dataset"))
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        return measure()
    folder = options.folder / f"{options.conversations}-{options.votes}"
    if not (folder / "made").exists():
        make_run(folder, options.conversations, options.votes)
        (folder / "made").touch()
    (folder / "runs/bench/derived.sqlite").unlink(missing_ok=True)
    size = os.path.getsize(folder / "runs/bench/journal/calls.sqlite") / 1e9  # noqa: PTH202
    print(f"{options.conversations} conversations, {options.votes} votes each, a journal of {size:.2f} GB\n")
    print("| cache | wall s | CPU s | peak MB |\n|---|---:|---:|---:|")
    for cache in ("cold", "warm"):
        wall, cpu, peak = measured(folder)
        print(f"| {cache} | {wall:.1f} | {cpu:.1f} | {peak} |", flush=True)


if __name__ == "__main__":
    main()
