"""Write the journal of a large synthetic run in bulk: two turns, the votes of a grader, and texts of 20 to 60 words."""

import json
import random
import sqlite3
import sys
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import yaml

from skillmix.calls import Decoding, GenerateKey, GradeKey, Message, Request, seed_for, text_id
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination, Draw, all_combinations, training_draw
from skillmix.catalog.files import load_catalog
from skillmix.grading.answers import extract_answer
from skillmix.prompts.prompt_set import load_prompts
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.database import connect
from skillmix.runs.rows import ExperimentVersion, now, write_version
from skillmix.runs.run import Run

EXPERIMENT = {
    "name": "bench",
    "seed": 0,
    "catalog": "paper",
    "leakage": {"reserved": 0.0},
    "students": {"writer": {"model": "scripted:student"}},
    "graders": {"judge": {"model": "scripted:grader", "rounds": 3}},
    "steps": [
        {
            "name": "texts",
            "stage": "generate",
            "purpose": "training",
            "students": ["writer"],
            "settings": ["train"],
            "k": [1],
        },
        {"name": "grades", "stage": "grade", "of": ["texts"], "graders": ["judge"]},
    ],
}
_AT_ONCE = 2000


def make_run(folder: Path, conversations: int, votes: int, catalog_name: str) -> None:
    """Write a run with training texts, of which about half have full marks."""
    run = Run(folder / "runs/bench")
    run.path.mkdir(parents=True, exist_ok=True)
    document = json.loads(json.dumps(EXPERIMENT))
    document["graders"]["judge"]["rounds"] = votes
    catalog = load_catalog(catalog_name)
    document["catalog"] = catalog_name
    document["catalog_hash"] = catalog.content_hash()
    started = time.monotonic()
    journal = connect(run.file, write=True)
    write_version(journal, ExperimentVersion(1, yaml.safe_dump(document), now(), None, None, None, {}))
    journal.execute("PRAGMA synchronous = OFF")
    rows = Rows()
    for number, (combination, calls) in enumerate(_conversations(conversations, votes, catalog), start=1):
        rows.add(combination, calls)
        if number % _AT_ONCE == 0 or number == conversations:
            rows.write(journal)
            print(f"\r{number} conversations, {time.monotonic() - started:.0f} s", end="", file=sys.stderr)
    journal.close()
    print(file=sys.stderr)


_Key = GenerateKey | GradeKey
Said = tuple[_Key, tuple[Message, ...], str]
"""The key of a call, its messages and the reply."""


class Rows:
    """Rows of the journal's tables, written without checks."""

    def __init__(self, grader: Decoding | None = None) -> None:
        of_grader = grader or Decoding(0.7, 1024)
        self._asked = {"generate": ("scripted:student", Decoding()), "grade": ("scripted:grader", of_grader)}
        self._combinations: list[tuple[str, str, str]] = []
        self._messages: list[tuple[str, str, str]] = []
        self._calls: list[tuple[object, ...]] = []

    def add(self, combination: Combination, calls: list[Said]) -> None:
        """Add a conversation."""
        self._combinations.append((combination.id, json.dumps(combination.skills), combination.topic))
        for key, messages, reply in calls:
            said = Message("assistant", reply)
            self._messages += [(m.content_hash, m.role, m.content) for m in (*messages, said)]
            place: tuple[object, ...]
            if isinstance(key, GenerateKey):
                place = ("generate", key.student, key.combination, key.generation, key.turn, None, None, None, None)
            else:
                votes = (key.text, key.grader, key.round, key.attempt)
                place = ("grade", key.student, key.combination, key.generation, None, *votes)
            asked = json.dumps([m.content_hash for m in messages])
            model, decoding = self._asked[str(place[0])]
            request = Request(key, model, messages, decoding, seed_for(0, key))
            sent = (model, json.dumps(decoding.settings()), request.seed)
            self._calls.append((*place, asked, request.content_hash, said.content_hash, *sent))

    def write(self, journal: sqlite3.Connection) -> None:
        """Write all rows in one transaction."""
        journal.execute("BEGIN")
        journal.executemany("INSERT OR IGNORE INTO combination VALUES (?, ?, ?)", self._combinations)
        journal.executemany("INSERT OR IGNORE INTO message VALUES (?, ?, ?)", self._messages)
        journal.executemany(
            "INSERT INTO call (stage, student, combination, generation, turn, text, grader, round, attempt, messages, "
            "request_hash, reply, model, decoding, seed, status, not_sent, origin, at) VALUES "
            "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'done', '[]', 'call', '2026-01-01T00:00:00.000+00:00')",
            self._calls,
        )
        journal.execute("COMMIT")
        for part in (self._combinations, self._messages, self._calls):
            part.clear()


def _conversations(count: int, votes: int, catalog: Catalog) -> Iterator[tuple[Combination, list[Said]]]:
    prompts = load_prompts("standard")
    side = catalog.pool("train")
    chance = random.Random(0)
    draws = [training_draw(Draw(side, "train", k, 0), catalog.pools()) for k in (1, 2, 3)]
    few, some = min(2000, count // 100), min(60_000, count // 3)
    some = min(some, draws[1].total // 2)
    drawn = chain.from_iterable(
        islice(all_combinations(draw), size) for draw, size in zip(draws, (few, some, count - few - some), strict=True)
    )
    for combination in drawn:
        first, second = prompts.student_prompts(catalog, combination)
        rubric = rubric_of(combination.skills, combination.topic, phrases=prompts.phrases)
        said = [
            f"Answer: {' '.join(words(chance)).capitalize()}.\n\nExplanation: every skill is somewhere in it."
            for _ in range(2)
        ]
        asked = (Message("user", first),)
        again = (*asked, Message("assistant", said[0]), Message("user", second))
        calls: list[Said] = [
            (GenerateKey("writer", combination.id, 0, 1), asked, said[0]),
            (GenerateKey("writer", combination.id, 0, 2), again, said[1]),
        ]
        text = extract_answer(said[1]).text
        prompt = (Message("user", prompts.grader_prompt(catalog, combination, answer=text, variant="gpt")),)
        is_good = chance.random() < 0.5
        points = [1 if is_good or place else 0 for place in range(len(rubric.criteria))]
        table = "\n".join(f"| {c.phrase} | {p} |" for c, p in zip(rubric.criteria, points, strict=True))
        for vote in range(votes):
            reply = f"| Criteria | Points Earned |\n|---|---|\n{table}\n\nExplanation: vote {vote} on {text[:200]}"
            calls.append((GradeKey("writer", combination.id, 0, text_id(text), "judge", vote, 0), prompt, reply))
        yield combination, calls


_SYLLABLES = [f"{a}{b}{c}" for a in "bdfglmnprst" for b in ("a", "ee", "io", "u") for c in ("", "n", "sk", "lt", "mer")]
_VOCABULARY = _SYLLABLES + [f"{one}{other}" for one in _SYLLABLES[:60] for other in _SYLLABLES[60:120]]


def words(chance: random.Random) -> list[str]:
    """Return 20 to 60 random words; words early in the vocabulary are far more frequent than late ones."""
    size = len(_VOCABULARY)
    return [_VOCABULARY[int(size * chance.random() ** 3)] for _ in range(chance.randint(20, 60))]
