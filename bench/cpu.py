"""Measure generation on a CPU: its share of the machine's matrix product rate, and its speed relative to `generate`.

    python bench/generate.py --write-prompts FILE
    OMP_NUM_THREADS=2 python bench/cpu.py --prompts FILE --model FOLDER [--batches 8 16 32]

Every conversation has a different combination and two turns. The useful operations are two for each weight in a matrix
product and each token: every distinct prompt token once (shared prefixes count once, and so does a reply that becomes
part of the next prompt), every generated token once, and the output layer only for these. Attention is reported
separately. The machine's rate is the best of several float32 products of 2048 × 2048 matrices, measured immediately
before and after with the same threads. Shares are reported by wall time and by processor time, because other work on
the machine affects wall time. `generate` runs in a separate process.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from generate import TEMPERATURE, Ours, Prompts, loaded_model, plain, read_prompts, second
from skillmix.calls import Decoding, GenerateKey, Request

_SIDE = 2048


class Seconds(NamedTuple):
    """Wall and processor seconds of some work."""

    wall: float
    cpu: float


def requests_of(prompts: Prompts, count: int, tokens: int) -> list[Request]:
    """Return one conversation for each of the first combinations."""
    decoding = Decoding(TEMPERATURE, tokens)
    return [Request(GenerateKey("s", str(n), 0, 1), "m", prompts.first(n), decoding, n) for n in range(count)]


def timed(work: Callable[[], Any]) -> tuple[Seconds, Any]:
    """Do some work, and return its time and its result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return Seconds(time.perf_counter() - wall, time.process_time() - cpu), result


def product_rates() -> tuple[float, float]:
    """Measure the operations per second of a large matrix product, by wall time and by processor time."""
    import torch

    first, other = torch.randn(_SIDE, _SIDE), torch.randn(_SIDE, _SIDE)
    runs = [timed(partial(torch.mm, first, other))[0] for _ in range(12)][2:]
    return 2 * _SIDE**3 / min(run.wall for run in runs), 2 * _SIDE**3 / min(run.cpu for run in runs)


def distinct_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """Count the tokens of prompts, counting shared prefixes once."""
    count, before = 0, list[int]()
    for prompt in sorted(map(list, prompts)):
        same = next((n for n, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b), len(before))
        count, before = count + len(prompt) - min(same, len(prompt)), prompt
    return count


class Work(NamedTuple):
    """The tokens and operations that conversations require."""

    read: int
    written: int
    operations: float
    attention: float


def work_of(loaded: Any, ours: Ours, prompts: Prompts, requests: Sequence[Request]) -> Work:
    """Compute the tokens and operations of finished conversations."""
    import torch

    from skillmix.models.local.attention import CacheShape

    replies = {key[0]: reply for key, reply in ours.replies.items() if key[2] == 1}
    asked = [r.messages for r in requests]
    asked += [
        second(r, replies[r.key.combination].text, prompts.second(int(r.key.combination))).messages for r in requests
    ]
    rows = loaded.renderer.tokens(asked)
    read, written = distinct_tokens(rows), sum(reply.output_tokens or 0 for reply in ours.replies.values())
    products = [m for m in loaded.model.get_decoder().modules() if isinstance(m, torch.nn.Linear)]
    weights = sum(m.in_features * m.out_features for m in products)
    head = loaded.model.get_output_embeddings()
    shape = CacheShape(loaded.model)
    per_pair = 4 * shape.layers * shape.heads * shape.groups * shape.head_size
    mean = sum(map(len, rows)) / len(rows)
    return Work(
        read,
        written,
        2.0 * weights * (read + written) + 2.0 * head.in_features * head.out_features * written,
        per_pair * (read * mean / 2 + written * mean),
    )


def ours_at(slots: int, loaded: Any, prompts: Prompts, requests: list[Request]) -> Seconds:
    """Generate all conversations and print the shares."""
    ours = Ours(loaded, prompts, slots, [])
    prepared, _ = timed(partial(ours.run, requests[:1]))
    ours.generator.read_tokens = 0
    before = product_rates()
    seconds, _ = timed(partial(ours.run, requests))
    wall, cpu = (max(rates) for rates in zip(before, product_rates(), strict=True))
    work = work_of(loaded, ours, prompts, requests)
    print(
        f"{slots} slots: {seconds.wall:.1f} s, {seconds.cpu:.1f} s of processors, {work.written / seconds.wall:.0f} "
        f"new tokens/s; {work.written} written, {work.read} to read, {ours.generator.read_tokens} read "
        f"(first conversation with the trial of products: {prepared.wall:.1f} s)\n"
        f"  {work.operations / seconds.wall / 1e9:.0f} GFLOP/s of {wall / 1e9:.0f}: "
        f"{work.operations / seconds.wall / wall:.0%} of the matrix product rate by wall time, "
        f"{work.operations / seconds.cpu / cpu:.0%} by processor time; "
        f"with attention {(work.operations + work.attention) / seconds.wall / wall:.0%} and "
        f"{(work.operations + work.attention) / seconds.cpu / cpu:.0%}",
        flush=True,
    )
    return seconds


def baseline(options: argparse.Namespace, prompts: Prompts, requests: list[Request]) -> None:
    """Run `generate` on one batch of each size, then on all conversations at the best batch size."""
    loaded = loaded_model(options.model, None, "cpu", is_plain=True)
    run = partial(plain, loaded, prompts, ends=False)
    run(requests[:2], 2)  # load libraries
    found = {}
    for batch in options.batches:
        found[batch] = seconds, tokens = timed(partial(run, requests[:batch], batch))
        print(f"generate, batch {batch}: {seconds.wall:.1f} s, {tokens / seconds.wall:.0f} new tokens/s", flush=True)
    best = max(found, key=lambda batch: found[batch][1] / found[batch][0].wall)
    seconds, tokens = found[best]
    if best < len(requests):
        seconds, tokens = timed(partial(run, requests, best))
    print(
        f"generate, all, batch {best}: {seconds.wall:.1f} s, {seconds.cpu:.1f} s of processors, "
        f"{tokens / seconds.wall:.0f} new tokens/s",
        flush=True,
    )
    print(json.dumps(seconds), flush=True)


def seconds_of_baseline() -> Seconds:
    """Run `baseline` in a separate process, print its lines, and return its time."""
    command = [sys.executable, *sys.argv, "--baseline"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = ""
        for line in process.stdout:
            if line.startswith("generate"):
                print(line, end="", flush=True)
    if process.returncode:
        sys.exit("generate failed")
    return Seconds(*json.loads(line))


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--conversations", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--slots", type=int, nargs="+", default=[32])
    parser.add_argument("--batches", type=int, nargs="*", default=[])
    parser.add_argument("--baseline", action="store_true", help="only run `generate`")
    options = parser.parse_args()
    prompts = read_prompts(options.prompts)
    requests = requests_of(prompts, options.conversations, options.tokens)
    if options.baseline:
        return baseline(options, prompts, requests)
    theirs = seconds_of_baseline() if options.batches else None
    loaded = loaded_model(options.model, None, "cpu")
    ours = min(ours_at(slots, loaded, prompts, requests) for slots in options.slots)
    if theirs is not None:
        print(
            f"ours is {theirs.wall / ours.wall:.2f} times as fast as `generate` at its best batch, "
            f"{theirs.cpu / ours.cpu:.2f} times by processor time",
            flush=True,
        )


if __name__ == "__main__":
    main()
