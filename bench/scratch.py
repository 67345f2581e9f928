"""Measure the CPU time of training a student from scratch, with skillmix and a plain loop, and of evaluating it.

    OMP_NUM_THREADS=1 python bench/scratch.py --steps 1000 --what plain ours texts

Both train `new:tiny` on the same synthetic conversations (500 words, requests of 5 to 12 tokens, texts of 11 to 25)
in batches of 48, with Muon at .02, Adam at 3e-3 and a cosine schedule. The plain loop pads its batches, uses PyTorch's
causal attention, AdamW and Muon, and computes every logit; its data are already tokenized. `ours` is a whole train
step, from the file of conversations to the checkpoint, and `start` the preceding imports of torch and transformers.
`texts` is a whole process with `skillmix run` of an evaluate step of 1,500 texts of two turns, with at most 40 tokens
each.
"""

import argparse
import json
import math
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import nn
from torch.nn import functional

from skillmix.files import SHIPPED
from skillmix.models.shapes import ModelShape

BATCH, RATE, ADAM_RATE, WARMUP = 48, 0.02, 3e-3, 50
SHAPE = ModelShape(96, 2, 4)


def conversations(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return requests that name some of 120 words, and texts that use them in clauses of a small grammar."""
    draw = random.Random(seed)
    words = [
        "".join(draw.choice(s) for s in ("bdfgklmnprst", "aeiou", "bdgklmnrst", "aeiou", "nrst")) for _ in range(600)
    ]
    items, fillers = words[:120], words[120:480]
    rows = []
    for _ in range(count):
        chosen = draw.sample(items, draw.randint(2, 5))
        request = " ; ".join(
            f"{word} {items[-1 - items.index(word)]}" if draw.random() < 0.4 else word for word in chosen
        )
        clauses = [" ".join([draw.choice(fillers) for _ in range(draw.randint(2, 4))] + [word]) for word in chosen]
        rows.append((request, (", ".join(clauses) + ".").capitalize()))
    return rows


class PlainLayer(nn.Module):  # type: ignore[misc]
    """A Llama layer."""

    def __init__(self) -> None:
        super().__init__()
        width, inner = SHAPE.width, SHAPE.inner
        self.before, self.between = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Return the hidden states after the layer."""
        rows, length, width = hidden.shape
        normed = self.before(hidden)
        q, k, v = (
            product(normed).view(rows, length, SHAPE.heads, -1).transpose(1, 2) for product in (self.q, self.k, self.v)
        )
        q, k = (turned(x, cos[:length], sin[:length]) for x in (q, k))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = hidden + self.o(attended.transpose(1, 2).reshape(rows, length, width))
        normed = self.between(hidden)
        return hidden + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of numbers by their positions."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


class PlainModel(nn.Module):  # type: ignore[misc]
    """A Llama model with tied embeddings."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(words, SHAPE.width)
        nn.init.normal_(self.embeddings.weight, std=0.02)
        self.layers = nn.ModuleList(PlainLayer() for _ in range(SHAPE.layers))
        self.norm = nn.RMSNorm(SHAPE.width, eps=1e-6)
        size = SHAPE.width // SHAPE.heads
        angles = torch.arange(256)[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
        self.cos, self.sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of every token."""
        hidden = self.embeddings(tokens)
        for layer in self.layers:
            hidden = layer(hidden, self.cos, self.sin)
        return functional.linear(self.norm(hidden), self.embeddings.weight)


def plain(rows: list[tuple[str, str]], steps: int) -> tuple[float, float]:
    """Return the CPU seconds and the last loss of the plain loop."""
    talks = [
        (["<user>", *ask.split(), "<assistant>"], [*text.replace(",", " ,").replace(".", " .").split(), "</s>"])
        for ask, text in rows
    ]
    number = {word: n for n, word in enumerate(sorted({word for ask, text in talks for word in (*ask, *text)}))}
    data = [([number[word] for word in ask], [number[word] for word in text]) for ask, text in talks]
    begun = time.process_time()
    torch.manual_seed(0)
    model = PlainModel(len(number))
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
    optimizers = [
        torch.optim.AdamW(others, lr=ADAM_RATE, weight_decay=0.0),
        torch.optim.Muon(matrices, lr=RATE, weight_decay=0.0),
    ]
    course = [
        torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda n: min((n + 1) / WARMUP, 0.5 * (1 + math.cos(math.pi * max(0, n - WARMUP) / (steps - WARMUP)))),
        )
        for optimizer in optimizers
    ]
    draw = np.random.default_rng(0)
    losses: list[float] = []
    for _ in range(steps):
        batch = [data[n] for n in draw.integers(0, len(data), BATCH)]
        longest = max(len(ask) + len(text) for ask, text in batch)
        tokens = torch.zeros(BATCH, longest, dtype=torch.long)
        labels = torch.full((BATCH, longest), -100)
        for row, (ask, text) in enumerate(batch):
            end = len(ask) + len(text)
            tokens[row, :end] = torch.tensor(ask + text)
            labels[row, len(ask) : end] = torch.tensor(text)
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        loss.backward()
        for optimizer, schedule in zip(optimizers, course, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return time.process_time() - begun, sum(losses[-20:]) / 20


def experiment(rows: list[tuple[str, str]], steps: int, folder: Path) -> Path:
    """Return an experiment with a train step on the conversations and an evaluate step."""
    short_prompts(folder)
    (folder / "data").mkdir()
    lines = [
        json.dumps({"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": text}]})
        for ask, text in rows
    ]
    (folder / "data" / "train.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    train = {
        "name": "m1", "stage": "train", "base": "scratch", "data": ["./data"], "steps": steps, "batch": BATCH,
        "learning_rate": RATE, "adam_learning_rate": ADAM_RATE, "optimizer": "muon", "schedule": "cosine",
        "warmup_steps": WARMUP,
    }  # fmt: skip
    ask = {
        "name": "asked",
        "stage": "evaluate",
        "students": ["step:m1"],
        "k": [1, 2, 3],
        "combinations": 500,
        "generations": 1,
        "settings": ["all"],
        "graders": ["code"],
    }
    document = {
        "name": "scratch",
        "catalog": "./catalog",
        "prompts": "./prompts",
        "students": {"scratch": {"model": "new:tiny", "max_tokens": 40}},
        "graders": {"code": {"model": "rules:"}},
        "steps": [train, ask],
    }
    path = folder / "scratch.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def short_prompts(folder: Path) -> None:
    """Write short prompts and definitions, like those for students from scratch."""
    shutil.copytree(SHIPPED / "verifiable", folder / "catalog")
    file = folder / "catalog" / "skills.yaml"
    skills = yaml.safe_load(file.read_text(encoding="utf-8"))
    file.write_text(yaml.safe_dump([{**skill, "definition": "so", "example": "so"} for skill in skills]))
    shutil.copytree(SHIPPED / "prompts" / "standard", folder / "prompts")
    (folder / "prompts" / "generate-1.txt").write_text("{topic} ; {skills} {definitions} Answer:")
    (folder / "prompts" / "generate-2.txt").write_text("{limit} Answer:")


def main() -> None:
    """Run the measurements named in the arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--texts", type=int, default=18000)
    parser.add_argument("--what", nargs="+", default=["plain", "ours", "texts"])
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    rows = conversations(arguments.texts)
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        path = experiment(rows, arguments.steps, Path(place))
        if "plain" in arguments.what:
            seconds, loss = plain(rows, arguments.steps)
            print(f"plain: {seconds:.1f} CPU-s, loss {loss:.3f}", flush=True)
        if "ours" in arguments.what:
            ours(path, is_profiled=arguments.profile)
        if "texts" in arguments.what:
            texts(path)


def ours(path: Path, *, is_profiled: bool) -> None:
    """Run a train step, from file to checkpoint."""
    import cProfile
    import pstats

    import skillmix.training.job_run  # noqa: F401  # counted as part of the start
    from skillmix.steps.run import train_steps

    profile = cProfile.Profile()
    begun = time.process_time()
    if is_profiled:
        profile.enable()
    train_steps(path)
    profile.disable()
    seconds = time.process_time() - begun
    losses = [json.loads(line)["answers"] for line in Path("runs/scratch/m1/training.jsonl").read_text().splitlines()]
    print(f"ours: {seconds:.1f} CPU-s, start {begun:.1f} CPU-s, loss {sum(losses[-20:]) / 20:.3f}", flush=True)
    if is_profiled:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)


def texts(path: Path) -> None:
    """Evaluate the trained model in a separate process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [str(Path(sys.executable).with_name("skillmix")), "run", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"texts: {seconds:.1f} CPU-s for the whole process, exit code {done.returncode}")
    if done.returncode:
        print(done.stdout[-1500:], done.stderr[-1500:])


if __name__ == "__main__":
    main()
