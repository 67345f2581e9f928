"""Train steps of an experiment. The defaults are the paper's recipe (arXiv 2409.19808, section 3.3).

A new precision needs a row in `PRECISIONS`, and if it stores updated weights in a new way, an update function in
`training/step/optimizer.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, model_validator

from skillmix.experiment.step_base import ModelRef, OneOf, Positive, Section, Share, Step, StepInput
from skillmix.files import SHIPPED
from skillmix.models.shapes import shape_of

FloatType = Literal["float32", "bfloat16"]
"""Number formats by their names in torch."""
_BYTES: Final[dict[FloatType, int]] = {"float32": 4, "bfloat16": 2}

WeightStorage = Literal["exact", "halves", "stochastic"]
"""The way in which an updated weight is stored after it is computed in float32.

exact: unchanged. halves: the upper 16 bits in the model and the lower 16 bits in a separate tensor. stochastic: rounded
up or down at random, without bias.
"""


@dataclass(frozen=True, slots=True)
class Precision:
    """The number formats in which trained weights and the optimizer's state are stored."""

    name: str
    weights: FloatType
    """Format of all weights, including frozen ones, in the model's computation."""
    state: FloatType
    """Format of both moments and of the accumulated gradients."""
    storage: WeightStorage
    auto_device: Literal["cpu", "cuda"]
    """The device on which `precision: auto` may choose this precision; earlier rows of `PRECISIONS` win."""

    @property
    def weight_bytes(self) -> int:
        """Return the bytes per frozen weight in memory."""
        return _BYTES[self.weights]

    @property
    def checkpoint_bytes(self) -> int:
        """Return the bytes per trained weight in a checkpoint: the weight, its lower half and both moments."""
        return self.weight_bytes + 2 * (self.storage == "halves") + 2 * _BYTES[self.state]

    @property
    def training_bytes(self) -> int:
        """Return the bytes per trained weight in memory: those in a checkpoint, and the accumulated gradient."""
        return self.checkpoint_bytes + _BYTES[self.state]


PRECISIONS: Final = {
    precision.name: precision
    for precision in (
        Precision("fp32", weights="float32", state="float32", storage="exact", auto_device="cpu"),
        Precision("bf16-master", weights="bfloat16", state="float32", storage="halves", auto_device="cuda"),
        Precision("bf16-stochastic", weights="bfloat16", state="bfloat16", storage="stochastic", auto_device="cuda"),
    )
}
AUTO: Final = "auto"
"""The precision that stands for the best choice for the device and its memory."""


def weights_format(name: str) -> FloatType | None:
    """Return the format in which a precision stores the model's weights; None for `auto`.

    >>> weights_format("bf16-master"), weights_format("auto")
    ('bfloat16', None)
    """
    return None if name == AUTO else PRECISIONS[name].weights


CHAT_TEMPLATES: Final = {
    file.stem: file.read_text(encoding="utf-8").removesuffix("\n")
    for file in sorted((SHIPPED / "chat_formats").glob("*.jinja"))
}
"""Chat templates for checkpoints without one, by their name in `format: NAME`."""
AboveZero = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
DEFAULT_STEPS: Final = 4000
"""Optimizer steps of a recipe that sets neither `steps` nor `epochs`."""
MUON_ADAM_RATE: Final = 3e-3
"""Adam's default learning rate with Muon."""
DEFAULT_GAMMA: Final = 0.5
"""Weight of the loss of replayed text."""
_SPEED_AND_MEMORY: Final = frozenset(
    {"token_budget", "recompute", "compile", "checkpoint_every", "reshard", "precision"}
)
"""Settings that may change before a training run resumes."""


class LoraSettings(Section):
    """A low-rank adapter, which is trained instead of all weights."""

    rank: Positive = 16
    """Rank of the adapter's matrices."""
    alpha: AboveZero = 32
    """Scale of the adapter, before division by the rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout rate of the adapter's inputs."""
    targets: list[str] | Literal["all-linear"] = "all-linear"
    """Names of the adapted layers; `all-linear` is every linear layer except the output layer."""
    merge: bool = False
    """Merge the adapter into the weights and write a whole checkpoint."""


class ReplaySettings(Section):
    """Plain text mixed into the training data to reduce forgetting: loss = mean(answers) + gamma · mean(replay)."""

    sources: Annotated[list[str], Field(min_length=1)]
    """Text, JSON Lines and Parquet files, and folders of such files."""
    field: str = "text"
    """Key or column of the text in JSON Lines and Parquet files."""
    ratio: AboveZero = 0.25
    """Replayed texts per conversation."""
    gamma: NotNegative = DEFAULT_GAMMA
    """Weight of the loss of replayed text."""
    max_tokens: Positive | None = None
    """Maximum tokens of a replayed text (default: as for a conversation)."""


class RecipeSettings(Section):
    """The training settings that a checkpoint stores as its recipe."""

    steps: Positive | None = None
    """Optimizer steps (default: 4000, unless `epochs` is set)."""
    epochs: AboveZero | None = None
    """Passes over the data, instead of `steps`."""
    batch: Positive = 64
    """Conversations per optimizer step."""
    learning_rate: AboveZero = 2e-5
    """Peak learning rate of the optimizer."""
    warmup_steps: Annotated[int, Field(ge=0)] = 64
    """Steps over which the learning rate rises from zero."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning-rate schedule after the warm-up."""
    optimizer: Literal["adam", "sgd", "muon"] = "adam"
    """Optimizer; with `muon`, Adam still updates the embeddings, the output layer and the norms."""
    adam_learning_rate: AboveZero | None = None
    """Adam's peak learning rate with `muon` (default: 0.003)."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay."""
    clip: AboveZero | None = None
    """Maximum norm of the gradient, above which it is scaled down."""
    max_tokens: Positive = 1024
    """Maximum tokens of a conversation."""
    too_long: Literal["drop", "cut", "refuse"] = "drop"
    """Exclude longer conversations (`drop`), truncate them (`cut`), or fail (`refuse`)."""
    format: Annotated[str, OneOf(CHAT_TEMPLATES)] | None = None
    """Chat format of a checkpoint without a chat template."""
    lora: LoraSettings | None = None
    """Train a low-rank adapter instead of all weights."""
    replay: ReplaySettings | None = None
    """Plain text to mix into the training data to reduce forgetting."""
    validation_share: Share = 0.0
    """Share of the conversations for validation, if the data has no validation file."""
    validate_every: Positive | None = None
    """Steps between validations (default: one epoch)."""
    patience: Positive | None = None
    """Stop after this many validations without a better loss, and keep the best weights."""
    precision: Annotated[str, OneOf([AUTO, *PRECISIONS])] = AUTO
    """Number formats of weights and optimizer; `auto` chooses for the device."""
    recompute: Literal["auto", "on", "off"] = "auto"
    """Recompute activations in the backward pass instead of storing them."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile layers. On a GPU, `auto` compiles models of 1B weights or more, and others for 200 steps or more."""
    token_budget: Positive | None = None
    """Maximum tokens of a micro-batch (default: as many as fit into memory)."""
    checkpoint_every: Positive = 500
    """Steps between the checkpoints from which interrupted training resumes."""
    reshard: bool = True
    """On several GPUs, free each layer's weights after use and gather them again, to save memory."""


class _ModelAndData(Step):
    """The keys of a train step that come before the recipe in listings."""

    stage: Literal["train"]
    base: ModelRef
    """Student to train, or `step:NAME` for the model of an earlier train step."""
    data: Annotated[list[str], Field(min_length=1)]
    """Dataset steps, and paths of folders and JSON Lines files; a path contains a '/'."""


class TrainStep(RecipeSettings, _ModelAndData):
    """Fine-tune a model on data sets."""

    seed: int | None = None
    """Seed of the data order and the adapter (default: the experiment's)."""
    ranks: Annotated[Positive | None, Field(exclude=True)] = None
    """Ignored; accepted because older files have this key. `torchrun` sets the number of processes."""

    trains_model: ClassVar[bool] = True

    @model_validator(mode="after")
    def _consistent(self) -> "TrainStep":
        if self.steps is not None and self.epochs is not None:
            raise ValueError("steps and epochs both set the length of training; remove one of them")
        if self.adam_learning_rate is not None and self.optimizer != "muon":
            raise ValueError(f"adam_learning_rate needs optimizer: muon; for {self.optimizer}, set learning_rate")
        if self.optimizer == "muon" and self.lora is not None:
            raise ValueError("optimizer: muon cannot train adapters; remove lora, or choose adam")
        return self

    def recipe(self) -> dict[str, Any]:
        """Return the recipe in the form that the model's lineage stores."""
        return self.model_dump(mode="json", include=set(RecipeSettings.model_fields))

    def decisive(self) -> dict[str, Any]:
        """Return the settings that affect the trained model."""
        unset = {"adam_learning_rate"} if self.adam_learning_rate is None else set()  # older recipes lack this key
        return {key: value for key, value in self.recipe().items() if key not in _SPEED_AND_MEMORY | unset}

    @property
    def data_steps(self) -> list[str]:
        """Return the names of dataset steps in the data."""
        return [name for name in self.data if "/" not in name]

    @property
    def model_references(self) -> tuple[str, ...]:
        """Return the model that is trained."""
        return (self.base,)

    @property
    def inputs(self) -> tuple[StepInput, ...]:
        """Return the dataset steps that are part of the data."""
        return tuple(StepInput(name, ("dataset",)) for name in self.data_steps)


def untrained_faults(step: Step, models: Mapping[str, str]) -> Iterator[str]:
    """Find untrained models that a step calls."""
    for name in step.student_names:
        if name in models and shape_of(models[name]) is not None:
            yield f"{models[name]} is untrained; make it the base of a train step, and use step:NAME instead"
