"""Measure how data sets, scores, reports and exports grow with the number of conversations: time, memory and bytes.

    python bench/scale.py --conversations 30000 100000 300000 --folder /tmp/bench-scale [--only dataset scores]

The script makes two runs of each size in bulk and keeps them in the folder: `train` (one student, one generation, about
half of the texts with full marks), from which data sets are made, and `eval` (two students, k = 2 to 4, three
generations), which is scored, reported and exported. Rows are like those of scripted models: two turns with the real
prompts, and one vote of a grader. Each command runs in a separate process. `peak MB` is the memory of this process;
`together` includes its workers, sampled twice per second.

`--parts 1000000 9800000` measures, without a journal, what stays in memory for that many conversations: `copies` finds
the copies among half as many texts and counts their phrases, and `table` scores as many texts.
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from threading import Thread

import yaml

from bulk_run import Rows, Said, make_run, words
from skillmix.calls import Decoding, GenerateKey, GradeKey, Message, text_id
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.catalog.files import load_catalog
from skillmix.experiment.experiment import Experiment, experiment_of
from skillmix.experiment.plan import cells_of
from skillmix.grading.answers import extract_answer
from skillmix.prompts.prompt_set import load_prompts
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.database import connect
from skillmix.runs.run import Run

STUDENTS, KS, GENERATIONS = ("small", "large"), (2, 3, 4), 3
COMMANDS = {
    "dataset": ("train", ["dataset", "runs/bench", "--recipe", "D(1,2,3)", "--reserved", "0"]),
    "scores": ("eval", ["scores", "runs/bench", "--json"]),
    "report": ("eval", ["report", "runs/bench", "--no-figures"]),
    "report, sample": ("eval", ["report", "runs/bench", "--no-figures", "--texts", "20000"]),
    "status": ("eval", ["status", "runs/bench", "--json"]),
    "again": ("eval", ["run", "bench.yaml"]),
    **{
        f"export, {what}, {form}": ("eval", ["export", "runs/bench", "--what", what, "--format", form])
        for what in ("texts", "votes", "calls")
        for form in ("jsonl", "parquet")
    },
    "texts": ("eval", ["texts", "runs/bench", "--json"]),
    "compare": ("eval", ["compare", "runs/bench", *STUDENTS, "--json", "--texts", "10"]),
    "graders": ("eval", ["graders", "runs/bench", "--json"]),
}
OUTPUTS = {"dataset": "runs/bench/dataset", "report": "runs/bench/report"}
_AT_ONCE = 2000


def evaluation(conversations: int) -> Experiment:
    """Return an experiment with about this many conversations."""
    each = max(1, round(conversations / (len(STUDENTS) * len(KS) * GENERATIONS)))
    step = {"name": "e", "stage": "evaluate", "students": list(STUDENTS), "graders": ["judge"], "settings": ["all"]}
    document = {
        "name": "bench",
        "catalog": "paper",
        "students": {name: {"model": "scripted:student"} for name in STUDENTS},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1, "temperature": 0.0}},
        "steps": [{**step, "k": list(KS), "combinations": each, "generations": GENERATIONS}],
    }
    return experiment_of(document, source="bench")


def make_evaluation(folder: Path, conversations: int) -> None:
    """Write the journal of an evaluation in bulk."""
    experiment, catalog = evaluation(conversations), load_catalog("paper")
    run = Run(folder / "runs/bench")
    with run.write():
        run.continue_with(experiment, catalog)
    (folder / "bench.yaml").write_text(yaml.safe_dump(experiment.model_dump(mode="json")), encoding="utf-8")
    journal = connect(run.file, write=True)
    journal.execute("PRAGMA synchronous = OFF")
    settings = experiment.graders["judge"]
    rows = Rows(Decoding(settings.temperature, settings.max_tokens, settings.top_p))
    number = 0
    for number, (combination, calls) in enumerate(_conversations(experiment, catalog), start=1):
        rows.add(combination, calls)
        if number % _AT_ONCE == 0:
            rows.write(journal)
            print(f"\r{number} conversations", end="", file=sys.stderr)
    rows.write(journal)
    journal.close()
    print(file=sys.stderr)


def _conversations(experiment: Experiment, catalog: Catalog) -> Iterator[tuple[Combination, list[Said]]]:
    chance, prompts = random.Random(0), load_prompts("standard")
    cells = cells_of(experiment, catalog)
    drawn = chain.from_iterable(zip(*(cell.combinations for cell in cells if cell.k == k), strict=True) for k in KS)
    for shared in drawn:
        combination = shared[0]
        first, second = prompts.student_prompts(catalog, combination)
        criteria = rubric_of(combination.skills, combination.topic, phrases=prompts.phrases).criteria
        for student in STUDENTS:
            for generation in range(GENERATIONS):
                draft, said = (f"Answer: {' '.join(words(chance))}.\n\nExplanation: it is so." for _ in range(2))
                asked = (Message("user", first),)
                again = (*asked, Message("assistant", draft), Message("user", second))
                text = extract_answer(said).text
                prompt = (Message("user", prompts.grader_prompt(catalog, combination, answer=text, variant="gpt")),)
                points = [int(chance.random() < 0.9) for _ in criteria]
                table = "\n".join(f"| {c.phrase} | {p} |" for c, p in zip(criteria, points, strict=True))
                reply = f"| Criteria | Points Earned |\n|---|---|\n{table}\n\nExplanation: it says {text[:120]}"
                yield (
                    combination,
                    [
                        (GenerateKey(student, combination.id, generation, 1), asked, draft),
                        (GenerateKey(student, combination.id, generation, 2), again, said),
                        (
                            GradeKey(student, combination.id, generation, text_id(text), "judge", 0, 0),
                            prompt,
                            reply,
                        ),
                    ],
                )


def find_copies(conversations: int) -> int:
    """Find copies and phrases among half as many texts, of which one in twenty is a near-copy of another."""
    from skillmix.datasets.copies import removals
    from skillmix.datasets.corpus import corpus_of, distinct_share, repeated_frames

    def texts() -> Iterator[str]:
        chance, last = random.Random(0), ["once"]
        for number in range(conversations // 2):
            chosen = [*last[1:], "indeed"] if number % 20 == 0 else words(chance)
            last = chosen if number % 1000 == 1 else last
            yield " ".join(chosen)

    corpus = corpus_of(texts())
    found = removals(corpus, examples=[skill.example for skill in load_catalog("paper").skills], threshold=0.7)
    shares = distinct_share(corpus, 4), repeated_frames(corpus, 6, most=10)[1]
    print(f"{len(found)} copies, {shares}")
    return 0


def score_table(conversations: int) -> int:
    """Score this many texts with random grades."""
    import numpy as np

    from skillmix.runs.texts import TextColumn, TextGrade, TextTable, number_of
    from skillmix.scores.scoring import table_rows

    experiment, run, chance = evaluation(conversations), Run(Path.cwd() / "table"), np.random.default_rng(0)
    with run.write():
        run.continue_with(experiment, load_catalog("paper"))
    grades: list[TextGrade] = []
    first = {}
    for k in KS:
        first[k] = len(grades)
        bits = [[bool(number >> bit & 1) for bit in range(k + 3)] for number in range(1 << (k + 3))]
        grades += [TextGrade(tuple(points), "fine", None, None, 1, False) for points in bits]
    columns = {}
    for student in STUDENTS:
        drawn = [(number_of(c.id), c.k) for cell in run.cells if cell.student == student for c in cell.combinations]
        ids, ks = np.array([key for key, _ in drawn], np.uint64), np.array([k for _, k in drawn], np.int32)
        order = np.argsort(ids)
        ids, ks = np.repeat(ids[order], GENERATIONS), np.repeat(ks[order], GENERATIONS)
        starts = np.array([first.get(k, 0) for k in range(max(KS) + 1)])
        numbers = (starts[ks] + chance.integers(0, 1 << 30, len(ks)) % (1 << (ks + 3))).astype(np.int32)
        generations = np.tile(np.arange(GENERATIONS, dtype=np.uint32), len(order))
        columns[student] = TextColumn(ids, generations, {"judge": numbers})
    cells = [row.cell(run.name) for row in table_rows(run, TextTable(grades, columns))]
    for cell in cells:
        print(cell.key, len(cell.combinations), cell.scores["full_marks"].value)
    return 0


PARTS: dict[str, Callable[[int], int]] = {"copies": find_copies, "table": score_table}


def measured(command: str, folder: Path) -> dict[str, float]:
    """Run one command in a separate process."""
    call = [sys.executable, str(Path(__file__).resolve()), "--measure", command]
    done = subprocess.run(call, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(command: str) -> None:
    """Run the command, in the child process."""
    from skillmix.commands import main

    together = [0.0]
    Thread(target=_watch, args=(together,), daemon=True).start()
    started = time.monotonic()
    sys.stdout = Path("output").open("w", encoding="utf-8")  # noqa: SIM115  # until the process ends
    part, _, size = command.partition(" ")
    code = PARTS[part](int(size)) if part in PARTS else main(COMMANDS[command][1])
    sys.stdout = sys.__stdout__
    here, beside = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    made = output_of(command)
    files = [path for path in made.rglob("*") if path.is_file()] or [made]
    result = {
        "code": code,
        "wall": time.monotonic() - started,
        "cpu": sum(used.ru_utime + used.ru_stime for used in (here, beside)),
        "peak": here.ru_maxrss / 1024,
        "together": max(here.ru_maxrss / 1024, together[0]),
        "bytes": sum(path.stat().st_size for path in files),
    }
    print(json.dumps(result))


def output_of(command: str) -> Path:
    """Return the file or folder that a command writes; standard output goes to the file `output`."""
    kind, *form = command.split(", ")
    return Path("runs/bench", ".".join(form)) if kind == "export" else Path(OUTPUTS.get(kind, "output"))


def _watch(together: list[float]) -> None:
    """Record the peak memory of this process and its children together, in MB."""
    page = resource.getpagesize()
    while True:
        size = 0
        for process in [Path("/proc/self"), *_children(os.getpid())]:
            with suppress(OSError, ValueError, IndexError):
                size += int((process / "statm").read_text().split()[1]) * page
        together[0] = max(together[0], size / 2**20)
        time.sleep(0.5)


def _children(number: int) -> Iterator[Path]:
    with suppress(OSError):
        for task in Path(f"/proc/{number}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield Path(f"/proc/{child}")
                yield from _children(int(child))


def made_run(folder: Path, kind: str, conversations: int) -> Path:
    """Return the folder of a run, and make the run if it does not exist."""
    place = folder / f"{kind}-{conversations}"
    if not (place / "made").exists():
        shutil.rmtree(place, ignore_errors=True)
        makers: dict[str, Callable[[], None]] = {
            "train": lambda: make_run(place, conversations, 1, "paper"),
            "eval": lambda: make_evaluation(place, conversations),
        }
        makers[kind]()
        (place / "made").touch()
    return place


def main() -> None:
    """Make missing runs, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, nargs="+", default=[30_000, 100_000, 300_000])
    parser.add_argument("--only", nargs="+", choices=[name.replace(", ", "-") for name in COMMANDS])
    parser.add_argument("--folder", type=Path, default=Path("/tmp/bench-scale"))
    parser.add_argument("--parts", type=int, nargs="+", metavar="CONVERSATIONS", help="measure parts of the work")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        return measure(options.measure)
    print("| command | conversations | wall s | CPU s | µs of CPU each | peak MB | together | output MB |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for part in PARTS if options.parts else ():
        for size in options.parts:
            options.folder.mkdir(parents=True, exist_ok=True)
            print_row(part, size, measured(f"{part} {size}", options.folder))
    for command, (kind, _) in COMMANDS.items() if not options.parts else ():
        if options.only and command.replace(", ", "-") not in options.only:
            continue
        for conversations in options.conversations:
            folder = made_run(options.folder.resolve(), kind, conversations)
            print_row(command, conversations, measured(command, folder))


def print_row(command: str, conversations: int, r: dict[str, float]) -> None:
    """Print a row of the table."""
    note = f" (exit {r['code']:.0f})" if r["code"] else ""
    each = 1e6 * r["cpu"] / conversations
    print(
        f"| {command}{note} | {conversations:,} | {r['wall']:.1f} | {r['cpu']:.1f} | {each:.0f} | "
        f"{r['peak']:.0f} | {r['together']:.0f} | {r['bytes'] / 1e6:.1f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
