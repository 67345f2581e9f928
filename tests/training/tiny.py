"""Models that train in milliseconds, and random examples for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from skillmix.training.data.examples import Example
from skillmix.training.step.engine import Engine

VOCABULARY = 97


def tiny_model(*, size: int = 32, layers: int = 2, vocabulary: int = VOCABULARY, seed: int = 0) -> Any:
    """Random weights; input and output embeddings are one."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=size,
        intermediate_size=2 * size,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def example(length: int, *, seed: int, is_replay: bool = False, trained: float = 0.5) -> Example:
    rng = np.random.default_rng(seed)
    is_trained = rng.random(length) < (1 if is_replay else trained)
    is_trained[0], is_trained[-1] = False, True
    tokens = rng.integers(0, VOCABULARY, length).astype(np.int32)
    return Example(f"{'replay' if is_replay else 'talk'}-{seed}", tokens, is_trained, is_replay=is_replay)


@dataclass(frozen=True)
class Steps:
    """Examples of each step, given in full."""

    given: Sequence[Sequence[Example]]
    steps_per_epoch: int = 4

    def step(self, number: int) -> Sequence[Example]:
        return self.given[number % len(self.given)]


def random_step(number: int, *, conversations: int = 5, texts: int = 2, longest: int = 60) -> list[Example]:
    rng = np.random.default_rng([7, number])
    lengths = rng.integers(4, longest, conversations + texts)
    return [
        example(int(length), seed=1000 * number + place, is_replay=place >= conversations)
        for place, length in enumerate(lengths)
    ]


def weights_of(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1).float() for p in model.parameters() if p.requires_grad])


def gradients_of(engine: Engine) -> dict[str, torch.Tensor]:
    return {trained.name: trained.total.clone() for trained in engine.optimizer.parameters}


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative to the size of what is expected."""
    return float((found - expected).norm() / expected.norm())
