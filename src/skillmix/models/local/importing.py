"""Import torch and transformers with the right settings, and in one thread at a time.

Two threads that import transformers at the same time can see half of a module, because its modules import each other.
Every function that imports torch therefore calls `before_torch` first.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import takewhile
from types import ModuleType
from typing import Any, Final

from skillmix.models.compile_cache import keep_compiled_kernels

_MODULES: Final = (
    "torch",
    "transformers",
    "transformers.modeling_utils",
    "transformers.generation.utils",
    "skillmix.models.local.loading",
    "skillmix.models.local.generator",
)
"""The modules of a model that writes; a process that ends can stop the import between two of them."""
_NOT_NEEDED: Final = ("accelerate", "scipy", "sklearn", "torchaudio", "torchvision")
"""Packages that transformers imports if they are installed, for things that no local model here does."""

_lock = threading.Lock()
_importer: threading.Thread | None = None
_is_over = threading.Event()
_is_lean = False


def before_torch() -> None:
    """Set what torch reads when it is imported, and wait for another thread that is importing it."""
    _set_environment()
    if _importer not in (None, threading.current_thread()):
        _is_over.wait()


def import_lean() -> None:
    """Let `import_here` leave out half of what transformers imports; only for a process that is a skillmix command.

    Transformers then behaves in this process as if accelerate, scipy, scikit-learn, torchaudio and torchvision were not
    installed and torch could not be distributed. Processes of torchrun import everything, and so does
    SKILLMIX_IMPORTS=all.
    """
    global _is_lean
    _is_lean = "WORLD_SIZE" not in os.environ and os.environ.get("SKILLMIX_IMPORTS") != "all"


def is_lean() -> bool:
    """Whether `import_lean` was called and had an effect."""
    return _is_lean


def import_here(modules: Sequence[str] = ()) -> None:
    """Import everything that a model needs, or wait until another thread has done so.

    The thread that imports also imports `modules`, parts of torch last and without leaving anything out. An error is
    left to the code that needs the module: it imports the module again and raises the same error.
    """
    global _importer  # a process imports once
    with _lock:
        is_first = _importer is None
        if is_first:
            _importer = threading.current_thread()
    before_torch()
    if not is_first:
        return
    try:
        _import_all(modules)
    except Exception:  # noqa: BLE001  # see above
        return
    finally:
        _is_over.set()


def _import_all(modules: Sequence[str]) -> None:
    parts_of_torch = [name for name in modules if name.startswith("torch.")]
    others = [name for name in modules if name not in parts_of_torch]
    with ExitStack() as stack:
        for name in _while_the_process_lives(*_MODULES, *others):
            import_module(name)
            if name == "torch":
                threading.Thread(target=_wake_gpu, name="skillmix-gpu").start()
            if name == "transformers" and _is_lean:
                stack.enter_context(_without_what_is_not_needed())
    for name in _while_the_process_lives(*parts_of_torch):
        import_module(name)


def _while_the_process_lives(*names: str) -> Iterator[str]:
    """The names, as long as the process has not begun to end: it waits for the thread that imports."""
    return takewhile(lambda _: threading.main_thread().is_alive(), names)


def _wake_gpu() -> None:
    """Create the context of the GPU and load its libraries, which takes about a second, while modules are imported."""
    torch: Any = import_module("torch")
    with suppress(Exception):  # whoever uses the GPU sees the error
        if os.environ.get("SKILLMIX_DEVICE") in (None, "cuda") and torch.cuda.is_available():
            rows = torch.ones(1, 1, 64, 64, dtype=torch.bfloat16, device="cuda")
            torch.nn.functional.scaled_dot_product_attention(rows @ rows, rows, rows, is_causal=True)
            torch.cuda.synchronize()


@contextmanager
def _without_what_is_not_needed() -> Iterator[None]:
    """Hide optional packages from transformers while its modules are imported.

    What transformers found out about packages stays in its caches, so that it goes on to behave as it was imported.
    """
    torch: Any = import_module("torch")
    checks: Any = import_module("transformers.utils.import_utils")
    is_package_available: Callable[..., Any] = checks._is_package_available

    def is_wanted(name: str, *arguments: Any, **keywords: Any) -> Any:
        known = "a_package_that_does_not_exist" if name in _NOT_NEEDED and name not in sys.modules else name
        return is_package_available(known, *arguments, **keywords)

    def forget_packages() -> None:
        for name in ("torch_distributed", *_NOT_NEEDED):
            getattr(checks, f"is_{name}_available").cache_clear()

    forget_packages()
    try:
        with (
            _replaced(checks, "_is_package_available", is_wanted),
            _replaced(torch.distributed, "is_available", lambda: False),
            _replaced(torch.compiler, "disable", _undecorated),
            without_compiler(),
        ):
            yield
    except BaseException:
        forget_packages()  # the next import of the modules that failed sees everything
        raise


@contextmanager
def without_compiler() -> Iterator[None]:
    """Keep torch and transformers from importing the compiler of torch only to mark functions for it.

    Importing it takes seconds, and nothing is compiled inside this block. Functions of transformers that are defined
    here stay unmarked: those are for paged attention and 8-bit floats, which are not used. Marks of torch's own
    functions are made when they are next called. No other thread uses torch meanwhile, see `before_torch`.
    """
    if not _is_lean or _COMPILER in sys.modules:
        yield
        return
    torch: Any = import_module("torch")
    compiler = _Compiler(_COMPILER)
    sys.modules[_COMPILER] = compiler
    torch._dynamo = compiler
    finder = _PartsOfCompiler()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):
            if module is compiler or isinstance(module, _Later):
                del sys.modules[name]
        if vars(torch).get("_dynamo") is compiler:
            del torch._dynamo
        compiler.unmark()


_COMPILER: Final = "torch._dynamo"


class _Compiler(ModuleType):
    """Stands for the compiler of torch: its decorators change nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []
        self._marked: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _undecorated

    def disable(self, function: Any = None, *_: Any, **__: Any) -> Any:
        """Leave a function as it is; torch notes the result in the function, where `unmark` removes it."""
        self._marked.append(function)
        return _undecorated(function)

    def unmark(self) -> None:
        """Let torch ask the real compiler about these functions from now on."""
        for function in self._marked:
            getattr(function, "__dict__", {}).pop("__dynamo_disable", None)


class _PartsOfCompiler(MetaPathFinder, Loader):
    """Finds a stand-in for every part of the compiler: packages import names from them that they call much later."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The stand-in for a part of the compiler; None for any other module."""
        return ModuleSpec(fullname, self) if fullname.startswith(f"{_COMPILER}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The stand-in."""
        return _Later(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


class _Later(ModuleType):
    """Stands for a module that is imported when one of its functions is called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return partial(_call_later, self.__name__, name)


def _call_later(module: str, name: str, *arguments: Any, **keywords: Any) -> Any:
    return getattr(import_module(module), name)(*arguments, **keywords)


def _undecorated(function: Any = None, *_: Any, **__: Any) -> Any:
    return function if callable(function) else _undecorated


@contextmanager
def _replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _set_environment() -> None:
    # Threads that spin long while they wait for each other make a busy machine many times slower; threads that do not
    # spin at all make an idle machine half as fast.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    keep_compiled_kernels()
