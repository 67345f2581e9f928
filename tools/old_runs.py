"""Make the runs in tests/fixtures/old_runs and their expected outputs: `python -m tools.old_runs [NAME …]`.

This file works only at revision 7208247a3a4b42c882fc1d36827556ceead8c073, with this file and
tests/runs/test_old_runs.py added. Later code stores runs in another way, and the fixtures show that it still opens the
old runs. To add a fixture, check out that revision. Because this code belongs to an older revision, it imports skillmix
only dynamically, where type checkers do not follow. Journals of versions 1 and 2 get their tables from revisions with
these versions.
"""

import asyncio
import csv
import importlib
import io
import json
import re
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import chdir, closing, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml
from tests.runs.test_old_runs import FIXTURES, described, unpack

ROOT: Final = Path(__file__).parents[1]
REVISION: Final = "7208247a3a4b42c882fc1d36827556ceead8c073"
CACHES: Final = ("derived*", "*.lock", "*-wal", "*-shm", "texts.jsonl", "votes.jsonl", "calls.jsonl")
"""Files that skillmix makes again when it opens a run."""
OLD_SCHEMAS: Final = {
    1: ("46c7cf1", "src/skillmix/engine/schema.py"),
    2: ("8a45343^", "src/skillmix/runs/journal/schema.py"),
}
Document = dict[str, Any]


def main(names: list[str]) -> None:
    """Make the fixtures with these names, or all fixtures."""
    for name in names or MAKERS:
        with TemporaryDirectory(prefix="old-runs-") as scratch:
            folder = Path(scratch) / name
            folder.mkdir()
            with chdir(folder):
                MAKERS[name](name)
            _tidy(folder, name)
            _pack(folder, FIXTURES / f"{name}.tar.gz")
            _describe(name, Path(scratch) / "unpacked")


# --- One function for each run; the working folder is new and empty. ---


def _version_3(name: str) -> None:
    """Make a run with refusals, replies without a marker, and gradings that cannot be parsed."""
    _run(_experiment(name))


def _version_2(name: str) -> None:
    _version_3(name)
    _rewrite_journal(Path("runs") / name, 2)


def _version_1(name: str) -> None:
    _version_3(name)
    _rewrite_journal(Path("runs") / name, 1)


def _refused(name: str) -> None:
    """Make a run whose graders refused, which version 1 recorded as final, like a student's refusal."""
    document = _experiment(name)
    document["graders"]["judge"]["model"] += "&refusal=0.1"
    document["steps"][0] |= {"settings": ["all"], "generations": 1}
    _run(document)
    _rewrite_journal(Path("runs") / name, 1)
    with closing(sqlite3.connect(Path("runs") / name / "journal/calls.sqlite")) as journal, journal:
        journal.execute("UPDATE calls SET problem_kind = 'final' WHERE stage = 'grade' AND status = 'problem'")


def _divided(name: str) -> None:
    """Make a run whose journal consists of three files."""
    document = _experiment(name)
    document["workers"] = {"writers": 3}
    document["steps"][0] |= {"settings": ["all"], "generations": 1}
    document["steps"] += [_dataset("d", target=3)]
    _run(document)


def _ahead(name: str) -> None:
    """Make a data set whose writer had free slots, so that some conversations belong to no wave."""
    specs: Any = importlib.import_module("skillmix.models.specs")
    known = specs.PROVIDERS
    specs.PROVIDERS = {
        **known,
        "scripted": specs.Provider("scripted", "", _slotted(), is_free=True),
    }
    specs._provider.cache_clear()
    try:
        document = _experiment(name)
        document["steps"] = [_dataset("d", target=12)]
        document["graders"]["judge"]["rounds"] = 1
        _run(document)
    finally:
        specs.PROVIDERS = known
        specs._provider.cache_clear()


def _slotted() -> Any:
    """Return a class of scripted models that run in this process and have 48 slots."""
    scripted = importlib.import_module("skillmix.models.scripted").ScriptedModel
    base: Any = scripted

    class Slotted(base):  # type: ignore[misc]
        slots = 48

        def __init__(self, spec: Any, options: Any) -> None:
            super().__init__(spec)

        async def serve(self, requests: AsyncIterator[Any]) -> AsyncIterator[tuple[Any, Any]]:
            """Answer up to 48 requests at once, each after a while."""
            done: asyncio.Queue[Any] = asyncio.Queue()
            room = asyncio.Semaphore(self.slots)
            in_flight = 0

            async def feed() -> None:
                nonlocal in_flight
                async for request in requests:
                    await room.acquire()
                    in_flight += 1
                    asyncio.get_running_loop().call_later(0.005, done.put_nowait, request)
                done.put_nowait(None)

            feeding, is_fed = asyncio.create_task(feed()), False
            while not is_fed or in_flight:
                request = await done.get()
                if request is None:
                    is_fed = True
                    continue
                in_flight -= 1
                room.release()
                yield request, self.answer(request)
            await feeding

    return Slotted


def _people(name: str) -> None:
    """Make a run with cards, and with votes from two scripted raters and from a person's spreadsheet."""
    document = _experiment(name)
    document["steps"][0] |= {"settings": ["all"], "generations": 1}
    raters = {"ann": "scripted:rater?unsure=0.1", "bo": "scripted:rater?sensitivity=0.9"}
    document["steps"] += [
        {"name": "read", "stage": "annotate", "raters": raters, "n": 8, "overlap": 0.5},
        {"name": "cards", "stage": "graders", "truth": "people"},
    ]
    _run(document)
    _command("annotate", name, "--rater", "cy", "--n", "5", "--export", "sheet.csv")
    with Path("sheet.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    with Path("sheet.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "vote": "110?1"[number % 5]} for number, row in enumerate(rows))
    _command("annotate", name, "--rater", "cy", "--n", "5", "--import", "sheet.csv")
    Path("sheet.csv").unlink()
    _command("run", "run.yaml", "--json")


def _open_batch(name: str) -> None:
    """Make a run whose gradings are in an unfinished batch at a provider that is no longer reachable."""
    stubs = importlib.import_module("tests.runs.batches.stub_provider")
    stub = stubs.StubProvider(frozenset({"readable"}))
    with stubs.serving(stub):
        document = _experiment(name)
        options = {"batch": True, "timeout": 20}
        document["students"] = {"s": {"model": f"openai:student@{stub.address}", **options}}
        document["graders"] = {"judge": {"model": f"openai:judge@{stub.address}", "rounds": 1, **options}}
        document["steps"][0] |= {"students": ["s"], "settings": ["all"], "k": [1, 2], "generations": 1}
        _write(document)
        while "gradings" not in _waves(name):
            _command("run", "run.yaml", "--no-wait", "--json", ends=3)
        stub.is_finishing = False
        _command("run", "run.yaml", "--no-wait", "--json", ends=3)


def _waves(name: str) -> list[str]:
    if not Path("runs", name).exists():
        return []
    waves = json.loads(_command("status", name, "--json")).get("batches", [])
    return [wave["wave"] for wave in waves]


def _earlier(name: str) -> None:
    """Make an evaluation that avoids a student's training data, and an earlier one with other k and another grader."""
    document = _experiment(name)
    known = _command("combinations", "--k", "2", "--setting", "held-out", "--n", "2", "--seed", "1", "--json")
    drawn = json.loads(known)
    data = {"kind": "dataset", "hash": "d12", "catalog": "paper", "partition": "category", "k": [1, 2]}
    data |= {"combinations": [one["id"] for one in drawn], "skill_sets": [one["skills"] for one in drawn]}
    Path("d12").mkdir()
    Path("d12/skillmix.json").write_text(json.dumps({**data, "counts": {"train": 2}}), encoding="utf-8")
    document["students"]["strong"] |= {"tuned_from": "weak", "trained_on": "d12"}
    document["graders"]["second"] = {"model": "scripted:grader?noise=0.2", "rounds": 1}
    document["steps"][0] |= {"settings": ["held-out"], "graders": ["judge", "second"], "k": [1, 2, 3], "generations": 1}
    _run(document)
    del document["graders"]["second"]
    document["steps"][0] |= {"graders": ["judge"], "k": [2]}
    _run(document)


def _trained(name: str) -> None:
    """Make a run that tunes a model with random weights and evaluates the model beside its base."""
    _make_model(Path("base"))
    turns = [{"role": "user", "content": "Say a."}, {"role": "assistant", "content": "Answer: a b c."}]
    turns += [{"role": "user", "content": "Again."}, {"role": "assistant", "content": "Answer: c b a."}]
    rows = [json.dumps({"messages": turns}) for _ in range(4)]
    Path("conversations.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    document = _experiment(name)
    document["students"] = {"base": {"model": "local:base", "max_tokens": 4}}
    tune = {"name": "tune", "stage": "train", "base": "base", "data": ["./conversations.jsonl"], "steps": 2, "batch": 2}
    tune |= {"learning_rate": 0.001, "warmup_steps": 0, "precision": "fp32"}
    students = ["base", "step:tune"]
    document["steps"] = [tune, document["steps"][0] | {"students": students, "settings": ["all"], "generations": 1}]
    _run(document)


def _make_model(folder: Path) -> None:
    """Save a model with two layers of random weights and a byte tokenizer."""
    tokenizers: Any = importlib.import_module("tokenizers")
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    names = ["<unk>", "<s>", "</s>"]
    vocabulary = {token: number for number, token in enumerate([*names, *letters])}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="<unk>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    model.add_special_tokens(names)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}"
        "{{ eos_token if m['role'] == 'assistant' else '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


MAKERS: Final[dict[str, Callable[[str], None]]] = {
    "version-1": _version_1,
    "version-2": _version_2,
    "version-3": _version_3,
    "version-1-refused": _refused,
    "divided": _divided,
    "ahead": _ahead,
    "people": _people,
    "open-batch": _open_batch,
    "earlier": _earlier,
    "trained": _trained,
}


# --- Experiments and commands ---


def _experiment(name: str) -> Document:
    evaluation = {"name": "eval", "stage": "evaluate", "students": ["weak", "strong"], "graders": ["judge"]}
    return {
        "name": name,
        "seed": 1,
        "catalog": "paper",
        "students": {
            "weak": {"model": "scripted:student?skill=0.6&marker=0.8&refusal=0.06&cut=0.1"},
            "strong": {"model": "scripted:student?skill=0.9"},
        },
        "graders": {"judge": {"model": "scripted:grader?noise=0.05&unreadable=0.2", "rounds": 3, "attempts": 2}},
        "steps": [evaluation | {"settings": ["train", "held-out"], "k": [1, 2], "combinations": 2, "generations": 2}],
    }


def _dataset(name: str, *, target: int) -> Document:
    step = {"name": name, "stage": "dataset", "writer": "strong", "graders": ["judge"], "k": [1, 2]}
    return {**step, "target": target, "near_duplicates": None}


def _write(document: Document) -> None:
    Path("run.yaml").write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def _run(document: Document) -> None:
    _write(document)
    _command("run", "run.yaml", "--json")


def _command(*words: str, ends: int | None = None) -> str:
    """Run a command and return its output; exit status 1, for replies that cannot be parsed, is accepted."""
    command: Any = importlib.import_module("skillmix.commands").main
    with redirect_stdout(io.StringIO()) as out:
        status = command([*words])
    if status not in ((0, 1) if ends is None else (ends,)):
        raise SystemExit(f"skillmix {' '.join(words)} ended with exit status {status}")
    return out.getvalue()


def _rewrite_journal(run: Path, version: int) -> None:
    """Move the rows of a journal into tables of an older version, and delete other files with the run's progress."""
    journal = run / "journal/calls.sqlite"
    source = subprocess.run(
        ["git", "show", ":".join(OLD_SCHEMAS[version])], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    tables = re.search(r'SCHEMA: Final = """(.*?)"""', source, re.DOTALL)
    assert tables is not None
    old = journal.with_name("old.sqlite")
    with closing(sqlite3.connect(old)) as connection:
        connection.executescript(f"{tables[1]} PRAGMA application_id = 0x736B6D78; PRAGMA user_version = {version};")
        connection.execute("ATTACH ? AS new", (str(journal),))
        for table in ("combinations", "messages", "calls", "tries"):
            names = ", ".join(row[1] for row in connection.execute(f"PRAGMA main.table_info({table})"))
            connection.execute(f"INSERT INTO main.{table} ({names}) SELECT {names} FROM new.{table} ORDER BY rowid")
        connection.commit()
    for file in [*journal.parent.glob("calls.sqlite*"), *run.glob("*.json")]:
        file.unlink()
    old.rename(journal)


# --- Packing ---


def _tidy(folder: Path, name: str) -> None:
    """Remove caches, complete the journals, and remove all information about the machine that made the run."""
    for journal in folder.rglob("*.sqlite"):
        with closing(sqlite3.connect(journal)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("VACUUM")
    for pattern in CACHES:
        for file in [*folder.rglob(pattern)]:
            file.unlink()
    manifest = folder / "runs" / name / "manifest.json"
    if manifest.exists():
        text = re.sub(r'"machine": "[^"]*"', '"machine": "a processor"', manifest.read_text(encoding="utf-8"))
        manifest.write_text(text, encoding="utf-8")
    for file in folder.rglob("*"):
        words = [str(folder.parent), str(ROOT), str(Path.home())]
        found = [word for word in words if file.is_file() and word.encode() in file.read_bytes()]
        if found:
            raise SystemExit(f"{file} names {', '.join(found)}")


def _pack(folder: Path, archive: Path) -> None:
    """Pack a folder without the owners of its files."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name, filter=plain)


def _describe(name: str, folder: Path) -> None:
    """Write the output of commands for the packed run, one row per line."""
    folder.mkdir()
    unpack(name, folder)
    with chdir(folder):
        parts = described(name)
    written = ",\n".join(f"{json.dumps(part)}: {_in_lines(rows)}" for part, rows in parts.items())
    (FIXTURES / f"{name}.json").write_text(f"{{{written}}}\n", encoding="utf-8")


def _in_lines(value: Any) -> str:
    if not isinstance(value, list):
        return _compact(value)
    return "[\n" + ",\n".join(_compact(row) for row in value) + "\n]"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    main(sys.argv[1:])
