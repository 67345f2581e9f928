"""The layer diagram of the README, enforced."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import skillmix

PACKAGE = Path(skillmix.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

MAY_IMPORT = {  # layer -> layers it may import
    "core": set[str](),
    "config": {"core"},
    "engine": {"core"},
    "models": {"core"},
    "verify": {"core"},
    "training": {"core"},
    "render": {"core"},
    "stages": {"core", "engine", "models", "verify", "training", "render", "config"},
    "cli": {"stages", "render", "config", "core"},
}
OUTSIDE = {  # imports that only some modules may have; a folder ends in "/"
    "torch": ("models/local/", "training/"),
    "transformers": ("models/local/", "training/"),
    "gguf": ("models/gguf_checkpoint.py",),
    "safetensors": ("models/local/", "models/gguf_checkpoint.py", "training/"),
    "tokenizers": ("models/local/", "models/gguf_checkpoint.py", "training/"),
    "aiohttp": ("models/",),
    "pydantic": ("config/", "models/replies.py", "stages/import_texts.py"),
    "yaml": ("config/", "stages/experiment.py"),
    "sqlite3": ("engine/",),
    "numpy": ("core/statistics/", "core/corpus/", "models/local/", "render/report/", "training/"),
    "matplotlib": ("render/report/",),
    "jinja2": ("render/report/",),
    "rich": ("render/progress_bar.py",),
    "peft": ("training/",),
    "pyarrow": ("stages/", "training/replay.py"),
}


def imports_of(path: Path) -> set[str]:
    """Dotted names imported anywhere in a module, function bodies included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: use absolute imports"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_down_the_layers(path: Path) -> None:
    layer = layer_of(path)
    if layer in ("__init__", "__main__"):
        return

    layers = {name.split(".")[1] for name in imports_of(path) if name.startswith("skillmix.")}

    upward = layers - MAY_IMPORT[layer] - {layer, "__version__"}
    assert not upward, f"{layer} may not import {sorted(upward)}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_outside_imports_stay_where_they_belong(path: Path) -> None:
    packages = {name.split(".")[0] for name in imports_of(path)}

    for package in packages & OUTSIDE.keys():
        assert name_of(path).startswith(OUTSIDE[package]), f"{name_of(path)} may not import {package}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_stay_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from skillmix.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = 'torch transformers gguf aiohttp jinja2 matplotlib numpy pydantic rich yaml'.split()\n"
        "print([name for name in heavy if name in sys.modules])"
    )

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert result.stdout.splitlines()[-1] == "[]"
