"""Run the training of a job: load the model, train it, and write the trained checkpoint."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from skillmix.errors import UserError
from skillmix.experiment.experiment import load_experiment
from skillmix.experiment.train_step import DEFAULT_STEPS, TrainStep, weights_format
from skillmix.models.checkpoints import Checkpoint, FileStates, checkpoint_of
from skillmix.models.local.loading import architecture_of, load_for_training, read_tokenizer, training_device
from skillmix.models.shapes import CopiedShape, ModelShape, shape_of
from skillmix.models.specs import parse_spec, require_packages
from skillmix.render import plural
from skillmix.runs.folder_replacement import MODEL, remove_checkpoints, replacing
from skillmix.runs.progress import RunProgress, say
from skillmix.runs.run import new_run
from skillmix.tracking import FOLDER, TrackedPart, Tracking, tracking
from skillmix.training.data.batches import TrainingOrder, steps_of
from skillmix.training.data.examples import Conversation, Encoder, Example
from skillmix.training.data.replay import Replay
from skillmix.training.job import (
    Job,
    Lessons,
    base_spec,
    checkpoint_in,
    chosen_steps,
    is_first_rank,
    lessons_of,
    write_lineage,
)
from skillmix.training.log import draw_losses
from skillmix.training.loop import train
from skillmix.training.ranks import joined_ranks
from skillmix.training.saving import merged, require_space, weights_bytes, with_adapter, write_model
from skillmix.training.step.engine import choose_precision
from skillmix.training.step.optimizer import TrainingRecipe
from skillmix.training.step.packed_model import check_architecture

_UNKNOWN, _BEGIN, _END, _USER, _ASSISTANT = _SPECIAL = "<unk>", "<s>", "</s>", "<user>", "<assistant>"
_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<user>' + message['content'] | trim }}"
    "{% elif message['role'] == 'assistant' %}{{ '<assistant>' + message['content'] | trim + '</s>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
_NO_WORD: Final = "\uf8ff"
"""No token begins with it."""
_MOST_WORDS: Final = 1 << 14
"""Words of a vocabulary; rarer ones are unknown."""
_WORD: Final = r"(?:[^\W\d_]\.){2,}|\w+(?:['’-]\w+|(?<=\d)[.,:]\d+)*|[^\w\s]"
_PRIVATE: Final = {
    r'(?<![^\s(\[{“‘—])"(?=\S)': ("\ue000", '"'),
    r"(?<![^\s(\[{“‘—\ue000])'(?=\S)": ("\ue001", "'"),
    r"(?<=\S)—(?=\S)": ("\ue002", "—"),
    r"(?<=\S)–(?=\S)": ("\ue003", "–"),
    r"(?<=\S)/(?=\S)": ("\ue004", "/"),
}
"""Straight quotation marks that open, and marks without blanks around them: where they are, their tokens, and what a
text has for them."""
_BLANK_BEFORE: Final = r" (?=[,.;:!?…)\]}”’%\"'\ue002-\ue004])"
_BLANK_AFTER: Final = r"(?<=[(\[{“‘$£€#\ue000-\ue004]) "
"""Blanks that the decoder takes away again."""
_LONGEST: Final = 2048
"""Tokens of a text; positions have no weights."""
_SPREAD: Final = 0.02
"""Standard deviation of the random weights."""


def base_tokenizer(base: str, conversations: Sequence[Conversation]) -> tuple[Any, list[int]]:
    """The tokenizer of a train step's base, and the tokens that end a text; a new shape learns it from the data."""
    shape = shape_of(base)
    checkpoint = checkpoint_of(parse_spec(shape.spec)) if isinstance(shape, CopiedShape) else checkpoint_in(base)
    if checkpoint is not None:
        return read_tokenizer(checkpoint)
    tokenizer = word_tokenizer([text for talk in conversations for turn in talk.turns for text in turn])
    return tokenizer, [tokenizer.eos_token_id]


def word_tokenizer(texts: Sequence[str]) -> Any:
    """A tokenizer of the words and marks in some texts, the most frequent first; their order does not matter."""
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
        say(f"the model knows the {_MOST_WORDS:,} most frequent words and marks of its texts only")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token=_UNKNOWN,
        bos_token=_BEGIN,
        eos_token=_END,
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=_LONGEST,
    )


@torch.no_grad()  # type: ignore[untyped-decorator]
def new_model(shape: ModelShape | CopiedShape, tokenizer: Any, *, seed: int) -> Any:
    """A model with random weights, which are the same on every machine: a Llama, or one shaped like another model."""
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
                max_position_embeddings=_LONGEST,
                tie_word_embeddings=True,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
            )
            model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            # Not normally distributed: processors round logarithms and cosines differently.
            uniform = torch.rand(parameter.shape, generator=generator) - 0.5
            parameter.copy_(uniform * (12**0.5 * _SPREAD))
    return model


_TRACKED: Final = ("answers", "replay", "validation", "norm", "rate", "tokens_per_second")
"""The numbers of a row of training.jsonl that trackers show."""


class TrainingProgress:
    """Reports every optimiser step of a training to the run's progress, and to its trackers."""

    def __init__(self, step: str, steps: int, progress: RunProgress, tracking: Tracking | None = None) -> None:
        self._step, self._steps, self._progress = step, steps, progress
        self._tracking = tracking or Tracking()
        self._steps_taken = 0
        self._last_line = ""
        if is_first_rank():
            progress.expect(step, steps)
            progress.begin(step)

    def report(self, row: Mapping[str, Any]) -> None:
        """Report a row of training.jsonl."""
        if is_first_rank():
            self._steps_taken += 1
            detail = _detail(row)
            self._last_line = f"{self._step}: step {row['step'] + 1} of {self._steps}, {detail}"
            self._progress.update(self._step, done=row["step"] + 1, made=self._steps_taken, detail=detail)
            self._tracking.log({name: row.get(name) for name in _TRACKED}, step=row["step"] + 1)

    def close(self) -> None:
        """End the step with its last line."""
        if is_first_rank():
            self._progress.end(self._step, self._last_line or None)


def check_student(checkpoint: Checkpoint, step: TrainStep) -> None:
    """Refuse a base whose answers cannot be masked or whose layers cannot be trained; its weights are not read."""
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


def run_training(job: Job, lessons: Lessons, progress: RunProgress) -> None:
    """Train from the start or from the last checkpoint, and write the trained model."""
    step = job.step
    device = training_device()
    weights = weights_format(step.precision)
    tokenizer, ends = base_tokenizer(job.base, lessons.train)
    encoder = Encoder(tokenizer, end_ids=ends, chat_format=step.format)
    data, recipe = _data_and_recipe(job, encoder, lessons)
    validation = _validation(encoder, lessons, step)
    model = _base_model(job, tokenizer, device=device, is_fp32=weights == "float32")
    if step.lora is not None:
        model = with_adapter(model, step.lora, seed=job.seed)
    _check_disk(model, recipe, job)
    names = job.experiment.track if is_first_rank() else []
    part = TrackedPart(job.folder.parent.name, step.name, job.folder.parent / FOLDER)
    with tracking(names, part, _facts(job)) as tracked:
        shown = TrainingProgress(step.name, recipe.steps, progress, tracked)
        result = train(
            model,
            data,
            recipe,
            job.folder,
            validation=validation or None,
            on_progress=shown.report,
            resume=True,
        )
    shown.close()
    if is_first_rank():
        _write(job, result.model, tokenizer, steps=result.steps)
        remove_checkpoints(job.folder / "checkpoints")
    joined_ranks().wait()  # the next step may train on from this model


def _base_model(job: Job, tokenizer: Any, *, device: str, is_fp32: bool) -> Any:
    """The weights to begin with: those of the base, or random ones."""
    shape = shape_of(job.base)
    if shape is not None:
        return new_model(shape, tokenizer, seed=job.seed).to(device)
    assert job.checkpoint is not None
    return load_for_training(job.checkpoint, device=device, is_fp32=is_fp32)


def _facts(job: Job) -> dict[str, str]:
    """What trackers say about a training; addresses, keys and texts are not among it."""
    data = {"base": job.base, "data": ", ".join(source.name for source in job.sources), "seed": str(job.seed)}
    return data | {name: str(value) for name, value in job.step.decisive().items()}


def _data_and_recipe(job: Job, encoder: Encoder, lessons: Lessons) -> tuple[TrainingOrder, TrainingRecipe]:
    step = job.step
    prepared = encoder.examples(lessons.train, limit=step.max_tokens, too_long=step.too_long)
    count = len(prepared.examples)
    tokens = sum(len(example.tokens) for example in prepared.examples)
    if is_first_rank():
        cut = f", {len(prepared.cut)} cut at {step.max_tokens} tokens" if step.too_long == "cut" else ""
        size = f"{plural(count, 'conversation')}, {plural(tokens, 'token')}"
        say(f"{step.name}: {size}; {len(prepared.dropped)} left out as too long{cut}")
    steps, total = step.steps or DEFAULT_STEPS, None
    if step.epochs is not None:
        steps, total = steps_of(step.epochs, conversations=count, batch=step.batch)
    data = TrainingOrder(
        prepared.examples,
        batch=step.batch,
        seed=job.seed,
        total=total,
        replay=_replay(job, encoder),
        replay_ratio=step.replay.ratio if step.replay else 0.0,
    )
    return data, TrainingRecipe.of(step, steps=steps, seed=job.seed)


def _replay(job: Job, encoder: Encoder) -> Replay | None:
    settings = job.step.replay
    if settings is None:
        return None
    replay = Replay(
        [Path(source).expanduser() for source in settings.sources],
        tokenise=encoder.sealed.plain,
        limit=settings.max_tokens or job.step.max_tokens,
        field=settings.field,
        seed=job.seed,
    )
    replay.check()
    return replay


def _validation(encoder: Encoder, lessons: Lessons, step: TrainStep) -> list[Example]:
    prepared = encoder.fitting(lessons.validation, limit=step.max_tokens, too_long=step.too_long)
    if step.patience is not None and not prepared.examples:
        raise UserError(
            f"{step.name} sets patience, but it has no conversations to validate with.",
            hint="Set validation_share, or leave patience out.",
        )
    return list(prepared.examples)


def _check_disk(model: Any, recipe: TrainingRecipe, job: Job) -> None:
    is_adapter = job.step.lora is not None and not job.step.lora.merge
    device = next(model.parameters()).device
    require_space(
        model,
        job.folder,
        precision=choose_precision(model, recipe, device, ranks=joined_ranks().count),
        result_bytes=weights_bytes(model, only_trained=is_adapter),
        checkpoints=2 if recipe.patience is None else 3,  # the last, the one being written, and perhaps the best
    )


def _write(job: Job, model: Any, tokenizer: Any, *, steps: int) -> None:
    """Write the model into a temporary folder and rename it, so that a folder with the final name is complete."""
    with replacing(job.model_folder, MODEL) as new:
        if job.step.lora is not None and job.step.lora.merge:
            model = merged(model)
        write_model(model, tokenizer, new)
        write_lineage(new, job.lineage(steps=steps))
    draw_losses(job.folder)
    say(f"{job.step.name}: {steps} steps; the model is in {job.model_folder}")


def _detail(row: Mapping[str, Any]) -> str:
    parts = [f"loss {row['answers']:.4f}"]
    if row.get("replay") is not None:
        parts.append(f"replay {row['replay']:.4f}")
    if row.get("validation") is not None:
        parts.append(f"validation {row['validation']:.4f}")
    parts.append(f"{row['tokens_per_second']:,.0f} tokens/s")
    if row.get("utilisation") is not None:
        parts.append(f"{100 * row['utilisation']:.0f} % utilisation")
    return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token, and whether it is trained."""

    id: int
    text: str
    is_trained: bool


@dataclass(frozen=True, slots=True)
class ShownConversation:
    """The tokens of one conversation."""

    step: str
    key: str
    tokens: list[ShownToken]


def shown_masks(
    path: Path, *, changes: Sequence[str] = (), only: str | None = None, count: int = 1
) -> Iterator[ShownConversation]:
    """The first conversations of each train step."""
    experiment = load_experiment(path, changes=changes)
    run = new_run(experiment.name)
    for step in chosen_steps(experiment, only):
        base = base_spec(experiment, step, run)
        require_packages(parse_spec(base))
        from skillmix.training.data.examples import Encoder

        lessons = lessons_of(step, run)
        tokenizer, ends = base_tokenizer(base, lessons.train)
        encoder = Encoder(tokenizer, end_ids=ends, chat_format=step.format)
        prepared = encoder.examples(lessons.train[:count], limit=step.max_tokens, too_long=step.too_long)
        for example in prepared.examples:
            ids = example.tokens.tolist()
            tokens = [
                ShownToken(number, tokenizer.decode([number]), bool(is_trained))
                for number, is_trained in zip(ids, example.is_trained, strict=True)
            ]
            yield ShownConversation(step.name, example.key, tokens)
