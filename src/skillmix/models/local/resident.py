"""The model that stays in memory between the passes and steps of a run.

The next model of the same architecture only replaces the weights: slots, captured steps and compiled modules are used
again. `read_ahead` reads the next checkpoint in a thread while the present model writes its last rows. At any time
one model at most is kept.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skillmix.models.bundled import bundled_models
from skillmix.models.checkpoints import Checkpoint, FileStates, checkpoint_of
from skillmix.models.local.apart.model_process import ModelProcess, is_wanted
from skillmix.models.local.gpu_share import gpu_memory
from skillmix.models.local.importing import import_here
from skillmix.models.specs import ModelSpec, require_packages

if TYPE_CHECKING:
    from skillmix.models.local.chat import Renderer
    from skillmix.models.local.generator import Done, Generator
    from skillmix.models.local.loading import Loaded, StoredModel

_SHARE_FOR_TRAINING: Final = 0.5
"""The kept model gives way to training unless this share of the device's memory is free."""
_LARGEST_AHEAD: Final = 4 << 30
"""Bytes of weights that are read ahead of their use; a larger model would take too much of the host's memory."""


class Resident:
    """A model in memory, with its generator once there is one."""

    def __init__(self, model: Any, renderer: "Renderer", files: FileStates) -> None:
        self.model = model
        self.renderer = renderer
        self.files = files
        """The state of the files that the weights are from."""
        self.generator: Generator | None = None
        self.slots = 0
        self._concurrency: int | None = None

    def generator_with(self, concurrency: int | None, default: Callable[[Any], int], *, done: "Done") -> "Generator":
        """A generator of the present weights; `default` decides the number of slots if `concurrency` is None."""
        from skillmix.models.local.generator import Generator

        if self.generator is None or self._concurrency != concurrency:
            self.generator = None  # its memory counts when the slots are chosen
            self.slots, self._concurrency = concurrency or default(self.model), concurrency
            self.generator = Generator(self.model, self.renderer, slots=self.slots, done=done)
        else:
            self.generator.serve_next(self.renderer, done=done)
        return self.generator


class _Ahead:
    """A checkpoint that a thread reads ahead of its use."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.files: FileStates = ()
        """The state of its files before they were read."""
        self.result: Future[Loaded | StoredModel | None] = Future()
        """A model on the device if there was none, else weights in the memory of the host; None after an error."""


class ModelKeeper:
    """Keeps at most one model; a thread takes it out, uses it alone, and puts it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._kept: Resident | None = None
        self._is_lent = False
        self._ahead: _Ahead | None = None
        self._announced: ModelSpec | None = None
        self._process: ModelProcess | None = None

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep the last model inside this block; outside of such a block nothing is kept or read ahead."""
        with self._lock:
            self._blocks += 1
        try:
            yield
        finally:
            with self._lock:
                self._blocks -= 1
            if not self._blocks:
                self._announced = None
                self.drop()
                if self._process is not None:
                    self._process.close()
                    self._process = None

    def process(self) -> ModelProcess | None:
        """The process in which models work; None if they work in this one.

        It is started when it is first needed, and ends with the outermost block of `keeping`.
        """
        if not self._blocks or not is_wanted():
            return None
        with self._lock:
            if self._process is None or self._process.is_lost:
                self._process = ModelProcess()
            return self._process

    def read_ahead(self, spec: ModelSpec | None, modules: Sequence[str] = ()) -> None:
        """Begin to read a checkpoint in a thread; for None only to import torch and transformers in this process.

        `modules` are imported after them. An error is dropped: it shows when the model or the module is used.
        """
        if spec is not None and (process := self.process()) is not None:
            process.read_ahead(spec)
            return
        with self._lock:
            if not self._blocks or (self._ahead is not None and self._ahead.spec == spec):
                return
            ahead = None
            if spec is not None:
                ahead = self._ahead = _Ahead(spec)
            has_model = self._is_lent or self._kept is not None
        # The thread is not a daemon: a process that ends in the middle of an import may crash.
        threading.Thread(target=self._read, args=(ahead, has_model, modules), name="skillmix-ahead").start()

    def announce(self, spec: ModelSpec) -> None:
        """Note which model is used after the present one; it is read when the present one runs out of requests."""
        if (process := self.process()) is not None:
            process.announce(spec)
            return
        self._announced = spec

    def read_announced(self) -> None:
        """Begin to read the announced model, if there is one."""
        if (process := self.process()) is not None:
            process.read_announced()
            return
        spec, self._announced = self._announced, None
        if spec is not None:
            self.read_ahead(spec)

    def drop(self) -> None:
        """Free the memory of the kept model and of what was read ahead."""
        with self._lock:
            had_model = self._kept is not None or self._ahead is not None
            self._kept = self._ahead = None
        if had_model:
            free_device_memory()

    def make_room(self) -> None:
        """Before training, free memory if too little is free: first the slots, then the model."""
        if self._process is not None:
            self._process.make_room()
        with self._lock:
            kept, self._ahead = self._kept, None
        if kept is None:
            return
        free_device_memory()
        if _free_share() >= _SHARE_FOR_TRAINING:
            return
        kept.generator = None
        free_device_memory()
        if _free_share() < _SHARE_FOR_TRAINING:
            self.drop()

    @contextmanager
    def borrowed(self, spec: ModelSpec) -> Iterator[Resident]:
        """The model of a spec, in memory; it is kept for the next model unless the block raises an error."""
        require_packages(spec)
        import_here()
        resident = self._opened(spec)
        try:
            yield resident
            with self._lock:
                self._kept = resident if self._blocks else None
        finally:
            self._is_lent = False

    def _opened(self, spec: ModelSpec) -> Resident:
        checkpoint = checkpoint_of(spec)
        files = checkpoint.file_states()
        ready = self._take_ahead(spec, files)
        with self._lock:
            kept, self._kept, self._is_lent = self._kept, None, True
        from skillmix.models.local.loading import Loaded, load, writing_device

        if kept is not None:
            if kept.files == files or (not isinstance(ready, Loaded) and _got_weights(kept, checkpoint, ready)):
                kept.files = files
                return kept
            kept = None
            free_device_memory()
        loaded = ready if isinstance(ready, Loaded) else load(checkpoint, device=writing_device())
        return Resident(loaded.model, loaded.renderer, files)

    def _take_ahead(self, spec: ModelSpec, files: FileStates) -> "Loaded | StoredModel | None":
        """What was read ahead, if it is this model and its files have not changed since."""
        with self._lock:
            ahead = self._ahead
            if ahead is None or ahead.spec != spec:
                return None
            self._ahead = None
        result = ahead.result.result()
        return result if ahead.files == files else None

    def _read(self, ahead: _Ahead | None, has_model: bool, modules: Sequence[str]) -> None:
        import_here(modules)
        if ahead is None:
            return
        result: Loaded | StoredModel | None = None
        try:
            if threading.main_thread().is_alive() and _is_at_hand(ahead.spec):
                checkpoint = checkpoint_of(ahead.spec)
                ahead.files = checkpoint.file_states()
                if checkpoint.bytes() <= _LARGEST_AHEAD:
                    result = _read_checkpoint(checkpoint, has_model=has_model)
        except Exception:  # noqa: BLE001  # the model's user reads the checkpoint again and sees the error
            result = None
        finally:
            ahead.result.set_result(result)


def _read_checkpoint(checkpoint: Checkpoint, *, has_model: bool) -> "Loaded | StoredModel":
    from skillmix.models.local.loading import load, read_stored, writing_device

    device = writing_device()
    # On a CPU the present model cannot take other weights, and the memory of the host holds two models.
    return (
        read_stored(checkpoint, is_pinned=True) if has_model and device == "cuda" else load(checkpoint, device=device)
    )


def _is_at_hand(spec: ModelSpec) -> bool:
    """Whether a model needs no download."""
    if spec.provider != "bundled":
        return True
    name = spec.name.partition("+")[0]
    return any(model.spec == f"bundled:{name}" and model.folder for model in bundled_models())


def _got_weights(resident: Resident, checkpoint: Checkpoint, stored: "StoredModel | None") -> bool:
    """Put a checkpoint's weights into a resident model; False if the checkpoint needs another model."""
    from skillmix.models.local.chat import Renderer
    from skillmix.models.local.loading import fits, holds_copies, read_stored, replace_weights, writing_device

    if holds_copies(resident.model):
        return False
    try:
        stored = stored or read_stored(checkpoint, is_pinned=False)
    except Exception:  # noqa: BLE001  # loading the model in the ordinary way explains what is wrong
        return False
    if resident.model.device.type != writing_device() or not fits(resident.model, stored):
        return False
    resident.renderer = Renderer(stored.tokenizer, name=str(checkpoint.base))
    replace_weights(resident.model, stored)
    return True


def _free_share() -> float:
    """The share of the device's memory that is free; 0 if that is not known."""
    from skillmix.models.local.loading import writing_device

    if writing_device() == "cuda":
        free, whole = gpu_memory()
        return float(free / whole)
    try:
        facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        return int(facts["MemAvailable"].split()[0]) / int(facts["MemTotal"].split()[0])
    except (OSError, ValueError, KeyError):
        return 0.0


def free_device_memory() -> None:
    """Give memory of the GPU that nothing in this process uses back to other processes."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)  # not there while a thread still imports torch
    is_initialized = getattr(cuda, "is_initialized", None)
    if is_initialized is not None and is_initialized():
        cuda.empty_cache()


MODELS: Final = ModelKeeper()
"""The keeper of this process."""
