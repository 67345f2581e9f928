"""The table of precisions, and what each takes on the disk and in memory."""

import pytest

from skillmix.experiment.train_step import PRECISIONS, weights_format


@pytest.mark.parametrize(
    ("name", "in_training", "in_checkpoint", "frozen"),
    [("fp32", 16, 12, 4), ("bf16-master", 16, 12, 2), ("bf16-stochastic", 8, 6, 2)],
)
def test_bytes_of_a_weight(name: str, in_training: int, in_checkpoint: int, frozen: int) -> None:
    precision = PRECISIONS[name]

    assert (precision.training_bytes, precision.checkpoint_bytes) == (in_training, in_checkpoint)
    assert precision.weight_bytes == frozen


def test_auto_leaves_the_format_open() -> None:
    assert weights_format("auto") is None
    assert {name: weights_format(name) for name in PRECISIONS} == {
        "fp32": "float32",
        "bf16-master": "bfloat16",
        "bf16-stochastic": "bfloat16",
    }
