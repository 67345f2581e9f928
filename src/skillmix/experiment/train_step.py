"""Train steps of an experiment; the defaults are the paper's recipe (arXiv 2409.19808, section 3.3)."""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, model_validator

from skillmix.experiment.sections import ModelRef, Positive, Section, Share, Step, StepInput

ChatFormatName = Literal["llama-2", "mistral-v0.2", "chatml", "llama-3", "gemma"]
AboveZero = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


_ONLY_HOW: Final = frozenset({"token_budget", "recompute", "compile", "checkpoint_every", "reshard", "precision"})
"""Settings of speed and memory: a run may go on with others."""
_NOT_RECIPE: Final = frozenset({"name", "stage", "base", "data", "seed"})


class LoraSettings(Section):
    """Train an adapter of low rank instead of all weights."""

    rank: Positive = 16
    alpha: AboveZero = 32
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    targets: list[str] | Literal["all-linear"] = "all-linear"
    """Names of the layers that get one; all but the output layer if not given."""
    merge: bool = False
    """Write a whole checkpoint with the adapter merged into it, instead of the adapter."""


class ReplaySettings(Section):
    """Plain text mixed in against forgetting: loss = mean(answers) + gamma · mean(replay)."""

    sources: Annotated[list[str], Field(min_length=1)]
    """Text, JSON Lines and Parquet files, and folders of them."""
    field: str = "text"
    """Where JSON Lines and Parquet rows have their text."""
    ratio: AboveZero = 0.25
    """Texts for each conversation."""
    gamma: NotNegative = 0.5
    max_tokens: Positive | None = None
    """Length of a text; that of conversations if not given."""


class TrainStep(Step):
    """Fine-tune on data sets."""

    stage: Literal["train"]
    base: ModelRef
    """Student whose model is trained, or `step:NAME` to go on with what a train step made."""
    data: Annotated[list[str], Field(min_length=1)]
    """Dataset steps by name; folders and JSON Lines files by path, which has a '/' in it."""
    steps: Positive | None = None
    """Optimiser steps; 4,000 if neither these nor epochs are given."""
    epochs: AboveZero | None = None
    batch: Positive = 64
    """Conversations a step, however they are packed."""
    learning_rate: AboveZero = 2e-5
    warmup_steps: Annotated[int, Field(ge=0)] = 64
    schedule: Literal["constant", "cosine"] = "constant"
    optimizer: Literal["adam", "sgd"] = "adam"
    weight_decay: NotNegative = 0.0
    clip: AboveZero | None = None
    """Norm that the whole gradient is cut to."""
    max_tokens: Positive = 1024
    too_long: Literal["drop", "refuse"] = "drop"
    """What becomes of a conversation that is longer: left out and counted, or an error."""
    format: ChatFormatName | None = None
    """For a checkpoint without a chat template."""
    lora: LoraSettings | None = None
    replay: ReplaySettings | None = None
    validation_share: Share = 0.0
    """Share of the conversations held back for validation, of data without a validation part of its own."""
    validate_every: Positive | None = None
    """Steps between validations; an epoch if not given."""
    patience: Positive | None = None
    """Stop after so many validations without a better loss, and keep the best."""
    precision: Literal["auto", "fp32", "bf16-master", "bf16-stochastic"] = "auto"
    recompute: Literal["auto", "on", "off"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    token_budget: Positive | None = None
    """Most tokens in a micro-batch; what memory holds if not given."""
    checkpoint_every: Positive = 500
    reshard: bool = True
    """On several GPUs: free each layer's weights after use, which takes the least memory."""
    seed: int | None = None
    """Of the order and of the adapter; the experiment's if not given."""

    @model_validator(mode="after")
    def _consistent(self) -> "TrainStep":
        if self.steps is not None and self.epochs is not None:
            raise ValueError("steps and epochs are two ways to say the same: give one of them")
        return self

    def recipe(self) -> dict[str, Any]:
        """How it is trained, as the lineage of the model keeps it."""
        return self.model_dump(mode="json", exclude=set(_NOT_RECIPE))

    def decisive(self) -> dict[str, Any]:
        """The part of the recipe that changes the model."""
        return {key: value for key, value in self.recipe().items() if key not in _ONLY_HOW}

    @property
    def data_steps(self) -> list[str]:
        """The dataset steps among the data."""
        return [name for name in self.data if "/" not in name]

    trains_model: ClassVar[bool] = True

    @property
    def model_references(self) -> tuple[str, ...]:
        """The base."""
        return (self.base,)

    @property
    def inputs(self) -> tuple[StepInput, ...]:
        """The dataset steps among the data."""
        return tuple(StepInput(name, ("dataset",)) for name in self.data_steps)
