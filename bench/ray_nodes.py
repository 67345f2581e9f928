"""Runs on Ray against a chat server on loopback: calls a second by nodes, the owner's CPU time, and no Ray beside it.

    python bench/ray_nodes.py [--nodes 1 2 4] [--texts 300] [--latency 0.2] [--at-once 24] [--best-of 2]
    python bench/ray_nodes.py --writers 1 2 4 [--rows 40000]

The first form evaluates as bench/engine.py does: two turns and three gradings of every text. `--at-once` calls are in
flight for each node, so the server's delay and not the processor is the limit if the cores allow it. The nodes are
those of `ray.cluster_utils.Cluster`, all on this machine; server, nodes and driver share its cores. `of linear` is the
rate over nodes times the rate of one node. The rate is the server's: that of the middle 60 % of its calls. CPU time is
that of all threads of the driver, which owns the journal, from its first exchange with a worker to its last. The start
of Ray comes before: its CPU time differs by a tenth of a second from run to run, as much as a thousand rows take.
`no Ray` makes the same calls in one process, whose CPU time has the calls, too; it is the difference between this run
and one with a fifth of the texts.
The second form stores rows of made conversations as an owner does,
in batches of 64, into so many journal files, and prints rows a second and CPU time; then it reads them all.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from engine import on_ray, ours, rate_of, serve

CLIENTS = {"ray": on_ray, "alone": ours}


def main() -> None:
    """Serve, start a cluster, run one client, or compare them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--at-once", type=int, default=24)
    parser.add_argument("--best-of", type=int, default=2)
    parser.add_argument("--writers", type=int, nargs="+")
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--serve")
    parser.add_argument("--cluster", type=int)
    parser.add_argument("--client")
    parser.add_argument("--address")
    parser.add_argument("--store", type=int)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.latency)
    if options.cluster:
        return start_cluster(options.cluster)
    if options.client:
        return run_client(options.client, options.address, options.texts, options.at_once)
    if options.store:
        return store(options.store, options.rows)
    if options.writers:
        return compare_writers(options.writers, options.rows, options.best_of)
    compare_nodes(options)


# Nodes


def compare_nodes(options: argparse.Namespace) -> None:
    """Print one row for no Ray, and one for each number of nodes."""
    print(
        "| nodes | at once | calls | calls/s | of ideal | of linear | over no Ray | CPU ms a row | rows an exchange |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    with server(options.latency) as address:
        best: dict[int, dict[str, float]] = {}
        for _ in range(options.best_of):
            for nodes in [0, *options.nodes]:
                result = measured(nodes, address, options)
                print(nodes, result, file=sys.stderr, flush=True)
                before = best.get(nodes, result)
                faster = max(before, result, key=lambda one: one["rate"])
                best[nodes] = faster | {"cpu": min(before["cpu"], result["cpu"])}
    for nodes, result in best.items():
        at_once = options.at_once * max(1, nodes)
        ideal = result["rate"] * options.latency / at_once
        linear = result["rate"] / (max(1, nodes) * best[options.nodes[0]]["rate"] / options.nodes[0])
        over = 1 - result["rate"] / best[0]["rate"] if nodes == 1 else None
        cells = [nodes or "no Ray", at_once, f"{result['calls']:.0f}", f"{result['rate']:.0f}", f"{ideal:.0%}"]
        cells += [f"{linear:.0%}" if nodes else "", "" if over is None else f"{over:.1%}", f"{result['cpu']:.3f}"]
        cells += [f"{result['calls'] / result['exchanges']:.1f}" if nodes else ""]
        print("| " + " | ".join(map(str, cells)) + " |")


def measured(nodes: int, address: str, options: argparse.Namespace) -> dict[str, float]:
    """The rate of a whole run, and its CPU time for a row."""
    texts, at_once = options.texts * max(1, nodes), options.at_once * max(1, nodes)
    with cluster(nodes) as environment:
        if nodes:
            large = child("--client", "ray", address, texts, at_once, environment)
            return large | {"cpu": 1000 * large["owning"] / large["calls"]}
        small = child("--client", "alone", address, texts // 5, at_once, environment)
        large = child("--client", "alone", address, texts, at_once, environment)
    return large | {"cpu": 1000 * (large["cpu"] - small["cpu"]) / (large["calls"] - small["calls"])}


def child(
    mode: str, client: str, address: str, texts: int, at_once: int, environment: dict[str, str]
) -> dict[str, float]:
    """Run one client in a process of its own."""
    command = [sys.executable, __file__, mode, client, "--address", address]
    command += ["--texts", str(texts), "--at-once", str(at_once)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    if done.returncode:
        sys.exit(done.stderr)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def run_client(client: str, address: str, texts: int, at_once: int) -> None:
    """In the child: run, and print rate and CPU time."""
    from skillmix.runs.leases.owner import LeaseOwner

    packet_for, leave = LeaseOwner.packet_for, LeaseOwner.leave
    marks: list[float] = []

    def noted_packet(owner: LeaseOwner, worker: str) -> Any:
        marks.append(time.process_time())
        return packet_for(owner, worker)

    def noted_leave(owner: LeaseOwner) -> None:
        leave(owner)  # all rows are stored
        marks.append(time.process_time())

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(LeaseOwner, "packet_for", noted_packet),
        mock.patch.object(LeaseOwner, "leave", noted_leave),
    ):
        cpu = time.process_time()
        calls = CLIENTS[client](address, texts, at_once, folder)
        cpu = time.process_time() - cpu
        os.chdir("/")
    owning = {"owning": marks[-1] - marks[0], "exchanges": len(marks) - 1} if marks else {}
    print(json.dumps({"calls": calls, "cpu": cpu, **owning, **rate_of(address)}))


@contextmanager
def server(latency: float) -> Iterator[str]:
    """The address of a server in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        process = subprocess.Popen([sys.executable, __file__, "--serve", str(port_file), "--latency", str(latency)])
        try:
            while not port_file.exists() or not port_file.read_text(encoding="utf-8"):
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port_file.read_text(encoding='utf-8')}/v1"
        finally:
            process.terminate()
            process.wait()


@contextmanager
def cluster(nodes: int) -> Iterator[dict[str, str]]:
    """The environment in which a run finds a cluster of so many nodes; none for no nodes."""
    if not nodes:
        yield {}
        return
    command = [sys.executable, __file__, "--cluster", str(nodes)]
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield {"RAY_ADDRESS": next(json.loads(line) for line in process.stdout if line.startswith('"'))}


def start_cluster(nodes: int) -> None:
    """In the child: start nodes, print their address, and end them when standard input is closed."""
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(nodes - 1):
        started.add_node(num_cpus=1)
    print(json.dumps(started.address), flush=True)
    sys.stdin.read()
    started.shutdown()


# Writers


def compare_writers(writers: list[int], rows: int, best_of: int) -> None:
    """Print the rows that so many files take in a second."""
    print("| files | rows/s | CPU ms a row | MB | CPU ms a row, read in key order |")
    print("|---:|---:|---:|---:|---:|")
    results: dict[int, list[dict[str, float]]] = {}
    for _ in range(best_of):
        for files in writers:
            command = [sys.executable, __file__, "--store", str(files), "--rows", str(rows)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results.setdefault(files, []).append(json.loads(done.stdout))
    for files, found in results.items():
        rate, cpu = max(one["rate"] for one in found), min(one["cpu"] for one in found)
        read = min(one["read"] for one in found)
        print(f"| {files} | {rate:,.0f} | {1000 * cpu:.3f} | {found[0]['bytes'] / 1e6:.0f} | {1000 * read:.3f} |")


def store(files: int, rows: int) -> None:
    """In the child: store rows in batches, of which two are on their way at any time."""
    from skillmix.runs.journal.divided import run_journal
    from skillmix.runs.journal.journal import JournalReader

    tries = made_tries(rows)
    with tempfile.TemporaryDirectory() as folder, run_journal(Path(folder), files=files) as journal:
        thread = journal.in_thread()
        started, cpu = time.perf_counter(), time.process_time()
        under_way = []
        for start in range(0, rows, _BATCH):
            under_way.append(thread.record_tries(tries[start : start + _BATCH]))
            if len(under_way) > 2 * files:
                under_way.pop(0).result()
        thread.close()
        for future in under_way:
            future.result()
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        size = sum(file.stat().st_size for file in Path(folder).glob("*.sqlite*"))
        with JournalReader(Path(folder)) as reader:
            reading = time.process_time()
            read = sum(1 for stage in ("generate", "grade") for _ in reader.calls(stage))
            reading = time.process_time() - reading
    assert read == rows
    print(json.dumps({"rate": rows / seconds, "cpu": cpu / rows, "bytes": size, "read": reading / rows}))


_BATCH = 64


def made_tries(rows: int) -> list[Any]:
    """Tries of conversations with two turns and three gradings, many under way at once, each with words of its own."""
    from skillmix.calls import Decoding, GenerateKey, GradeKey, Message, Reply, Request, text_id
    from skillmix.catalog.combinations import combination_id
    from skillmix.runs.journal.row_writer import Try

    tries = []
    for number in range(rows):
        conversation, part = number // 5, number % 5
        combination = combination_id(["a", "b", "c"], str(conversation))
        first = Message("user", f"Write {combination} " + "x " * 400)
        answers = [f"Answer: {combination} {turn} " + "word " * 60 for turn in range(2)]
        if part < 2:
            later = (Message("assistant", answers[0]), Message("user", "Improve it")) if part else ()
            request = Request(GenerateKey("s", combination, 0, part + 1), "m", (first, *later), Decoding(), number)
            reply = Reply(answers[part], "stop", 400, 60)
        else:
            key = GradeKey("s", combination, 0, text_id(answers[1]), "g", part - 2, 0)
            grade = Message("user", f"The criteria: {answers[1]} " + "x " * 500)
            request = Request(key, "m", (grade,), Decoding(), number)
            reply = Reply(f"{combination} {part} " + "| x | 1 |\n" * 12, "stop", 400, 60)
        tries.append(Try(request, reply, 0.2, None, reply))
    return tries


if __name__ == "__main__":
    main()
