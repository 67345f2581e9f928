"""Run the training of a job: load the model, train it, and write a Hugging Face checkpoint or a PEFT adapter."""

import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from shutil import rmtree
from typing import Any, Final, NamedTuple

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from skillmix.errors import UserError
from skillmix.experiment.experiment import load_experiment
from skillmix.experiment.train_step import DEFAULT_STEPS, LoraSettings, Precision, TrainStep, weights_format
from skillmix.files import replacing, require_package
from skillmix.models.checkpoints import Checkpoint, FileStates, checkpoint_of
from skillmix.models.lineage_files import read_model_file
from skillmix.models.local.loading import architecture_of, load_for_training, read_tokenizer, training_device
from skillmix.models.shapes import POSITIONS, CopiedShape, ModelShape, shape_of
from skillmix.models.specs import parse_spec, provider_of, require_packages
from skillmix.render import plural
from skillmix.runs.progress import RunProgress, say
from skillmix.runs.run import new_run
from skillmix.tracking import FOLDER, TrackedPart, Tracking
from skillmix.training.data.batches import TrainingOrder, steps_of
from skillmix.training.data.examples import Conversation, Encoder
from skillmix.training.data.replay import Replay
from skillmix.training.job import (
    MODEL,
    Job,
    Lessons,
    base_spec,
    chosen_steps,
    is_first_rank,
    read_lessons,
    sources_of,
    write_lineage,
)
from skillmix.training.log import draw_losses
from skillmix.training.loop import train
from skillmix.training.ranks import joined_ranks
from skillmix.training.step.engine import choose_precision
from skillmix.training.step.optimizer import TrainingRecipe
from skillmix.training.step.packed_model import check_architecture


def with_adapter(model: Any, lora: LoraSettings, *, seed: int) -> Any:
    """Add an adapter, so that only the adapter is trained; its initial weights depend only on the seed."""
    require_package("peft", "LoRA", extra="train")
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=lora.rank,
        lora_alpha=int(lora.alpha) if float(lora.alpha).is_integer() else lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.targets,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        # PEFT reads a property that transformers 5.23 has renamed, and users cannot do anything about the warning.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        torch.manual_seed(seed)
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            raise UserError(
                f"The adapter does not fit: {error}", hint="lora.targets names layers, such as q_proj."
            ) from None


def write_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write weights, tokenizer and chat template; for a model with an adapter, only the adapter's weights."""
    logging.disable_progress_bar()
    folder.mkdir(parents=True)
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    causal.config.use_cache = True  # training switches the cache off, and generation elsewhere would be slow without it
    model.save_pretrained(folder, safe_serialization=True)
    (folder / "README.md").unlink(missing_ok=True)  # PEFT adds an empty model card
    tokenizer.save_pretrained(folder)


def require_space(model: Any, folder: Path, *, precision: Precision, checkpoints: int, is_adapter: bool) -> None:
    """Raise an error before training if the disk lacks space for the trained model and a number of checkpoints."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    result = sum(p.numel() * p.element_size() for p in (trained if is_adapter else model.parameters()))
    needed = checkpoints * sum(p.numel() for p in trained) * precision.checkpoint_bytes + result
    free = shutil.disk_usage(next(path for path in (folder, *folder.absolute().parents) if path.exists())).free
    if free < needed:
        raise UserError(
            f"The disk of {folder} has {free / 1e9:.1f} GB free, and training writes up to {needed / 1e9:.1f} GB.",
            hint="Free disk space, or move the run to another disk.",
        )


def merge_adapters(spec: str, output: Path) -> Path:
    """Merge the adapters in a model string into its base, and write the resulting checkpoint."""
    parsed = parse_spec(spec)
    if not provider_of(parsed).has_checkpoint:
        raise UserError(
            f"{spec} is not a model on this machine.", hint="Give local:PATH+ADAPTER or bundled:NAME+ADAPTER."
        )
    checkpoint = checkpoint_of(parsed)
    if not checkpoint.adapters:
        raise UserError(f"{spec} has no adapter to merge.", hint="Give local:PATH+ADAPTER or bundled:NAME+ADAPTER.")
    if output.exists():
        raise UserError(f"The folder {output} already exists.", hint="Choose a new folder with --output.")
    require_packages(parsed)
    from skillmix.models.local.loading import read_checkpoint

    with replacing(output, MODEL) as new:
        model, tokenizer = read_checkpoint(checkpoint, dtype="auto", device="cpu")
        write_model(model, tokenizer, new)
        file = read_model_file(checkpoint.adapters[-1])
        if file is not None:
            write_lineage(new, file.merged())
    return output


_UNKNOWN, _BEGIN, _END, _USER, _ASSISTANT = _SPECIAL = "<unk>", "<s>", "</s>", "<user>", "<assistant>"
_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<user>' + message['content'] | trim }}"
    "{% elif message['role'] == 'assistant' %}{{ '<assistant>' + message['content'] | trim + '</s>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
_NO_WORD: Final = "\uf8ff"
"""A character with which no token begins."""
_MOST_WORDS: Final = 1 << 14
"""The most words in a vocabulary; rarer words are unknown."""
_WORD: Final = r"(?:[^\W\d_]\.){2,}|\w+(?:['’-]\w+|(?<=\d)[.,:]\d+)*|[^\w\s]"
_PRIVATE: Final = {
    r'(?<![^\s(\[{“‘—])"(?=\S)': ("\ue000", '"'),
    r"(?<![^\s(\[{“‘—\ue000])'(?=\S)": ("\ue001", "'"),
    r"(?<=\S)—(?=\S)": ("\ue002", "—"),
    r"(?<=\S)–(?=\S)": ("\ue003", "–"),
    r"(?<=\S)/(?=\S)": ("\ue004", "/"),
}
"""Opening straight quotation marks and unspaced marks: for each pattern, its token and its text."""
_BLANK_BEFORE: Final = r" (?=[,.;:!?…)\]}”’%\"'\ue002-\ue004])"
_BLANK_AFTER: Final = r"(?<=[(\[{“‘$£€#\ue000-\ue004]) "
"""Patterns for the spaces that the decoder removes."""
_SPREAD: Final = 0.02
"""The standard deviation of the random weights."""


def base_tokenizer(base: str, conversations: Sequence[Conversation]) -> tuple[Any, list[int]]:
    """Return the base's tokenizer and end tokens; for a new shape, train the tokenizer on the conversations."""
    shape = shape_of(base)
    spec = shape.spec if isinstance(shape, CopiedShape) else base if shape is None else None
    if spec is not None:
        return read_tokenizer(checkpoint_of(parse_spec(spec)))
    tokenizer = word_tokenizer([text for conversation in conversations for turn in conversation.turns for text in turn])
    return tokenizer, [tokenizer.eos_token_id]


def word_tokenizer(texts: Sequence[str]) -> Any:
    """Return a tokenizer for the words and marks in texts, most frequent first; the order of texts has no effect."""
    backend = Tokenizer(models.WordLevel({}, unk_token=_UNKNOWN))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(place), token) for place, (token, _) in _PRIVATE.items()]
    )
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), "removed", invert=True)
    marks = [decoders.Replace(token, mark) for token, mark in _PRIVATE.values()]
    backend.decoder = decoders.Sequence(
        [
            decoders.WordPiece(prefix=_NO_WORD, cleanup=False),
            decoders.Fuse(),
            *(decoders.Replace(Regex(blank), "") for blank in (_BLANK_BEFORE, _BLANK_AFTER)),
            *marks,
        ]
    )
    trainer = trainers.WordLevelTrainer(vocab_size=_MOST_WORDS, special_tokens=list(_SPECIAL), show_progress=False)
    backend.train_from_iterator(texts, trainer)
    if backend.get_vocab_size() == _MOST_WORDS:
        say(f"the model knows only the {_MOST_WORDS:,} most frequent words and marks of its texts")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token=_UNKNOWN,
        bos_token=_BEGIN,
        eos_token=_END,
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=POSITIONS,
    )


@torch.no_grad()  # type: ignore[untyped-decorator]
def new_model(shape: ModelShape | CopiedShape, tokenizer: Any, *, seed: int) -> Any:
    """Create a Llama or a model with a copied architecture, with random weights that are equal on every machine."""
    with torch.random.fork_rng(devices=[]):
        if isinstance(shape, CopiedShape):
            folder = checkpoint_of(parse_spec(shape.spec)).base
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
        else:
            config = LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=shape.width,
                intermediate_size=shape.inner,
                num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads,
                num_key_value_heads=shape.heads,
                max_position_embeddings=POSITIONS,
                tie_word_embeddings=True,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
            )
            model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            # Draw from a uniform distribution, because processors round the functions for normal draws differently.
            uniform = torch.rand(parameter.shape, generator=generator) - 0.5
            parameter.copy_(uniform * (12**0.5 * _SPREAD))
    return model


def check_student(checkpoint: Checkpoint, step: TrainStep) -> None:
    """Reject a base whose chat template or layers training does not support, without reading its weights."""
    try:
        _check_files(checkpoint, checkpoint.file_states(), step.format)
    except UserError as error:
        raise UserError(f"Step {step.name!r}: {error.message}", hint=error.hint) from None


@lru_cache(maxsize=16)
def _check_files(checkpoint: Checkpoint, states: FileStates, chat_format: str | None) -> None:
    """Check a checkpoint once for all steps that train it."""
    tokenizer, ends = read_tokenizer(checkpoint)
    Encoder(tokenizer, end_ids=ends, chat_format=chat_format)
    check_architecture(architecture_of(checkpoint))


_TRACKED: Final = ("answers", "replay", "validation", "norm", "rate", "tokens_per_second")
"""The numbers in a row of training.jsonl that trackers show."""


def run_training(job: Job, lessons: Lessons, progress: RunProgress) -> None:
    """Train from the start or from the last checkpoint, and write the trained model."""
    step, name, is_first = job.step, job.step.name, is_first_rank()
    tokenizer, ends = base_tokenizer(job.base, lessons.train)
    encoder = Encoder(tokenizer, end_ids=ends, chat_format=step.format)
    data, recipe = _data_and_recipe(job, encoder, lessons)
    validation = encoder.fitting(lessons.validation, limit=step.max_tokens, too_long=step.too_long).examples
    if step.patience is not None and not validation:
        raise UserError(
            f"{name} sets patience, but it has no conversations to validate with.",
            hint="Set validation_share, or leave patience out.",
        )
    device, shape = training_device(), shape_of(job.base)
    if shape is not None:
        model = new_model(shape, tokenizer, seed=job.seed).to(device)
    else:
        assert job.checkpoint is not None
        is_fp32 = weights_format(step.precision) == "float32"
        model = load_for_training(job.checkpoint, device=device, is_fp32=is_fp32)
    if step.lora is not None:
        model = with_adapter(model, step.lora, seed=job.seed)
    device = next(model.parameters()).device
    require_space(
        model,
        job.folder,
        precision=choose_precision(model, recipe, device, ranks=joined_ranks().count),
        is_adapter=step.lora is not None and not step.lora.merge,
        checkpoints=2 if recipe.patience is None else 3,  # the last one, the next one during writing, perhaps the best
    )
    # Send no URLs, keys or texts to trackers.
    facts = {"base": job.base, "data": ", ".join(source.name for source in job.sources), "seed": str(job.seed)}
    facts |= {setting: str(value) for setting, value in step.decisive().items()}
    part = TrackedPart(job.folder.parent.name, name, job.folder.parent / FOLDER)
    rows, last_line = 0, ""

    def report(row: Mapping[str, Any]) -> None:
        nonlocal rows, last_line
        if is_first:
            rows += 1
            parts = [f"loss {row['answers']:.4f}"]
            parts += [f"{loss} {row[loss]:.4f}" for loss in ("replay", "validation") if row.get(loss) is not None]
            parts.append(f"{row['tokens_per_second']:,.0f} tokens/s")
            parts += [f"{100 * row['utilisation']:.0f}% utilization"] if row.get("utilisation") is not None else []
            detail = ", ".join(parts)
            last_line = f"{name}: step {row['step'] + 1} of {recipe.steps}, {detail}"
            progress.update(name, done=row["step"] + 1, made=rows, detail=detail)
            tracked.log({number: row.get(number) for number in _TRACKED}, step=row["step"] + 1)

    if is_first:
        progress.expect(name, recipe.steps)
        progress.begin(name)
    with Tracking(job.experiment.track if is_first else [], part, facts) as tracked:
        result = train(model, data, recipe, job.folder, validation=validation, on_progress=report)
    if is_first:
        progress.end(name, last_line or None)
        # Write under a temporary name, so that a folder with the final name is always complete.
        with replacing(job.model_folder, MODEL) as new:
            trained = result.model.merge_and_unload() if step.lora is not None and step.lora.merge else result.model
            write_model(trained, tokenizer, new)
            write_lineage(new, job.lineage(steps=result.steps))
        draw_losses(job.folder)
        say(f"{name}: {result.steps} steps; the model is in {job.model_folder}")
        remove_checkpoints(job.folder / "checkpoints")
    joined_ranks().wait()  # the next step may train this model further


def _data_and_recipe(job: Job, encoder: Encoder, lessons: Lessons) -> tuple[TrainingOrder, TrainingRecipe]:
    step, replay = job.step, None
    prepared = encoder.examples(lessons.train, limit=step.max_tokens, too_long=step.too_long)
    count = len(prepared.examples)
    if is_first_rank():
        cut = f", {len(prepared.cut)} cut at {step.max_tokens} tokens" if step.too_long == "cut" else ""
        tokens = sum(len(example.tokens) for example in prepared.examples)
        size = f"{plural(count, 'conversation')}, {plural(tokens, 'token')}"
        say(f"{step.name}: {size}; {len(prepared.dropped)} excluded as too long{cut}")
    steps, total = step.steps or DEFAULT_STEPS, None
    if step.epochs is not None:
        steps, total = steps_of(step.epochs, conversations=count, batch=step.batch)
    if step.replay is not None:
        replay = Replay(
            [Path(source).expanduser() for source in step.replay.sources],
            tokenize=encoder.sealed.plain,
            limit=step.replay.max_tokens or step.max_tokens,
            field=step.replay.field,
            seed=job.seed,
        )
    ratio = step.replay.ratio if step.replay else 0.0
    data = TrainingOrder(prepared.examples, step.batch, job.seed, total=total, replay=replay, replay_ratio=ratio)
    return data, TrainingRecipe.of(step, steps=steps, seed=job.seed)


class ShownToken(NamedTuple):
    """A token, and whether it is trained."""

    id: int
    text: str
    is_trained: bool


def shown_masks(
    path: Path, *, changes: Sequence[str] = (), only: str | None = None, count: int = 1
) -> Iterator[tuple[str, str, list[ShownToken]]]:
    """For the first conversations of each train step, yield the step's name, the key and the tokens."""
    experiment = load_experiment(path, changes=changes)
    run = new_run(experiment.name)
    for step in chosen_steps(experiment, only):
        base = base_spec(experiment, step, run)
        require_packages(parse_spec(base))
        lessons = read_lessons(sources_of(step, run.path), validation_share=step.validation_share)
        tokenizer, ends = base_tokenizer(base, lessons.train)
        encoder = Encoder(tokenizer, end_ids=ends, chat_format=step.format)
        prepared = encoder.examples(lessons.train[:count], limit=step.max_tokens, too_long=step.too_long)
        for example in prepared.examples:
            ids = example.tokens.tolist()
            tokens = [
                ShownToken(number, tokenizer.decode([number]), bool(is_trained))
                for number, is_trained in zip(ids, example.is_trained, strict=True)
            ]
            yield step.name, example.key, tokens


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a finished training run, but nothing else in the folder."""
    for path in folder.glob("step-*"):
        if (path / "state.json").is_file() or path.name.endswith(".partial"):
            rmtree(path, ignore_errors=True)
    with suppress(OSError):
        folder.rmdir()
