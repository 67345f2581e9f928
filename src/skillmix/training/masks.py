"""Conversations token by token, with the tokens marked that a train step learns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from skillmix.experiment.experiment import load_experiment
from skillmix.models.specs import parse_spec, require_packages
from skillmix.runs.run import new_run
from skillmix.training.job import base_spec, chosen_steps, lessons_of


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
        from skillmix.training.scratch import base_tokenizer

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
