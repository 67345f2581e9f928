"""Compare fine-tuning speed on one GPU: skillmix, plain padded transformers, its Trainer with flattened batches, TRL.

    python bench/train.py --shape mistral-7b --what baseline ours trainer
    python bench/train.py --shape llama2-13b --what baseline ours
    python bench/train.py --shape smollm2-135m --what baseline ours trainer
    python bench/train.py --shape smollm2-135m --what ours --batch 32 --length 370 --compile off on --lora 0 4

The weights are random and have the real shapes. The lengths of conversations are always the same draws from normal(620,
150), clipped to 250 … 1,024, or with `--length L` from normal(L, L / 4), clipped to L / 3 … 1,024. A useful token is
one that is not padding; utilization is 6 · N · useful tokens per second divided by 989 TFLOP/s, with N parameters. The
baseline is tried for one step at every setting, and then measured at its best setting. `--shape tiny --device cpu`
tests the script.
"""

import argparse
import gc
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

from skillmix.experiment.train_step import LoraSettings
from skillmix.training.data.examples import Example
from skillmix.training.job_run import with_adapter
from skillmix.training.step.engine import Engine
from skillmix.training.step.optimizer import TrainingRecipe

PEAK = 989e12
BATCH = 64


@dataclass(frozen=True)
class Shape:
    """A model's shape, and the size of its measurement."""

    config: Callable[[], Any]
    conversations: int
    """Measured conversations, after a warm-up."""
    screening: int
    """Conversations for the trial of each setting of the baseline."""


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    what: str
    tokens_per_second: float
    utilisation: float
    gib: float
    step: float
    """Seconds of one step."""
    first_loss: float
    first_norm: float | None


SHAPES = {
    "mistral-7b": Shape(
        lambda: MistralConfig(
            vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
            num_key_value_heads=8, sliding_window=None, max_position_embeddings=32768, tie_word_embeddings=False,
        ),
        4 * BATCH, BATCH,
    ),
    "llama2-13b": Shape(
        lambda: LlamaConfig(
            vocab_size=32000, hidden_size=5120, intermediate_size=13824, num_hidden_layers=40, num_attention_heads=40,
            num_key_value_heads=40, max_position_embeddings=4096, tie_word_embeddings=False,
        ),
        4 * BATCH, BATCH,
    ),
    "smollm2-135m": Shape(
        lambda: LlamaConfig(
            vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True,
        ),
        2000, 4 * BATCH,
    ),
    "tiny": Shape(
        lambda: LlamaConfig(
            vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=True,
        ),
        BATCH, BATCH,
    ),
}  # fmt: skip


def main() -> None:
    """Run the requested measurements; a setting that fails has its own line."""
    arguments = parsed()
    shape, device = SHAPES[arguments.shape], torch.device(arguments.device)
    model = build(shape, device)
    parameters = sum(p.numel() for p in model.parameters())
    del model
    data = examples(shape, arguments)
    tokens = sum(len(e.tokens) for e in data)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    note(f"{arguments.shape}: N = {parameters:,}; {len(data)} conversations, {tokens:,} tokens")
    note(f"{name}, torch {torch.__version__}")
    bench = Bench(shape, device, parameters, data, arguments)
    for what in arguments.what:
        {"baseline": bench.baseline, "ours": bench.ours, "trainer": bench.trainer, "trl": bench.trl}[what]()
    print(
        f"\n| {arguments.shape} | useful tokens/s | utilisation | GiB | s a step | loss of step 1 | its gradient norm |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for result in bench.results:
        print(row(result))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([asdict(r) for r in bench.results], indent=1), encoding="utf-8")


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument(
        "--what", nargs="+", default=["baseline", "ours"], choices=["baseline", "ours", "trainer", "trl"]
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--trained", type=float, default=0.5, help="share of tokens in answers")
    parser.add_argument("--micro", type=int, nargs="+", default=[8, 16, 32, 64], help="conversations per micro-batch")
    parser.add_argument("--baseline-precision", nargs="+", default=None, choices=["bf16", "autocast"])
    parser.add_argument("--attention", nargs="+", default=["sdpa"], help="attention of the Trainer")
    parser.add_argument("--precision", nargs="+", default=["auto"], help="skillmix: precision")
    parser.add_argument("--budget", type=int, nargs="+", default=[0], help="skillmix: tokens per micro-batch; 0: auto")
    parser.add_argument("--recompute", nargs="+", default=["auto"], help="skillmix: auto, on or off")
    parser.add_argument("--compile", nargs="+", choices=["auto", "on", "off"], help="skillmix; on by default on a GPU")
    parser.add_argument(
        "--lora", type=int, nargs="+", default=[0], help="skillmix: rank of an adapter; 0 trains all weights"
    )
    parser.add_argument("--batch", type=int, default=BATCH, help="conversations per step")
    parser.add_argument("--length", type=float, help="mean length of a conversation in tokens")
    parser.add_argument("--profile", action="store_true", help="skillmix: profile one step")
    parser.add_argument("--json", help="also write the table to this file")
    return parser.parse_args()


def build(shape: Shape, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Any:
    """Make the same random weights each time."""
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(shape.config(), dtype=dtype if device.type == "cuda" else torch.float32)


def examples(shape: Shape, arguments: argparse.Namespace) -> list[Example]:
    """Return the conversations for the warm-up and the measurement, each with two prompts and two answers."""
    rng, mean = np.random.default_rng(0), arguments.length
    spread, shortest = (150, 250) if mean is None else (mean / 4, mean / 3)
    found = []
    for number in range(arguments.batch + shape.conversations):
        length = int(np.clip(rng.normal(mean or 620, spread), shortest, 1024))
        is_trained = np.zeros(length, dtype=bool)
        answer, half = max(1, round(arguments.trained * length / 2)), length // 2
        is_trained[half - answer : half] = True
        is_trained[length - answer :] = True
        is_trained[0] = False
        tokens = rng.integers(0, shape.config().vocab_size, length).astype(np.int32)
        found.append(Example(str(number), tokens, is_trained, is_replay=False))
    return found


class Bench:
    """The measurements of one shape."""

    def __init__(
        self, shape: Shape, device: torch.device, parameters: int, data: list[Example], arguments: argparse.Namespace
    ) -> None:
        self.shape, self.device, self.parameters, self.data = shape, device, parameters, data
        self.arguments, self.batch = arguments, arguments.batch
        self.results: list[Result] = []

    def ours(self) -> None:
        """Measure every requested combination of settings."""
        given = self.arguments
        compiled_or_not = given.compile or ["on" if self.device.type == "cuda" else "off"]
        settings = product(given.precision, given.recompute, given.budget, compiled_or_not, given.lora)
        for precision, recompute, budget, compiled, rank in settings:
            label = f"ours, {precision}, recompute {recompute}, compile {compiled}{f', LoRA {rank}' if rank else ''}"
            recipe = TrainingRecipe(
                precision=precision, recompute=recompute, token_budget=budget or None, compile=compiled,
                steps=len(self.data) // self.batch + 2, lora=LoraSettings(rank=rank) if rank else None,
            )  # fmt: skip
            self._try(label, partial(self._ours, recipe))

    def baseline(self) -> None:
        """Try every setting briefly, then measure the best one."""
        best: tuple[Result, dict[str, Any]] | None = None
        default = ["bf16", "autocast"] if self.parameters < 1e9 else ["bf16"]
        for precision in self.arguments.baseline_precision or default:
            for recompute in (False, True):
                for micro in self.arguments.micro:
                    settings = {"micro": micro, "recompute": recompute, "precision": precision}
                    label = f"plain {precision}, micro-batch {micro}{', recompute' * recompute} (short)"
                    few = self.batch + self.shape.screening
                    found = self._try(label, partial(self._baseline, few, **settings))
                    if found and (best is None or found.tokens_per_second > best[0].tokens_per_second):
                        best = found, settings
        if best:
            label = best[0].what.replace("(short)", "(best)")
            self._try(label, partial(self._baseline, len(self.data), **best[1]))

    def trainer(self) -> None:
        """Measure the transformers Trainer with its flattening collator."""
        for attention in self.arguments.attention:
            for recompute in (False, True):
                for micro in self.arguments.micro:
                    label = f"Trainer, flattened, {attention}, micro-batch {micro}{', recompute' * recompute}"
                    self._try(label, partial(self._trainer, micro, recompute, attention))

    def trl(self) -> None:
        """Measure TRL's SFTTrainer without padding."""
        for recompute in (False, True):
            for micro in self.arguments.micro:
                label = f"TRL, padding-free, micro-batch {micro}{', recompute' * recompute}"
                self._try(label, partial(self._trl, micro, recompute))

    def batches(self, data: Sequence[Example]) -> Iterator[Sequence[Example]]:
        """Yield steps, of which the last may be smaller."""
        for start in range(0, len(data), self.batch):
            yield data[start : start + self.batch]

    def _try(self, label: str, measure: Callable[[], Result]) -> Result | None:
        """Return a measurement; if it fails, print the reason and return None. Free the memory in both cases."""
        self._clean()
        started, result = time.perf_counter(), None
        try:
            result = Result(**{**asdict(measure()), "what": label})
        except torch.OutOfMemoryError:
            note(f"| {label} | out of memory |")
        except Exception as error:  # noqa: BLE001 - a failing setting must not prevent the others
            note(f"| {label} | failed: {type(error).__name__}: {' '.join(str(error).split())[:600]} |")
        if result:
            self.results.append(result)
            note(f"{row(result)} {time.perf_counter() - started:.0f} s in all")
        self._clean()
        return result

    def _clean(self) -> None:
        torch.compiler.reset()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def _ours(self, recipe: TrainingRecipe) -> Result:
        model = build(self.shape, self.device)
        if recipe.lora is not None:
            model = with_adapter(model, recipe.lora, seed=0)
        engine = Engine(model, recipe)
        try:
            steps = list(self.batches(self.data))
            started = time.perf_counter()
            first = engine.step(0, steps[0])
            note(
                f"  {engine.precision.name}, budget {engine.budget}, {first.micro_batches} micro-batches, first step "
                f"with compilation {time.perf_counter() - started:.1f} s, loss {first.answers:.5f}"
            )
            engine.step(1, steps[0])
            timed = Stretch(self)
            for number, conversations in enumerate(steps[1:], start=2):
                done = engine.step(number, conversations)
            result = timed.result(steps[1:], loss=first.answers, norm=first.norm)
            note(f"  budget {engine.budget}, {done.micro_batches} micro-batches at the end")
            if self.arguments.profile:
                profile(lambda: engine.step(number + 1, steps[1]))
            return result
        finally:
            engine.close()

    def _baseline(self, count: int, *, micro: int, recompute: bool, precision: str) -> Result:
        is_autocast = precision == "autocast" and self.device.type == "cuda"
        model = build(self.shape, self.device, torch.float32 if is_autocast else torch.bfloat16).train()
        model.config.use_cache = False
        if recompute:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.0, fused=True)
        casting = torch.autocast("cuda", dtype=torch.bfloat16) if is_autocast else nullcontext()

        def step(conversations: Sequence[Example]) -> tuple[float, float]:
            total = torch.zeros((), device=self.device)
            trained = sum(int(e.is_trained.sum()) for e in conversations)
            for start in range(0, len(conversations), micro):
                inputs = padded(conversations[start : start + micro], self.device)
                with casting:
                    loss = model(**inputs, use_cache=False, num_items_in_batch=torch.tensor(trained)).loss
                loss.backward()
                total += loss.detach()
            norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return float(total), float(norm)

        steps = list(self.batches(self.data[:count]))
        loss, norm = step(steps[0])
        timed = Stretch(self)
        for conversations in steps[1:]:
            step(conversations)
        return timed.result(steps[1:], loss=loss, norm=norm)

    def _trainer(self, micro: int, recompute: bool, attention: str) -> Result:
        from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

        model = build(self.shape, self.device)
        model.set_attn_implementation(attention)
        watch = watcher(self)
        trainer = Trainer(
            model=model,
            args=TrainingArguments(**self._settings(micro, recompute)),
            data_collator=DataCollatorWithFlattening(),
            train_dataset=Rows(self._few()),
            callbacks=[watch],
        )
        trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(trainer.train_dataset)
        trainer.train()
        return self._watched(watch, trainer)

    def _trl(self, micro: int, recompute: bool) -> Result:
        from trl import SFTConfig, SFTTrainer

        from datasets import Dataset

        watch = watcher(self)
        settings = SFTConfig(**self._settings(micro, recompute), padding_free=True, max_length=None)
        trainer = SFTTrainer(
            model=build(self.shape, self.device),
            args=settings,
            processing_class=no_tokenizer(),
            train_dataset=Dataset.from_list([labelled(e) for e in self._few()]),
            callbacks=[watch],
        )
        trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(trainer.train_dataset)
        trainer.train()
        return self._watched(watch, trainer)

    def _few(self) -> list[Example]:
        """Return the conversations for the warm-up and the trial of a setting, twice as many if they are one step."""
        return self.data[: self.batch + max(2 * self.batch, self.shape.screening)]

    def _settings(self, micro: int, recompute: bool) -> dict[str, Any]:
        return {
            "output_dir": "/tmp/skillmix-bench",
            "per_device_train_batch_size": micro,
            "gradient_accumulation_steps": self.batch // micro,
            "max_steps": len(self._few()) // self.batch,
            "optim": "adamw_torch_fused",
            "learning_rate": 2e-5,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.0,
            "bf16": self.device.type == "cuda",
            "use_cpu": self.device.type == "cpu",
            "gradient_checkpointing": recompute,
            "gradient_checkpointing_kwargs": {"use_reentrant": False},
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "remove_unused_columns": False,
            "disable_tqdm": True,
            "dataloader_num_workers": 0,
        }

    def _watched(self, watch: Any, trainer: Any) -> Result:
        losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        steps = list(self.batches(self._few()))
        result: Result = watch.timed.result(steps[1:], loss=float(losses[0]), norm=None)
        return result


class Rows(torch.utils.data.Dataset):  # type: ignore[misc]
    """Examples in the form that the Trainer expects."""

    def __init__(self, data: Sequence[Example]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return labelled(self.data[index])


def watcher(bench: Bench) -> Any:
    """Return a callback that starts the clock after the first step."""
    from transformers import TrainerCallback

    class Watch(TrainerCallback):  # type: ignore[misc]
        timed: Stretch | None = None

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if self.timed is None:
                self.timed = Stretch(bench)
            self.timed.look()

    return Watch()


class Stretch:
    """Measures the time in which some steps are trained."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.started = self.ended = self._now()

    def look(self) -> None:
        """Record a possible end of the interval."""
        self.ended = self._now()

    def result(self, steps: Sequence[Sequence[Example]], *, loss: float, norm: float | None) -> Result:
        """Return the duration of these steps until now or until the last record."""
        seconds = (self.ended if self.ended > self.started else self._now()) - self.started
        rate = sum(len(e.tokens) for step in steps for e in step) / seconds
        on_gpu = self.bench.device.type == "cuda"
        return Result(
            what="",
            tokens_per_second=rate,
            utilisation=6 * self.bench.parameters * rate / PEAK,
            gib=torch.cuda.max_memory_reserved() / 2**30 if on_gpu else 0.0,
            step=seconds / (sum(len(step) for step in steps) / self.bench.batch),
            first_loss=loss,
            first_norm=norm,
        )

    def _now(self) -> float:
        if self.bench.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def labelled(example: Example) -> dict[str, list[int]]:
    """Return tokens, and labels that are -100 for untrained tokens."""
    labels = np.where(example.is_trained, example.tokens, -100)
    return {"input_ids": example.tokens.tolist(), "labels": labels.tolist()}


def no_tokenizer() -> Any:
    """Return a minimal tokenizer for TRL; the examples are already tokenized."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<pad>": 0, "<end>": 1}, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")


def padded(conversations: Sequence[Example], device: torch.device) -> dict[str, torch.Tensor]:
    """Collate conversations in the usual way."""
    longest = max(len(e.tokens) for e in conversations)
    shape = len(conversations), longest
    tokens, labels, mask = np.zeros(shape, np.int64), np.full(shape, -100), np.zeros(shape, np.int64)
    for place, example in enumerate(conversations):
        length = len(example.tokens)
        tokens[place, :length], mask[place, :length] = example.tokens, 1
        labels[place, :length] = np.where(example.is_trained, example.tokens, -100)
    names = {"input_ids": tokens, "labels": labels, "attention_mask": mask}
    return {name: torch.from_numpy(array).to(device) for name, array in names.items()}


def profile(step: Callable[[], Any]) -> None:
    """Print a step's time on the GPU by kernel, and the time in which the GPU was idle."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    with profiler(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        started = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    kernels: dict[str, float] = {}
    for event in found.key_averages():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kernels[event.key] = kernels.get(event.key, 0.0) + event.self_device_time_total / 1e6
    note(f"  one step {seconds:.3f} s, of which kernels {sum(kernels.values()):.3f} s:")
    for name, taken in sorted(kernels.items(), key=lambda item: -item[1])[:25]:
        note(f"  {taken / seconds:6.1%} {taken:8.3f} s  {name[:110]}")


def row(result: Result) -> str:
    """Return a line of the table."""
    norm = "" if result.first_norm is None else f"{result.first_norm:.4f}"
    return (
        f"| {result.what} | {result.tokens_per_second:,.0f} | {result.utilisation:.1%} | {result.gib:.1f} | "
        f"{result.step:.3f} | {result.first_loss:.5f} | {norm} |"
    )


def note(line: str) -> None:
    """Print a line and flush it, because the machine may be stopped at any time."""
    print(line, flush=True)


if __name__ == "__main__":
    main()
