"""The order of the folders and the size of the house, enforced."""

import ast
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import skillmix
from tests import fragmentation

PACKAGE = Path(skillmix.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

ORDER = (  # a folder imports only what is named before it
    "errors",
    "hashing",
    "render",
    "files",
    "catalog",
    "calls",
    "prompts",
    "grading",
    "checkers",
    "models",
    "experiment",
    "runs",
    "scores",
    "tracking",
    "datasets",
    "rewards",
    "training",
    "report",
    "validation",
    "steps",
    "frequencies",
    "exchange",
    "api",
    "commands",
)
OUTSIDE = {  # imports that only some modules may have; a folder ends in "/"
    "torch": ("models/local/", "training/"),
    "transformers": ("models/local/", "training/"),
    "gguf": ("models/bundled.py",),
    "safetensors": ("models/local/", "models/bundled.py", "training/"),
    "tokenizers": ("models/local/", "training/"),
    "aiohttp": ("models/servers/", "validation/server.py"),
    "pydantic": (
        "files.py",
        "catalog/files.py",
        "catalog/grammar.py",
        "prompts/prompt_set.py",
        "models/lineage_files.py",
        "models/servers/protocols.py",
        "experiment/",
        "exchange/import_texts.py",
        "exchange/task_settings.py",
        "frequencies/frequency_file.py",
        "validation/known_texts.py",
        "validation/server.py",
    ),
    "yaml": ("files.py", "experiment/", "runs/run.py", "exchange/share.py"),
    "sqlite3": ("runs/",),
    "numpy": (
        "runs/texts.py",
        "scores/statistics/",
        "scores/scoring.py",
        "scores/skills.py",
        "datasets/copies.py",
        "datasets/corpus.py",
        "models/local/",
        "report/",
        "training/",
    ),
    "scipy": ("scores/statistics/",),
    "matplotlib": ("report/", "training/log.py"),
    "jinja2": ("report/",),
    "rich": ("runs/progress.py",),
    "peft": ("training/",),
    "ray": ("models/ray.py",),
    "inspect_ai": ("exchange/inspect_task.py",),
    "tensorboard": ("tracking.py",),
    "wandb": ("tracking.py",),
    "mlflow": ("tracking.py",),
    "zstandard": ("exchange/import_inspect.py",),
    "pyarrow": (
        "datasets/",
        "frequencies/documents.py",
        "training/",
        "exchange/export.py",
        "report/tables/formats.py",
        "exchange/import_inspect.py",
    ),
}
OPENS_LATER = ("models/specs.py",)
"""The table of providers: its functions import the modules that it opens, and these modules may import the table."""
MODULES_NAMED_TWICE = {  # a module's name and why its folder makes it plain
    "calls": "calls.py is one call of a model, steps/calls.py the steps that make calls",
    "catalog": "catalog/catalog.py is the catalog, commands/catalog.py the commands about it",
    "files": "files.py reads any file, catalog/files.py those of a catalog",
    "graders": "scores/ compares graders, report/tables/ shows the comparison",
    "registry": "checkers/registry.py is the table of checkers, report/registry.py says what a table and a figure is",
    "run": "runs/run.py is the run, steps/run.py does its steps, commands/run.py is the command",
    "scores": "report/tables/ and report/figures/ show the same scores",
    "skills": "scores/ computes the outcomes of skills, report/figures/ draws them",
}
MOST_LINES = 700
MOST_FILES = 20


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports_of(path: Path, *, with_functions: bool = True) -> frozenset[str]:
    """Dotted names imported anywhere in a module, function bodies included unless they are left out."""
    names = set()
    body = [n for n in tree_of(path).body if with_functions or not isinstance(n, ast.FunctionDef)]
    for node in (inner for outer in body for inner in ast.walk(outer)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: use absolute imports"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def folder_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def modules_imported(path: Path) -> frozenset[Path]:
    """The modules of the package that a module imports, or imports names of."""
    found = set()
    for name in imports_of(path, with_functions=name_of(path) not in OPENS_LATER):
        first, *parts = name.split(".")
        for size in range(len(parts), 0, -1) if first == "skillmix" else ():
            place = PACKAGE.joinpath(*parts[:size])
            file = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__init__.py"
            if file.is_file():
                found.add(file)
                break
    return frozenset(found - {path})


def test_a_folder_imports_only_folders_named_before_it() -> None:
    wrong = []
    for path in MODULES:
        folder = folder_of(path)
        if folder not in ("__init__", "__main__"):
            names = {name.split(".")[1] for name in imports_of(path) if name.startswith("skillmix.")}
            later = [o for o in names - {folder, "__version__"} if ORDER.index(o) > ORDER.index(folder)]
            wrong += [f"{name_of(path)} may not import {other}" for other in later]

    assert wrong == []


def test_every_folder_has_its_place_in_the_order() -> None:
    assert {folder_of(path) for path in MODULES} - {"__init__", "__main__"} == set(ORDER)


def test_no_module_imports_itself_through_others() -> None:
    done: set[Path] = set()

    def visit(path: Path, above: tuple[Path, ...]) -> None:
        if path in above:
            circle = [*above[above.index(path) :], path]
            raise AssertionError(" → ".join(map(name_of, circle)))
        if path not in done:
            for other in sorted(modules_imported(path)):
                visit(other, (*above, path))
            done.add(path)

    for path in MODULES:
        if folder_of(path) != "__init__":
            visit(path, ())


def test_outside_imports_stay_where_they_belong() -> None:
    wrong = [
        f"{name_of(path)} may not import {package}"
        for path in MODULES
        for package in {name.split(".")[0] for name in imports_of(path)} & OUTSIDE.keys()
        if not name_of(path).startswith(OUTSIDE[package])
    ]

    assert wrong == []


def test_no_module_of_the_package_is_imported_by_a_string() -> None:
    """The tests above and mypy see only import statements."""
    importers = {"import_module", "__import__", "find_spec"}
    wrong = []
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in importers:
                strings = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
                ours = [text for text in strings if text.split(".")[0] == "skillmix"]
                wrong += [f"{name_of(path)}:{node.lineno}: import {name} with a statement" for name in ours]

    assert wrong == []


def test_no_public_class_name_is_used_twice() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name_of(path))

    twice = {name: paths for name, paths in places.items() if len(paths) > 1}

    assert twice == {}


def test_a_module_name_is_used_twice_only_for_a_reason() -> None:
    paths = defaultdict(list)
    for path in MODULES:
        if path.stem != "__init__":
            paths[path.stem].append(name_of(path))

    twice = {name: files for name, files in paths.items() if len(files) > 1}

    advice = "choose another name, or add the name to MODULES_NAMED_TWICE with a reason"
    new = {name: files for name, files in twice.items() if name not in MODULES_NAMED_TWICE}
    assert not new, f"{new} are module names that other folders have: {advice}"
    assert twice.keys() == MODULES_NAMED_TWICE.keys(), "MODULES_NAMED_TWICE lists names that occur once"


def test_a_module_gives_each_name_one_value() -> None:
    """A constant that is assigned again, as after a careless merge, changes the functions above it too."""
    wrong = []
    for path in MODULES:
        names = Counter(
            target.id
            for node in tree_of(path).body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        )
        wrong += [f"{name_of(path)}: {name}" for name, count in names.items() if count > 1]

    assert wrong == []


def test_modules_stay_small() -> None:
    lines = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}

    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_no_fragment_is_new_and_none_on_the_list_is_gone() -> None:
    found, listed = fragmentation.fragments(), fragmentation.allowed()

    assert sorted(found - listed) == [], "merge these modules into their importers, inline these functions"
    assert sorted(listed - found) == [], "gone, so run `python -m tests.fragmentation`"


def test_folders_stay_small() -> None:
    files = Counter(path.parent.relative_to(PACKAGE).as_posix() for path in MODULES)

    assert {folder: number for folder, number in files.items() if number > MOST_FILES} == {}


def test_no_hint_names_a_file_that_is_not_installed() -> None:
    """Hints reach errors by many ways, so every string but a docstring is taken for one."""
    wrong = []
    for path in MODULES:
        tree = tree_of(path)
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        wrong += [
            f"{name_of(path)}:{node.lineno}: the wheel has no docs/"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
            if "docs/" in node.value
        ]

    assert wrong == []
