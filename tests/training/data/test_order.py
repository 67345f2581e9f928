"""The order of conversations: whole epochs, other orders, known from the step's number alone."""

import numpy as np

from skillmix.training.data.batches import TrainingOrder, steps_of
from skillmix.training.data.examples import Example


def examples(count: int) -> list[Example]:
    return [Example(f"c{n}", np.arange(3, dtype=np.int32), np.array([False, True, True]), False) for n in range(count)]


def keys(data: TrainingOrder, steps: int) -> list[str]:
    return [example.key for number in range(steps) for example in data.step(number)]


def test_every_epoch_has_every_conversation_once_in_an_order_of_its_own() -> None:
    data = TrainingOrder(examples(10), batch=4, seed=0)

    found = keys(data, 10)

    epochs = [found[start : start + 10] for start in range(0, 40, 10)]
    assert all(sorted(epoch) == sorted(f"c{n}" for n in range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert data.steps_per_epoch == 3


def test_a_batch_is_so_many_conversations_even_if_there_are_fewer() -> None:
    assert len(TrainingOrder(examples(3), batch=64, seed=0).step(5)) == 64


def test_another_seed_is_another_order() -> None:
    assert keys(TrainingOrder(examples(50), batch=50, seed=0), 1) != keys(
        TrainingOrder(examples(50), batch=50, seed=1), 1
    )


def test_whole_epochs_end_with_a_smaller_batch() -> None:
    steps, total = steps_of(2, conversations=10, batch=8)

    data = TrainingOrder(examples(10), batch=8, seed=0, total=total)

    assert steps == 3
    assert [len(data.step(number)) for number in range(3)] == [8, 8, 4]
