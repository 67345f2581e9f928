"""Measure runs on Ray against a local chat server: calls per second by the number of nodes, and the driver's CPU time.

    python bench/ray_nodes.py [--nodes 1 2 4] [--texts 300] [--latency 0.2] [--at-once 24] [--best-of 2]

The evaluation is that of bench/engine.py: two turns and three gradings of every text. `--at-once` calls are in flight
for each node, so that the server's delay and not the processor is the limit if there are enough cores. The nodes are
those of `ray.cluster_utils.Cluster` on this machine; server, nodes and driver share its cores. `of linear` is the rate
divided by the number of nodes and the rate of one node. The rate is that of the middle 60% of the calls at the server.
CPU time is the driver's, or without Ray the only process's, computed as the difference between a run and a run with a
fifth of the texts.
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

from engine import on_ray, ours, rate_of, serve

CLIENTS = {"ray": on_ray, "alone": ours}


def main() -> None:
    """Start a server, a cluster or one client, or compare the numbers of nodes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--at-once", type=int, default=24)
    parser.add_argument("--best-of", type=int, default=2)
    parser.add_argument("--serve")
    parser.add_argument("--cluster", type=int)
    parser.add_argument("--client")
    parser.add_argument("--address")
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.latency)
    if options.cluster:
        return start_cluster(options.cluster)
    if options.client:
        return run_client(options.client, options.address, options.texts, options.at_once)
    compare_nodes(options)


def compare_nodes(options: argparse.Namespace) -> None:
    """Print one row without Ray, and one for each number of nodes."""
    print("| nodes | at once | calls | calls/s | of ideal | of linear | over no Ray | CPU ms per call |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|", flush=True)
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
        print("| " + " | ".join(map(str, cells)) + " |")


def measured(nodes: int, address: str, options: argparse.Namespace) -> dict[str, float]:
    """Return the rate of a whole run, and its CPU time per call."""
    texts, at_once = options.texts * max(1, nodes), options.at_once * max(1, nodes)
    with cluster(nodes) as environment:
        client = "ray" if nodes else "alone"
        small = child("--client", client, address, texts // 5, at_once, environment)
        large = child("--client", client, address, texts, at_once, environment)
    return large | {"cpu": 1000 * (large["cpu"] - small["cpu"]) / (large["calls"] - small["calls"])}


def child(
    mode: str, client: str, address: str, texts: int, at_once: int, environment: dict[str, str]
) -> dict[str, float]:
    """Run one client in a separate process."""
    command = [sys.executable, __file__, mode, client, "--address", address]
    command += ["--texts", str(texts), "--at-once", str(at_once)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    if done.returncode:
        sys.exit(done.stderr)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def run_client(client: str, address: str, texts: int, at_once: int) -> None:
    """Run one client in the child process, and print its rate and CPU time."""
    with tempfile.TemporaryDirectory() as folder:
        cpu = time.process_time()
        calls = CLIENTS[client](address, texts, at_once, folder)
        cpu = time.process_time() - cpu
        os.chdir("/")
    print(json.dumps({"calls": calls, "cpu": cpu, **rate_of(address)}))


@contextmanager
def server(latency: float) -> Iterator[str]:
    """Yield the address of a server in a separate process."""
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
    """Yield the environment for a cluster of this many nodes; empty without nodes."""
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
    """In the child process, start nodes, print their address, and end them when standard input is closed."""
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(nodes - 1):
        started.add_node(num_cpus=1)
    print(json.dumps(started.address), flush=True)
    sys.stdin.read()
    started.shutdown()


if __name__ == "__main__":
    main()
