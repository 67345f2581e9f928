"""The paper's sets from one scripted run with known rates: exactly the members that the journal's rows call for.

What is expected is worked out here from the tables of the journal, with SQL, string methods and hashlib, and with none
of the code that reads replies, decides, selects or removes copies.
"""

import json
import os
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyarrow import parquet

from skillmix.catalog.catalog import Partition
from skillmix.catalog.files import load_catalog
from skillmix.commands import main
from skillmix.steps.run import run_experiment

LONG = bool(os.environ.get("SKILLMIX_LONG"))
PART = 1 if LONG else 20
"""The paper's sizes, or a twentieth of them."""
ABLATION = 8000 // PART
ROUNDS = 3
SHOWN, FLIPPED = 0.95, 0.02
"""That the student shows a skill (or any other criterion), and that a vote turns a point round."""


def scripted_run(folder: Path) -> Path:
    """Single skills on all topics as in D(1), pairs and triples of the train side, some with held-out skills."""

    def generate(name: str, setting: str, ks: list[int], combinations: int) -> dict[str, Any]:
        size = {"combinations": combinations // PART, "generations": 1}
        return {
            "name": name,
            "stage": "generate",
            "purpose": "training",
            "students": ["w"],
            "settings": [setting],
            "k": ks,
        } | size

    steps = [
        generate("singles", "all", [1], 7_000),
        generate("compounds", "train", [2, 3], 11_000),
        generate("others", "all", [2, 3], 1_000),
        {
            "name": "again",
            "stage": "generate",
            "purpose": "training",
            "students": ["w"],
            "k": [1],
            "combinations": 20,
            "generations": 2,
        },
        {"name": "grades", "stage": "grade", "of": ["singles", "compounds", "others", "again"], "graders": ["judge"]},
    ]
    student = f"scripted:student?skill={SHOWN}&topic={SHOWN}&marker=0.9&empty=0.01&refusal=0.005"
    document = {
        "name": "paper-sets",
        "students": {"w": {"model": student}},
        "graders": {"judge": {"model": f"scripted:grader?noise={FLIPPED}&unreadable=0.1", "rounds": ROUNDS}},
        "steps": steps,
    }
    (folder / "paper-sets.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return run_experiment(folder / "paper-sets.yaml").run.path / "run.sqlite"


@dataclass(frozen=True)
class Said:
    """A conversation as the journal's rows have it."""

    combination: str
    generation: int
    skills: tuple[str, ...]
    topic: str
    replies: tuple[str, ...]
    votes: tuple[tuple[int, ...], ...]
    """Of each round that could be read: the points."""

    @property
    def k(self) -> int:
        return len(self.skills)

    @property
    def key(self) -> str:
        return f"generate/w/{self.combination}/{self.generation}"

    @cached_property
    def text(self) -> str:
        """The script writes an answer, with or without its marker, and then an explanation."""
        return self.replies[-1].removeprefix("Answer: ").partition("\n\nExplanation:")[0] if self.replies else ""

    @cached_property
    def words(self) -> tuple[str, ...]:
        return tuple(re.findall(r"\w+", self.text.lower()))

    @cached_property
    def runs(self) -> frozenset[tuple[str, ...]]:
        return frozenset(self.words[place : place + 3] for place in range(len(self.words) - 2))

    @cached_property
    def points(self) -> list[bool | None]:
        """By majority; whether a text is short enough is counted, not voted on."""
        if len(self.replies) < 2 or not self.text:
            return [False]
        is_short = self.text.count(".") <= max(1, self.k - 1)
        missing = ROUNDS - len(self.votes)
        earned = [sum(vote[place] for vote in self.votes) for place in range(self.k + 2)]
        voted = [True if 2 * ones > ROUNDS else False if 2 * (ones + missing) < ROUNDS else None for ones in earned]
        return [*voted, is_short]


def conversations(journal: Path) -> Iterator[Said]:
    """Every conversation in the order of its key."""
    connection = sqlite3.connect(f"file:{journal}?mode=ro", uri=True)
    meant = {row[0]: (tuple(json.loads(row[1])), row[2]) for row in connection.execute("SELECT * FROM combination")}
    replies: dict[tuple[str, int], list[str]] = defaultdict(list)
    query = (
        "SELECT combination, generation, content FROM call LEFT JOIN message ON hash = reply "
        "WHERE stage = '{}' ORDER BY combination, generation, {}"
    )
    for combination, generation, content in connection.execute(query.format("generate", "turn")):
        said = replies[combination, generation]
        said += [content] if content is not None else []
    tables: dict[tuple[str, int], dict[int, tuple[int, ...]]] = defaultdict(dict)
    graded = query.replace("content FROM", "content, round FROM").format("grade", "round, attempt")
    for combination, generation, content, vote in connection.execute(graded):
        points = tuple(int(value) for value in re.findall(r"^\| [^|]+ \| ([01]) \|$", content, re.MULTILINE))
        if len(points) == len(meant[combination][0]) + 3:  # a table that lacks a row is unreadable
            tables[combination, generation].setdefault(vote, points)
    connection.close()
    for (combination, generation), said in replies.items():
        skills, topic = meant[combination]
        votes = tuple(tables[combination, generation].values())
        yield Said(combination, generation, skills, topic, tuple(said), votes)


def hashed(*parts: object, size: int) -> bytes:
    return blake2b(json.dumps(parts, separators=(",", ":"), ensure_ascii=False).encode(), digest_size=size).digest()


def falls_in(share: float, *parts: object) -> bool:
    return int.from_bytes(hashed(*parts, size=6)) < share * 2**48


def may_be_trained_on(said: Said, partition: Partition, evaluated: set[str]) -> bool:
    """Train topics; train skills, or one held-out skill alone; not evaluated; not of the reserved fifth."""
    if said.topic not in partition.train.topics or said.combination in evaluated:
        return False
    if said.k == 1:
        return said.skills[0] in (*partition.train.skills, *partition.held_out.skills)
    return set(said.skills) <= set(partition.train.skills) and not falls_in(0.2, "reserved", sorted(said.skills))


def without_copies(texts: list[Said], overlap: float = 0.7) -> list[Said]:
    """Each text that overlaps by less than that with every earlier one that is kept."""
    kept: list[Said] = []
    words: set[tuple[str, ...]] = set()
    holding: dict[tuple[str, ...], list[Said]] = defaultdict(list)
    for said in texts:
        common = Counter(id(other) for run in said.runs for other in holding[run])
        sizes = {id(other): len(other.runs) for run in said.runs for other in holding[run]}
        is_near = any(n / (len(said.runs) + sizes[other] - n) >= overlap for other, n in common.items())
        if said.words not in words and not is_near:
            kept.append(said)
            for run in said.runs:
                holding[run].append(said)
        words.add(said.words)
    return kept


def in_order_of_choice(texts: list[Said]) -> list[Said]:
    def rank(said: Said) -> bytes:
        text = blake2b(json.dumps(["text", said.text], separators=(",", ":")).encode(), digest_size=8).hexdigest()
        return hashed("ladder", f"w/{said.combination}/{said.generation}/{text}", size=16)

    return sorted(texts, key=rank)


def ablation_of(texts: list[Said], size: int) -> list[Said]:
    """The first in the order of choice, with fewer pairs and triples together than there are pairs."""
    room = sum(said.k == 2 for said in texts) - 1
    chosen: list[Said] = []
    for said in in_order_of_choice(texts):
        if said.k == 1 or room > 0:
            chosen.append(said)
            room -= said.k > 1
    return chosen[:size]


def dataset(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    """The exit status, what is told, and the rows."""
    capsys.readouterr()
    status = main(["dataset", "paper-sets", *options, "--evaluations", "evaluated.jsonl", "--output", "set", "--json"])
    told = json.loads(capsys.readouterr().out)
    rows: list[dict[str, Any]] = parquet.read_table("set/rows.parquet").to_pylist()
    lines = [line for name in ("train", "validation") for line in Path(f"set/{name}.jsonl").read_text().splitlines()]
    assert [json.loads(line)["messages"] for line in lines] == [row["messages"] for row in rows]
    return status, told, rows


def test_every_set_of_the_paper_has_exactly_its_members(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = list(conversations(scripted_run(in_folder)))
    held_back = every[::97]
    held_lines = [json.dumps({"skills": said.skills, "topic": said.topic}) for said in held_back]
    (in_folder / "evaluated.jsonl").write_text("\n".join(held_lines), encoding="utf-8")
    full = [said for said in every if all(point is True for point in said.points)]
    less = [said for said in every if any(point is False for point in said.points)]
    evaluated = {said.combination for said in held_back}
    partition = load_catalog("paper").partition()
    allowed = [said for said in full if may_be_trained_on(said, partition, evaluated)]

    def members(*ks: int) -> list[Said]:
        return without_copies([said for said in allowed if said.k in ks])

    def check(expected: list[Said], *options: str) -> None:
        status, told, rows = dataset(capsys, *options)

        split = [falls_in(0.05, "validation", said.combination) for said in expected]
        in_place = sorted(zip(split, expected, strict=True), key=lambda pair: (pair[0], pair[1].key))
        found = [(row["key"], row["split"]) for row in rows]
        wanted = [(said.key, "validation" if later else "train") for later, said in in_place]
        assert [pair for pair in zip_longest(found, wanted) if pair[0] != pair[1]][:5] == [], options
        for row, (_, said) in zip(rows, in_place, strict=True):
            assert (row["text"], row["skills"], row["topic"]) == (said.text, list(said.skills), said.topic)
            assert (row["messages"][1]["content"], row["messages"][3]["content"]) == said.replies
        assert status == (1 if len(full) + len(less) < len(every) else 0)
        assert told["left_out"]["less"] == len(less)
        assert told["left_out"]["undecided"] == len(every) - len(full) - len(less)

    whole = members(1, 2, 3)
    check(members(1), "--recipe", "D(1)")
    check(members(1, 2), "--recipe", "D(1,2)")
    check(whole, "--recipe", "D(1,2,3)")
    varied = without_copies(allowed, overlap=0.5)
    check(varied, "--recipe", "D(1,2,3)", "--near-duplicates", "0.5")
    ablation = ablation_of(whole, ABLATION)
    check(ablation, "--recipe", "ablation", *([] if LONG else ["--size", str(ABLATION)]))
    for size in (ABLATION // 8, ABLATION // 4, ABLATION // 2):
        check(in_order_of_choice(whole)[:size], "--recipe", "D(1,2,3)", "--size", str(size))

    # The run is large enough to tell: the constraint binds, copies occur, and yields are those of the known rates.
    assert len(ablation) == ABLATION
    assert sum(said.k > 1 for said in ablation) == sum(said.k == 2 for said in whole) - 1
    assert len(varied) < len(whole) < len(allowed)
    for k in (1, 2, 3):
        tries = [said for said in every if said.k == k]
        rate = 0.99 * 0.995 * SHOWN ** (k + 2) * 0.95
        assert abs(sum(said.k == k for said in full) / len(tries) - rate) < 0.01 + 4 * (rate / len(tries)) ** 0.5
