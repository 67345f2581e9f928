"""A hostile server with every kind of reply: each ends in a true line, and nothing is lost, leaked or made up."""

import json
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.kinds import KINDS, Kind, kinds_for
from tests.hostile.replies import Protocol
from tests.hostile.server import HostileServer, hostile_server
from tests.hostile.visit import holds_key

PROTOCOLS: tuple[Protocol, ...] = ("openai", "anthropic")
CONVERSATIONS = 2
STATUSES = {"missing": 1, "one missing": 1, "unreadable": 1, "fatal": 2, "outcome": 0, "accepted": 0, "passes": 0}
MOST_MB = 300
LONGEST = 8.0
WORST_CALL = 0.02
"""US dollars: more than any call of these runs can cost."""
CONTROLS = {*map(chr, range(32)), *map(chr, range(127, 160)), "\u202e", "\u2066", "\u200f"} - {"\n"}


def test_there_are_enough_kinds_for_both_protocols() -> None:
    for protocol in PROTOCOLS:
        names = [kind.name for kind in KINDS.values() if protocol in kind.protocols]
        assert len(set(names)) == len(names) >= 120
    met = [kinds_for(protocol) for protocol in PROTOCOLS]
    assert met[0] | met[1] == KINDS
    assert all(len(kinds) >= 120 for kinds in met)


Visits = tuple[list[dict[str, Any]], list[str]]
"""What became of every kind, and the requests that went astray."""


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> dict[Protocol, Future[Visits]]:
    """The visits of both protocols, made at the same time: while one waits for a timeout, the other works."""
    with ThreadPoolExecutor() as pool:
        return {protocol: pool.submit(toured, protocol, tmp_path_factory.mktemp(protocol)) for protocol in PROTOCOLS}


def toured(protocol: Protocol, folder: Path) -> Visits:
    with hostile_server() as server:
        return visited(server, protocol, folder), server.strangers


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_kind_of_hostile_reply_ends_as_documented(
    protocol: Protocol, tour: dict[Protocol, Future[Visits]]
) -> None:
    visits, strangers = tour[protocol].result()

    wanted = [kind.name for kind in kinds_for(protocol).values()]
    assert [KINDS[visit["name"]].name for visit in visits] == wanted
    faults = [f"{KINDS[visit['name']].name}: {fault}" for visit in visits for fault in faults_of(visit)]
    assert not faults, "\n".join(faults)
    assert strangers == []


def visited(server: HostileServer, protocol: Protocol, folder: Path) -> list[dict[str, Any]]:
    """What became of every kind, in one process; a kind that ends that process is missing at the end."""
    command = [sys.executable, "-m", "tests.hostile.visit", server.address, protocol, str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    visits = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return visits


def faults_of(visit: dict[str, Any]) -> list[str]:
    kind = KINDS[visit["name"]]
    said = visit["err"]
    wanted = STATUSES[kind.end]
    checks = {
        f"exit status {visit['status']} and not {wanted}: {said[-600:]}": visit["status"] == wanted,
        f"{kind.says!r} is not in {said[-600:]!r} {sorted(set(visit['tries']))}": _is_said(kind, visit),
        f"a traceback: {said}": "Traceback" not in said,
        f"controls reach the terminal: {said!r}": not CONTROLS & set(said),
        f"the key is in {visit['leaks'] or said}": not visit["leaks"] and not holds_key((said + visit["out"]).encode()),
        f"the journal is damaged: {visit['integrity']}": visit["integrity"] == "ok",
        f"{visit['peak_mb']:.0f} MB": visit["peak_mb"] <= MOST_MB,
        f"{visit['seconds']:.1f} s": visit["seconds"] <= LONGEST,
    }
    return [fault for fault, is_fine in checks.items() if not is_fine] + _number_faults(kind, visit)


def _is_said(kind: Kind, visit: dict[str, Any]) -> bool:
    """Whether the line that the end calls for is there, with the kind's own words."""
    lines = visit["err"].splitlines()
    if kind.end in ("accepted", "outcome"):
        return not any(line.startswith(("failed:", "error:", "ungraded:")) for line in lines)
    if kind.end == "passes":
        return kind.says in visit["err"] or kind.says in visit["tries"] or not kind.says
    if kind.end == "fatal":
        return any(line.startswith("error:") for line in lines) and kind.says in visit["err"]
    count = 1 if kind.end == "one missing" else CONVERSATIONS
    # What is broken below a reply shows in more than one way, by how far the client got.
    failed = f"failed: {count} call" if kind.says else "failed: "
    return any(line.startswith((failed, "ungraded:")) and kind.says in line for line in lines)


def _number_faults(kind: Kind, visit: dict[str, Any]) -> list[str]:
    """Nothing missing is a number, a good server completes the run, and no try is cheaper than nothing."""
    faults = []
    scored = json.loads(visit["out"]) if visit["out"] else []
    if kind.end in ("missing", "one missing", "unreadable"):
        made = CONVERSATIONS - 1 if kind.end == "one missing" else 0
        faults += [f"{row['complete']} are complete" for row in scored if row["complete"] != made]
        faults += [f"the score is {row['value']}" for row in scored if row["value"] not in (None, 1.0)]
    if visit["again"] != (1 if kind.end == "unreadable" else 0):
        faults.append(f"against a good server the exit status is {visit['again']}")
    value, complete = {"outcome": (0.0, CONVERSATIONS), "unreadable": (None, 0)}.get(kind.end, (1.0, CONVERSATIONS))
    final = [(row["value"], row["complete"]) for row in visit["scores"] if row["metric"] == "full_marks"]
    if final != [(value, complete)]:
        faults.append(f"against a good server the scores are {final}")
    if not 0 <= visit["spent"] <= WORST_CALL * len(visit["tries"]):
        faults.append(f"{visit['spent']} US dollars for {len(visit['tries'])} tries")
    if visit["replies"] and not visit["spent"]:
        faults.append("replies cost nothing")
    return faults
