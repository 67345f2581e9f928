"""What a run records about its invocations, and what a report says where an older run has no record."""

import json
from pathlib import Path

from skillmix.commands import main
from skillmix.runs.finished.manifest import Invocations, machine_in_words, read_invocations

EXPERIMENT = (
    "name: x\ncatalog: paper\n"
    "students: {s: {model: 'scripted:student'}, w: {model: 'scripted:student', prompts: worked}}\n"
    "graders: {g: {model: 'scripted:grader', rounds: 1}}\nsteps:\n"
    "- {name: e, stage: evaluate, students: [s, w], graders: [g], settings: [all], k: [1], combinations: 3}\n"
)


def test_a_run_records_machine_versions_and_the_hash_of_every_prompt_set(in_folder: Path) -> None:
    (in_folder / "x.yaml").write_text(EXPERIMENT, encoding="utf-8")
    assert main(["run", "x.yaml"]) == 0

    found = read_invocations(in_folder / "runs" / "x")

    assert found.machines == (machine_in_words(),)
    assert found.prompts is not None and set(found.prompts) == {"standard", "worked"}
    assert len(found.versions) == 1 and found.versions[0].startswith("skillmix ")


def test_a_later_invocation_that_made_no_call_changes_nothing(in_folder: Path) -> None:
    (in_folder / "x.yaml").write_text(EXPERIMENT, encoding="utf-8")
    assert main(["run", "x.yaml"]) == 0
    before = read_invocations(in_folder / "runs" / "x")
    file = in_folder / "runs" / "x" / "manifest.json"
    entries = json.loads(file.read_text(encoding="utf-8"))

    file.write_text(json.dumps([*entries, {**entries[0], "called": 0, "machine": "another"}]), encoding="utf-8")

    assert read_invocations(in_folder / "runs" / "x") == before


def test_an_older_or_damaged_manifest_leaves_facts_unknown(tmp_path: Path) -> None:
    assert read_invocations(tmp_path) == Invocations()
    for text in ("{", "3", '["x", {"at": "2026-01-01T00:00:00+00:00", "prompts": 3}]'):
        (tmp_path / "manifest.json").write_text(text, encoding="utf-8")
        found = read_invocations(tmp_path)
        assert (found.machines, found.versions, found.prompts) == ((), (), None)
