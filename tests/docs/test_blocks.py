"""Every command and every line of Python on the site runs, offline, in one folder; YAML and JSON can be read.

A command that cannot run here stands in `NOT_RUN` with a reason, and the parser must still accept its arguments.
"""

import asyncio
import json
import re
import shlex
import threading
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tools.docs.command_options import commands as all_commands

from skillmix.checkers import registry
from skillmix.commands import main, parser_of_all
from skillmix.experiment.experiment import load_experiment
from skillmix.runs.batches import batched
from tests.checkers.own_catalog import write_catalog
from tests.docs.pages import PAGES, ROOT, Block, ShownCommand, agrees, blocks, commands, replaced, run_line, text_of
from tests.models.stub import chat, serving
from tests.runs.batches.experiments import FAST
from tests.runs.batches.stub_provider import StubProvider
from tests.runs.batches.stub_provider import serving as serve_batches

PARSER: Final = parser_of_all()
COMMANDS: Final = all_commands()
SEEN_ELSEWHERE: Final = {
    "python.md": "tests/test_python_page.py runs the page from top to bottom",
    "training.md": "tests/test_rewards.py runs the trainer of the page, with a small model",
    "models.md": "tests/models/test_installed.py installs the provider of the page and runs its program",
}
"""Pages whose Python blocks another test runs."""

NOT_RUN: Final = {
    "pip install": "sets up an environment; tests/test_package.py installs wheel and sdist",
    "pip wheel": "builds a wheel; tests/test_package.py builds and installs one",
    "pip download": "downloads 358 MB",
    "python3 -m venv": "sets up an environment",
    "source .venv": "sets up an environment",
    "vllm serve": "needs a GPU",
    "torchrun": "needs several GPUs; tests/training/test_ranks.py trains on two ranks",
    "ray get-auth-token": "would make a token in the home of whoever runs the tests",
    "ray start": "needs a cluster; tests/models/test_ray.py runs workers where Ray is installed",
    "export RAY_AUTH_MODE": "needs a cluster",
    "RAY_ADDRESS=": "needs a cluster",
    "skillmix run EXPERIMENT.yaml --on ray": "starts a cluster for ten seconds; tests/models/test_ray.py runs it",
    "inspect ": "needs a key or a screen; tests/exchange runs the tasks where Inspect AI is installed",
    "skillmix import-inspect": "needs the logs of the command above",
    "skillmix scores inspected": "needs the logs of the command above",
    "source <(skillmix completion": "changes the shell; tests/commands/test_completion.py tries the completion",
    "skillmix completion": "writes to the reader's own folder; tests/commands/test_completion.py tries the completion",
    "apt-get": "downloads packages of Debian",
    "python bench/": "a benchmark; it needs files that are not shipped or minutes",
    "skillmix frequency --catalog verifiable --corpus novel": "needs the corpora of the packages above",
    "skillmix frequency --catalog verifiable --corpus factual": "needs the corpora of the packages above",
    "skillmix calibrate openai:gpt-4o --set bigbench": "needs the archive above",
    "skillmix calibrate rules: --set blind.yaml": "needs the file that the benchmark above writes",
    "skillmix run quickstart": "trains for two minutes; tests/training/test_scratch.py trains small students",
    "skillmix run examples/": "trains for minutes or needs a server; tests/test_examples.py runs smaller versions",
    "skillmix graders own-grader": "the line above",
    "head -n 1 runs/data-for-trl": "the line above",
    "skillmix run composition": "takes hours; the line above",
    "skillmix run experiments/paper-": "needs models of 7 and 13 billion parameters; tests/steps/test_paper_files.py",
    "skillmix report paper-": "needs these runs",
    "D=runs/": "needs these runs",
    "SAME=(": "needs these runs",
    "for stage in": "needs these runs",
    "skillmix dataset experiments/dataset-": "a model writes for minutes; tests/datasets/test_bundled.py",
    "skillmix dataset RUN OTHER-RUN --recipe ablation": "needs 8,000 texts; tests/datasets/test_build.py",
    "skillmix annotate RUN --rater ann --rater bo": "serves pages until Ctrl-C; tests/validation opens them",
    "skillmix annotate RUN --step read": "serves pages until Ctrl-C; tests/validation opens them",
    "skillmix report first --style paper": "draws figures for ten seconds; tests/report draws them",
}
"""Beginnings of commands that no test on this page runs, each with its reason."""

STAND_INS: Final = {
    "openai:gpt-4o": "scripted:grader",
    "local:models/judge": "scripted:grader?noise=0.1",
    "RUN": "first",
    "OTHER-RUN": "seed-0",
    "EXPERIMENT.yaml": "first.yaml",
    "smoke": "first",
}
"""Names on pages, and what stands for them here: no key, no GPU, the run of the tutorial."""

ON_PAGE: Final = {
    "report.md": {"smoke": "seed-0"},
    "safety.md": {"run experiments/safety.yaml": "evaluate experiments/safety.yaml --set steps.eval.combinations=10"},
    "datasets.md": {"RUN": "write"},
    "integrations.md": {"RUN": "demo", "tuned=example/tuned-135m": "tuned=example/tuned-135m --id small=example/small"},
    "training.md": {"RUN": "write", "pairs.jsonl": "pairs-of-write.jsonl"},
    "costs.md": {"combinations: 100": "combinations: 2"},
    "graders.md": {"RUN": "two-graders", "bundled:smollm2-135m": "scripted:grader?noise=0.2"},
    "people.md": {
        "FILE.yaml": "people.yaml",
        "runs/RUN": "runs/people",
        "annotate RUN --step": "annotate people --step",
    },
}

ENDS_WITH_1: Final = {"skillmix run FILE.yaml": "people have texts left"}
"""Commands whose page says that something is missing; what it prints is on standard error."""
SERVED: Final = "http://localhost:8000/v1"
BUNDLED: Final = "bundled:smollm2-135m"
"""On pages that use it, a model of two layers with random weights stands for it."""
FASTER: Final = (("skillmix report ", " --no-figures"), ("--set paper --max-usd 5", " --n 20"))
"""Commands that get a further option here, because of its time alone."""


def shown(page: str) -> list[Any]:
    return [command for block in blocks(page) if block.language == "console" for command in commands(block)]


def reason_not_to_run(line: str) -> str | None:
    if "--dry-run" in line:
        return None  # calls no model, whatever the file needs
    return next((reason for start, reason in NOT_RUN.items() if line.startswith(start)), None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that pages name and the run of the tutorial."""
    here = tmp_path_factory.mktemp("site")
    for name in ("examples", "experiments", "data", "src", "bench"):
        (here / name).symlink_to(ROOT / name)
    (here / "shards").mkdir()
    write_catalog(here / "ships")
    (here / "shards/prose.txt").write_text(
        "The cold came like a thief. It took the light, and it took the warmth. " * 60
    )
    (first,) = (block for block in blocks("tutorial.md") if block.file == "first.yaml")
    (here / "first.yaml").write_text(first.body)
    (label_set,) = (block for block in blocks("graders.md") if "label: shows" in block.body)
    (here / "mine.yaml").write_text(label_set.body)
    (here / "checked.yaml").write_text(
        "- {skill: simile, topic: Kites, text: The kite fell like a stone., label: shows}\n"
    )
    conversation = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Good day."}]
    (here / "conversations.jsonl").write_text(f"{json.dumps({'messages': conversation})}\n" * 8)
    document = yaml.safe_load(first.body)
    writing = {"stage": "generate", "purpose": "training", "students": ["weak"], "k": [1, 2], "settings": ["train"]}
    steps = [
        {"name": "texts", **writing, "combinations": 10, "generations": 3},
        {"name": "grade", "stage": "grade", "of": ["texts"], "graders": ["judge"]},
    ]
    both = {**document["steps"][0], "graders": ["judge", "rules"], "combinations": 3}
    graders = {**document["graders"], "rules": {"model": "rules:"}}
    two = {**document, "name": "two-graders", "graders": graders, "steps": [both]}
    (here / "two-graders.yaml").write_text(yaml.safe_dump(two))
    (here / "write.yaml").write_text(yaml.safe_dump({**document, "name": "write", "steps": steps}))
    (shared, *_) = (block for block in blocks("people.md") if block.language == "yaml")
    evaluate, *people = [step for step in yaml.safe_load(shared.body)["steps"] if step["stage"] != "report"]
    small = {**evaluate, "settings": ["all"], "combinations": 25, "generations": 1}
    students = {"base": document["students"]["weak"], "tuned": document["students"]["strong"]}
    reading = {"students": students, "graders": {"gpt": document["graders"]["judge"]}, "steps": [small, *people]}
    (here / "people.yaml").write_text(yaml.safe_dump({"name": "people", "catalog": "verifiable", **reading}))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        for words in (
            ["run", "first.yaml"],
            ["run", "write.yaml"],
            ["run", "two-graders.yaml"],
            ["import-texts", "src/skillmix/data/examples/demo.jsonl", "--run", "demo"],
            *(
                [
                    "run",
                    "first.yaml",
                    "--set",
                    f"name=seed-{n}",
                    "--set",
                    f"seed={n}",
                    "--set",
                    "steps.eval.combinations=2",
                ]
                for n in range(3)
            ),
        ):
            assert main(words) == 0
    return here


@contextmanager
def a_server() -> Iterator[str]:
    """The address of a server that answers every prompt."""
    loop = asyncio.new_event_loop()
    started: list[str] = []
    ready, end = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with serving(
            lambda _: chat("Answer: The kite fell like a stone."), models=["mistral-7b"], models_status=200
        ) as s:
            started.append(s.address)
            ready.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(10)
        yield started[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


@contextmanager
def batch_providers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Each model of the page of batches, and the same model at the address of a stub that takes batches."""
    monkeypatch.setattr(batched, "PACE", FAST)
    with (
        serve_batches(StubProvider()) as openai,
        serve_batches(StubProvider(frozenset({"anthropic", "readable"}))) as anthropic,
    ):
        yield {
            model: f"{model}@{stub.address}"
            for stub in (openai, anthropic)
            for model in re.findall(r"(?:openai|anthropic):[\w.-]+", text_of("costs.md"))
            if model.startswith("anthropic") is stub.is_anthropic
        }
        assert not openai.direct and not anthropic.direct
        assert openai.billed and anthropic.billed


def install(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave behind what pip would: the module on the path, and the entry points of its pyproject.toml."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = package / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = (
        f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in points.items())
        for group, points in project["entry-points"].items()
    )
    (about / "entry_points.txt").write_text("\n".join(groups) + "\n")
    monkeypatch.syspath_prepend(package)
    forget_checkers()


def forget_checkers() -> None:
    """Let the next look for checkers see packages that were added or removed."""
    registry._installed.cache_clear()
    registry._with_own.cache_clear()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.language in ("console", "python") for b in blocks(page))]
)
def test_the_blocks_of_a_page_run_in_order(
    page: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"skillmix": __import__("skillmix"), "pandas": __import__("pandas")}
    own = ON_PAGE.get(page, {})
    stand_ins = {**own, **{name: stand_in for name, stand_in in STAND_INS.items() if name not in own}}
    if BUNDLED in str(blocks(page)) and BUNDLED not in stand_ins:
        stand_ins = {**stand_ins, BUNDLED: f"local:{request.getfixturevalue('small_model')}"}
    served = a_server() if SERVED in text_of(page) else nullcontext(SERVED)
    sent: AbstractContextManager[dict[str, str]] = (
        batch_providers(monkeypatch) if page == "costs.md" else nullcontext({})
    )
    try:
        with served as address, sent as providers:
            for block in blocks(page):
                run_block(block, names, {**stand_ins, SERVED: address, **providers}, capsys, monkeypatch)
    finally:
        monkeypatch.undo()
        forget_checkers()


def run_block(
    block: Block,
    names: dict[str, Any],
    stand_ins: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if block.file is not None:
        Path(block.file).parent.mkdir(exist_ok=True)
        Path(block.file).write_text(replaced(block.body, stand_ins), encoding="utf-8")
    if block.language == "python" and block.page not in SEEN_ELSEWHERE:
        exec(replaced(block.body, stand_ins), names)
    if block.language == "console":
        for command in commands(block):
            if command.line.startswith("pip install ./"):
                install(Path(command.line.removeprefix("pip install ./")), monkeypatch)
            elif reason_not_to_run(command.line) is None:
                line = replaced(command.line, stand_ins)
                line += "".join(more for start, more in FASTER if start in line)
                check_output(command, line, run_line(line, capsys, monkeypatch), stand_ins)


def check_output(command: ShownCommand, line: str, ended: tuple[int, str, str], stand_ins: Mapping[str, str]) -> None:
    status, out, err = ended
    assert status == (command.line in ENDS_WITH_1), f"{command.page}: {line}\n{err}"
    assert out or err, line
    if status:
        missing = " ".join(replaced(" ".join(part for part in command.output if part != "…"), stand_ins).split())
        assert missing in " ".join(err.split()), err
    elif command.output:
        assert agrees(command.output, out), f"{command.page}: {line} prints\n{out}"


def test_no_reason_is_without_its_command() -> None:
    lines = [command.line for page in PAGES for command in shown(page)]

    unused = [start for start in NOT_RUN if not any(line.startswith(start) for line in lines)]
    assert not unused


@pytest.mark.parametrize("page", PAGES)
def test_the_parser_accepts_every_command_that_is_not_run(page: str) -> None:
    for command in shown(page):
        line = re.sub(r"^[A-Z_]+=\S+ |\s+>\s.*", "", command.line)
        if reason_not_to_run(command.line) and line.startswith("skillmix ") and "[RUN" not in line:
            _, unknown = PARSER.parse_known_args(shlex.split(line)[1:])
            assert not unknown, line


INLINE: Final = re.compile(r"(?<!`)`skillmix ([a-z][a-z-]*)([^`]*)`(?!`)")


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_sentences_exist_with_their_options(page: str) -> None:
    for name, rest in INLINE.findall((ROOT / "docs" / page).read_text(encoding="utf-8")):
        for command in name.split("|"):
            assert command in COMMANDS, f"{page}: skillmix {command}"
            known = COMMANDS[command]._option_string_actions
            for option in re.findall(r"(?<![\w-])--[a-z-]+", rest):
                assert option in known, f"{page}: skillmix {command} {option}"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.language in ("yaml", "json", "toml") for b in blocks(page))]
)
def test_yaml_json_and_toml_can_be_read_and_whole_experiments_are_valid(page: str, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.language == "json":
            json.loads(block.body)
        if block.language == "toml":
            tomllib.loads(block.body)
        if block.language == "yaml":
            document = yaml.safe_load(block.body)
            if isinstance(document, dict) and {"name", "steps"} <= set(document):
                (tmp_path / "experiment.yaml").write_text(block.body, encoding="utf-8")
                load_experiment(tmp_path / "experiment.yaml", checks_outside="my-prompts" not in block.body)
