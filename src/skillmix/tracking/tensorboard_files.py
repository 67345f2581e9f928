"""TensorBoard: event files in the folder of the run, which `tensorboard --logdir` shows."""

from collections.abc import Mapping

from skillmix.tracking.tracker import TrackedPart


class TensorboardFiles:
    """Writes event files."""

    def __init__(self, part: TrackedPart) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(part.folder / "tensorboard" / part.name))

    def begin(self, facts: Mapping[str, str]) -> None:
        """Do nothing: an interrupted training goes on in a further file of the same folder."""

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Write a scalar for each value; a kill loses none that was logged."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self) -> None:
        """Close the file."""
        self._writer.close()
