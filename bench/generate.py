"""Compare generation in skillmix with plain `generate`: two turns, three generations, from messages to texts.

    python bench/generate.py --write-prompts FILE [--prompt-set worked]        # needs only the catalog
    python bench/generate.py --prompts FILE --model FOLDER --ignore-ends --batches 512 1024 2048 4608
    python bench/generate.py --prompts FILE --model FOLDER --shape mistral-7b --conversations 384 --ignore-ends ...

Times include tokenization and detokenization. They exclude loading and the recording of steps on a GPU, which are
reported separately. `generate` runs in a separate process on an unmodified model: it generates one batch of each size,
and then all conversations at the best batch size. `--shape` uses random weights of that shape with the model's
tokenizer, whose ids are folded into the vocabulary.
"""

import argparse
import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from skillmix.calls import Decoding, GenerateKey, Message, Outcome, Reply, Request

TEMPERATURE = 0.7


class Prompts(NamedTuple):
    """The prompts of the conversations."""

    worked: tuple[Message, ...]
    """The messages before each conversation."""
    pairs: list[tuple[str, str]]

    def first(self, number: int) -> tuple[Message, ...]:
        """Return the first user prompt."""
        return (*self.worked, Message("user", self.pairs[number % len(self.pairs)][0]))

    def second(self, number: int) -> str:
        """Return the second user prompt."""
        return self.pairs[number % len(self.pairs)][1]


def write_prompts(path: str, combinations: int, prompt_set: str) -> None:
    """Write the prompts of evaluation combinations, k = 1 to 3, and worked examples."""
    from skillmix.catalog.combinations import Draw, draw_combinations
    from skillmix.catalog.files import load_catalog
    from skillmix.prompts.prompt_set import load_prompts

    catalog, prompts = load_catalog("verifiable"), load_prompts(prompt_set)
    pool = catalog.pool("all")
    drawn = [c for k in (1, 2, 3) for c in draw_combinations(Draw(pool, "all", k, 0), combinations // 3)]
    pairs = [prompts.student_prompts(catalog, c) for c in drawn]
    Path(path).write_text(json.dumps({"worked": prompts.worked_turns(), "pairs": pairs}), encoding="utf-8")


def read_prompts(path: str) -> Prompts:
    """Read the file of `write_prompts`."""
    found = json.loads(Path(path).read_text(encoding="utf-8"))
    worked = tuple(m for asked, said in found["worked"] for m in (Message("user", asked), Message("assistant", said)))
    return Prompts(worked, [(first, then) for first, then in found["pairs"]])


def requests_of(prompts: Prompts, count: int, tokens: int) -> list[Request]:
    """Return requests for three generations of each combination, in order."""
    decoding = Decoding(TEMPERATURE, tokens)
    asked = [prompts.first(n) for n in range(len(prompts.pairs))]
    return [
        Request(GenerateKey("s", str(n // 3), n % 3, 1), "m", asked[n // 3 % len(asked)], decoding, n)
        for n in range(count)
    ]


def second(request: Request, text: str, prompt: str) -> Request:
    """Return the request for the second turn of a conversation."""
    said = (*request.messages, Message("assistant", text), Message("user", prompt))
    assert isinstance(request.key, GenerateKey)
    key = GenerateKey("s", request.key.combination, request.key.generation, 2)
    return Request(key, "m", said, request.decoding, (request.seed or 0) + 1_000_000)


class Ours:
    """Drives the engine without the journal."""

    def __init__(self, loaded: Any, prompts: Prompts, slots: int, ends: Sequence[int] | None) -> None:
        from skillmix.models.local.generator import Generator

        self.prompts = prompts
        self.released: list[Request] = []
        self.replies: dict[tuple[str, int, int], Reply] = {}
        self.generator = Generator(loaded.model, loaded.renderer, slots=slots, done=self.done, ends=ends)

    def done(self, request: Request, outcome: Outcome) -> None:
        """Store a reply, and continue its conversation."""
        key = request.key
        assert isinstance(outcome, Reply) and isinstance(key, GenerateKey)
        self.replies[key.combination, key.generation, key.turn] = outcome
        if key.turn == 1:
            self.released.append(second(request, outcome.text, self.prompts.second(int(key.combination))))

    def run(self, requests: list[Request]) -> int:
        """Generate all conversations, and return the number of generated tokens."""
        self.replies.clear()
        self.generator.forget()
        self.generator.add(requests)
        while not self.generator.is_idle or self.released:
            if self.released:
                released, self.released = self.released, []
                self.generator.add(released)
            self.generator.work()
        return sum(reply.output_tokens or 0 for reply in self.replies.values())


def plain(loaded: Any, prompts: Prompts, requests: list[Request], batch: int, *, ends: bool) -> int:
    """Use plain `generate` with left-padded batches of similar length, and return the number of generated tokens."""
    import torch

    model, renderer = loaded
    model.generation_config.eos_token_id = renderer.ends(model) if ends else None
    tokenizer = renderer.tokenizer
    vocabulary = model.config.vocab_size
    limit = requests[0].decoding.max_tokens or 0
    stop = renderer.ends(model) if ends else None
    written = 0
    for turn in (1, 2):
        texts: list[str | None] = [None] * len(requests)
        prompts_of = renderer.tokens([r.messages for r in requests])
        order = sorted(range(len(requests)), key=lambda n: len(prompts_of[n]))
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            longest = max(len(prompts_of[n]) for n in rows)
            ids = torch.full((len(rows), longest), tokenizer.pad_token_id % vocabulary)
            mask = torch.zeros((len(rows), longest), dtype=torch.long)
            for row, n in enumerate(rows):
                ids[row, longest - len(prompts_of[n]) :] = torch.tensor(prompts_of[n])
                mask[row, longest - len(prompts_of[n]) :] = 1
            out = model.generate(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                do_sample=True,
                temperature=TEMPERATURE,
                top_k=0,
                max_new_tokens=limit,
                pad_token_id=tokenizer.pad_token_id % vocabulary,
            )[:, longest:].tolist()
            for row, n in enumerate(rows):
                end = next((i for i, t in enumerate(out[row]) if stop and t in stop), None)
                written += len(out[row]) if end is None else end + 1
                texts[n] = renderer.texts([out[row] if end is None else out[row][:end]])[0]
        if turn == 1:
            requests = [
                second(r, t or "", prompts.second(int(r.key.combination))) for r, t in zip(requests, texts, strict=True)
            ]
    return written


def timed(work: Callable[[], int], device: str) -> tuple[float, int]:
    """Do some work, and return its wall seconds and tokens."""
    import torch

    started = time.monotonic()
    tokens = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.monotonic() - started, tokens


def loaded_model(folder: str, shape: str | None, device: str, *, is_plain: bool = False) -> Any:
    """Load the model, or random weights, prepared for slots or as in transformers."""
    import torch
    from transformers import AutoModelForCausalLM, MistralConfig

    from skillmix.models.local.attention import prepared
    from skillmix.models.local.chat import Renderer
    from skillmix.models.local.loading import Loaded, load

    loaded = load(Path(folder), device=device)
    if shape is None:
        return loaded

    class Folded(Renderer):
        def tokens(
            self, conversations: Sequence[tuple[Message, ...]], extras: Sequence[str | None] = ()
        ) -> list[list[int]]:
            return [[t % config.vocab_size for t in row] for row in super().tokens(conversations, extras)]

    sizes = {"mistral-7b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}}[shape]
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "sliding_window": None}
    config = MistralConfig(**sizes, **heads, max_position_embeddings=32768)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return Loaded(model.eval() if is_plain else prepared(model), Folded(loaded.renderer.tokenizer, name=shape))


def floor(loaded: Any, ours: Ours, slots: int, bandwidth: float) -> str:
    """Estimate the least time for the memory traffic and arithmetic of these conversations at a measured bandwidth."""
    from skillmix.models.local.attention import CacheShape

    shape = CacheShape(loaded.model)
    weights = sum(p.numel() for p in loaded.model.parameters())
    looked_at = written = 0
    for reply in ours.replies.values():
        length, new = reply.input_tokens or 0, reply.output_tokens or 0
        looked_at += new * length + new * (new - 1) // 2
        written += new
    steps = written / slots
    moved = (looked_at * shape.bytes_per_token + steps * weights * shape.dtype.itemsize) / bandwidth
    operations = 2 * weights * (written + ours.generator.read_tokens) / 789e12
    return f"floor: bytes {moved:.2f} s at {bandwidth / 1e12:.2f} TB/s, arithmetic {operations:.2f} s"


def _conversation(request: Request) -> tuple[object, ...]:
    key = request.key
    return key.student, key.combination, key.generation


def check_chances(loaded: Any, prompts: Prompts, tokens: int) -> None:
    """Compare the log-probabilities of at least 20,000 sampled tokens with those of plain, padded transformers."""
    import torch

    # The generator changes the modules of its model, so the comparison uses an unmodified copy.
    reference = copy.deepcopy(loaded.model)
    reference.set_attn_implementation("sdpa")
    requests = requests_of(prompts, 400, tokens)
    ours = Ours(loaded, prompts, 400, [])
    ours.generator.add(requests)
    ours.generator._queue_new()
    decoder = ours.generator._fitting_decoder()
    assert decoder is not None
    decoder.rows.note_chances()  # before any step is captured
    while len(ours.replies) < len(requests):
        ours.generator.work()
    assert decoder.rows.chances is not None
    slots = [ours.generator._resting[_conversation(r)] for r in requests]
    said = torch.from_numpy(decoder.written(slots)).to(loaded.model.device)
    noted = decoder.rows.chances[torch.tensor(slots, device=loaded.model.device)]
    before = loaded.renderer.tokens([r.messages for r in requests])
    for name, dtype, is_full_head in (
        ("as loaded", loaded.model.dtype, False),
        ("as loaded, logits in float32", loaded.model.dtype, True),
        ("float32", torch.float32, False),
    ):
        model = reference.to(dtype)
        differences = []
        for start in range(0, len(requests), 20):
            rows = before[start : start + 20]
            longest = max(map(len, rows))
            ids = torch.zeros((len(rows), longest + tokens), dtype=torch.long, device=said.device)
            mask = torch.zeros_like(ids)
            for place, row in enumerate(rows):
                ids[place, longest - len(row) : longest] = torch.tensor(row, device=said.device)
                mask[place, longest - len(row) :] = 1
            ids[:, longest:] = said[start : start + 20]
            # With gradients enabled, skillmix's fused rotary embeddings are off and those of transformers are used.
            with torch.enable_grad():
                hidden = model.get_decoder()(input_ids=ids, attention_mask=mask).last_hidden_state[:, -tokens - 1 : -1]
                head = model.get_output_embeddings()
                logits = hidden.float() @ head.weight.float().t() if is_full_head else head(hidden).float()
            plain = torch.log_softmax(logits / TEMPERATURE, -1).gather(-1, said[start : start + 20, :, None])[..., 0]
            differences.append((plain - noted[start : start + 20]).abs())
        every = torch.cat(differences).flatten()
        off = f"off by {every.mean():.4f} on average, {every.max():.3f} at most"
        print(f"log-probabilities of {every.numel()} tokens, plain transformers {name}: {off}", flush=True)


def measured_bandwidth(device: str) -> float:
    """Measure the bytes per second, read and written, of a large copy."""
    import torch

    source = torch.empty(1 << (30 if device == "cuda" else 26), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = 0.0
    for _ in range(5):
        started = time.monotonic()
        for _ in range(4):
            target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        best = max(best, 4 * 2 * source.numel() / (time.monotonic() - started))
    return best


def baseline(options: argparse.Namespace, prompts: Prompts, requests: list[Request]) -> None:
    """Run `generate` at each batch size, then on all conversations at the best one."""
    loaded = loaded_model(options.model, options.shape, options.device, is_plain=True)
    run = partial(plain, loaded, prompts, ends=not options.ignore_ends)
    run(requests[:8], 8)  # load libraries
    found = {}
    for batch in options.batches:
        found[batch] = seconds, tokens = timed(partial(run, requests[:batch], batch), options.device)
        print(f"generate, {batch} conversations at once: {seconds:.2f} s, {tokens / seconds:.0f}/s", flush=True)
    best = max(found, key=lambda batch: found[batch][1] / found[batch][0])
    seconds, tokens = found[best]
    if best < len(requests):
        seconds, tokens = timed(partial(run, requests, best), options.device)
    print(f"generate, all, batch {best}: {seconds:.2f} s, {tokens / seconds:.0f}/s", flush=True)
    print(json.dumps({"seconds": seconds}), flush=True)


def seconds_of_baseline() -> float:
    """Run the baseline in a separate process, which compiles and records nothing."""
    lines = []
    with subprocess.Popen([sys.executable, *sys.argv, "--baseline"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if not line.startswith("{"):
                print(line, end="", flush=True)
    if process.returncode:
        sys.exit("generate failed")
    seconds: float = json.loads(lines[-1])["seconds"]
    return seconds


def ours_at(slots: int, loaded: Any, prompts: Prompts, requests: list[Request], options: argparse.Namespace) -> float:
    """Measure how many seconds skillmix takes for all conversations."""
    ours = Ours(loaded, prompts, slots, [] if options.ignore_ends else None)
    seconds, tokens = timed(partial(ours.run, requests), options.device)
    if options.device == "cuda":
        print(f"slots {slots}: first run, compiled and recorded in it, {seconds:.2f} s", flush=True)
        runs = []
        for _ in range(3):  # a run may still record a new shape
            ours.generator.read_tokens = 0
            runs.append(timed(partial(ours.run, requests), options.device))
        print(f"slots {slots}: then {', '.join(f'{seconds:.2f}' for seconds, _ in runs)} s", flush=True)
        seconds, tokens = min(runs)
    least = floor(loaded, ours, slots, measured_bandwidth(options.device))
    print(
        f"slots {slots}: {seconds:.2f} s, {len(ours.replies) / seconds:.0f} calls/s, {tokens} new tokens, "
        f"{tokens / seconds:.0f}/s; read {ours.generator.read_tokens} prompt tokens, "
        f"{ours.generator.read_tokens / seconds:.0f}/s; {least}",
        flush=True,
    )
    return seconds


MECHANISMS = {
    "fused": "kernels for small operations, and joined matrix products",
    "steps": "steps captured as CUDA graphs",
}


def switch_off(mechanisms: Sequence[str]) -> None:
    """Run the engine on a GPU without some of its mechanisms, to measure what each of them contributes."""
    from skillmix.models.local.gpu import gpu_decoder

    if "fused" in mechanisms:
        gpu_decoder.fuse = lambda model: None
    if "steps" in mechanisms:
        gpu_decoder.GpuDecoder._captured = lambda self, work: SimpleNamespace(replay=work)  # type: ignore[method-assign]


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write-prompts")
    parser.add_argument("--prompt-set", default="standard")
    parser.add_argument("--prompts")
    parser.add_argument("--model")
    parser.add_argument("--shape")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--conversations", type=int, default=4608)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--slots", type=int, nargs="+", default=[1536])
    parser.add_argument("--batches", type=int, nargs="*", default=[])
    parser.add_argument("--ignore-ends", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--baseline", action="store_true", help="only run `generate`")
    parser.add_argument("--without", choices=MECHANISMS, nargs="*", default=[], help="switch these mechanisms off")
    options = parser.parse_args()
    if options.write_prompts:
        return write_prompts(options.write_prompts, 1536, options.prompt_set)
    prompts = read_prompts(options.prompts)
    requests = requests_of(prompts, options.conversations, options.tokens)
    if options.baseline:
        return baseline(options, prompts, requests)
    theirs = seconds_of_baseline() if options.batches else None
    switch_off(options.without)
    loaded = loaded_model(options.model, options.shape, options.device)
    if options.check:
        return check_chances(loaded, prompts, options.tokens)
    ours = min(ours_at(slots, loaded, prompts, requests, options) for slots in options.slots)
    if theirs is not None:
        print(f"ours is {theirs / ours:.2f} times as fast as `generate`", flush=True)


if __name__ == "__main__":
    main()
