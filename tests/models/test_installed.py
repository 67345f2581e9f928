"""Providers that other packages bring."""

import asyncio
import importlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

import skillmix
from skillmix.calls import Outcome, Reply, Request
from skillmix.errors import UserError
from skillmix.experiment.costs import Price, price_of
from skillmix.experiment.experiment import experiment_of
from skillmix.models import specs
from skillmix.models.specs import ModelOptions, installed_providers, open_model, parse_spec, provider_of
from skillmix.scores.text_rows import run_texts
from skillmix.steps.run import run_checked
from tests.models.stub import request

PAGE = Path(__file__).parents[2] / "docs/models.md"
Install = Callable[..., None]


def write_package(folder: Path, source: str, *, package: str = "my-provider", entries: str = "") -> None:
    """What pip would leave behind for a package with one module."""
    module = package.replace("-", "_")
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
    metadata = folder / f"{module}-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n", encoding="utf-8")
    points = f"[skillmix.providers]\n{entries or f'mine = {module}:MyModel'}\n"
    (metadata / "entry_points.txt").write_text(points, encoding="utf-8")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a package on this process's path."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def installed(source: str, **more: str) -> None:
        write_package(tmp_path, source, **more)
        importlib.invalidate_caches()
        installed_providers.cache_clear()
        specs._provider.cache_clear()

    yield installed
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    monkeypatch.undo()
    installed_providers.cache_clear()
    specs._provider.cache_clear()


def answers(spec: str, count: int = 3) -> list[Outcome]:
    async def stream() -> AsyncIterator[Request]:
        for number in range(count):
            yield request(number)

    async def main() -> list[Outcome]:
        model = open_model(parse_spec(spec), ModelOptions(concurrency=2, timeout=0.2))
        assert await model.probe() is None
        outcomes = [outcome async for _, outcome in model.serve(stream())]
        await model.close()
        return outcomes

    return asyncio.run(main())


def answering(body: str) -> str:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return (
        "import asyncio\nfrom skillmix import Reply, SimpleModel\n\n"
        f"class MyModel(SimpleModel):\n    async def answer(self, request):\n{lines}"
    )


def test_the_provider_of_the_page_is_evaluated_like_any_other(tmp_path: Path) -> None:
    provider, program = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (entry,) = re.findall(r'"skillmix.providers"\]\nmine = "(.*)"', PAGE.read_text(encoding="utf-8"))
    write_package(tmp_path, provider, entries=f"mine = {entry}")
    path = os.pathsep.join([str(tmp_path), str(Path(skillmix.__file__).parents[1])])

    result = subprocess.run(
        [sys.executable, "-c", f"{program}\nprint(run.is_complete)"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert result.returncode == 0, result.stderr
    assert "| student" in result.stdout
    assert result.stdout.splitlines()[-1] == "True"


def test_an_answer_is_all_that_a_provider_must_write(install: Install) -> None:
    install(answering("return Reply(f'{self.spec.name}: {request.messages[-1].content}')"))

    outcomes = answers("mine:small")

    assert [type(outcome) for outcome in outcomes] == [Reply] * 3
    assert all(isinstance(o, Reply) and o.text.startswith("small: ") for o in outcomes)


def test_a_call_that_takes_too_long_may_be_tried_again(install: Install) -> None:
    install(answering("await asyncio.sleep(30)"))

    (outcome,) = answers("mine:small", 1)

    assert (getattr(outcome, "kind", None), getattr(outcome, "reason", None)) == ("passing", "timeout")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            answering("return 1 / 0"),
            r"mine:small failed: ZeroDivisionError: division by zero \(my_provider.py, line 6\)",
        ),
        (answering("raise TimeoutError('of its own')"), "TimeoutError: of its own"),
        (answering("return 'words'"), "the answer is a str, not a Reply or a CallProblem"),
        ("class MyModel:\n    def __init__(self, spec, options): raise OSError('no disk')", "OSError: no disk"),
        ("class MyModel:\n    def __init__(self, spec, options): pass", "MyModel has no serve, probe, close"),
        ("import nothing_like_that", "'mine' of the package 'my-provider' cannot be loaded: ModuleNotFoundError"),
        ("MyModel = 3", "is not a class: 3"),
    ],
    ids=["raises", "raises a timeout", "returns words", "cannot be made", "lacks methods", "cannot import", "a number"],
)
def test_a_faulty_provider_is_an_error_that_names_it(install: Install, source: str, words: str) -> None:
    install(source)

    with pytest.raises(UserError, match=words) as error:
        answers("mine:small")

    assert "my-provider" in f"{error.value.message} {error.value.hint}" or "SimpleModel" in str(error.value.hint)


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        ("yield request, Reply('a')\n            break", "stopped before it answered all requests"),
        ("yield request, Reply('a')\n            yield request, Reply('b')", "answered generate.* twice"),
    ],
)
def test_a_model_that_loses_count_does_not_hang_the_run(install: Install, loop: str, words: str) -> None:
    install(
        "from skillmix import Reply\n\n"
        "class MyModel:\n"
        "    def __init__(self, spec, options): pass\n"
        "    async def probe(self): return None\n"
        "    async def close(self): pass\n"
        f"    async def serve(self, requests):\n        async for request in requests:\n            {loop}\n"
    )

    with pytest.raises(UserError, match=words):
        answers("mine:small")


def test_a_fault_in_the_source_of_requests_is_not_blamed_on_the_provider(install: Install) -> None:
    install(answering("return Reply('fine')"))

    async def stream() -> AsyncIterator[Request]:
        yield request(0)
        raise RuntimeError("the journal is gone")

    async def main() -> None:
        model = open_model(parse_spec("mine:small"))
        async for _ in model.serve(stream()):
            pass

    with pytest.raises(RuntimeError, match="the journal is gone"):
        asyncio.run(main())


def test_an_unknown_provider_is_told_the_installed_ones(install: Install) -> None:
    install(answering("return Reply('fine')"))

    with pytest.raises(UserError) as error:
        parse_spec("nowhere:small")

    listed = [name for name, provider in specs.PROVIDERS.items() if provider.is_listed]
    assert error.value.hint == f"Write PROVIDER:NAME with one of these providers: {', '.join(listed)}, mine."
    assert specs.provider_forms()["mine"] == "from the package my-provider: mine:NAME"


@pytest.mark.parametrize(("is_free", "price"), [("True", Price(0, 0)), ("False", None), ("'yes'", None)])
def test_a_price_is_unknown_unless_the_provider_is_free_or_the_file_has_it(
    install: Install, is_free: str, price: Price | None
) -> None:
    install(f"class MyModel:\n    is_free = {is_free}\n    is_in_process = True")
    spec = parse_spec("mine:small")

    assert price_of(spec, {}) == price
    assert price_of(spec, {"mine:small": Price(1, 2)}) == Price(1, 2)
    assert provider_of(spec).is_in_process
    assert not provider_of(spec).has_checkpoint


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ("openai = my_provider:MyModel", "'my-provider' has a provider named 'openai', like skillmix"),
        ("step = my_provider:MyModel", "the invalid name 'step'"),
        ("My.Own = my_provider:MyModel", "the invalid name 'My.Own'"),
    ],
)
def test_a_package_cannot_take_a_name_of_ours(install: Install, entries: str, words: str) -> None:
    install("class MyModel: pass", entries=entries)

    with pytest.raises(UserError, match=words):
        parse_spec("mine:small")


def test_two_packages_cannot_share_a_name(install: Install) -> None:
    install("class MyModel: pass")
    install("class MyModel: pass", package="other-provider", entries="mine = other_provider:MyModel")

    with pytest.raises(UserError, match="both have a provider named 'mine'"):
        parse_spec("mine:small")


def fenced(text: str, start: str) -> str:
    return text.partition(start)[2].partition("```")[0]


GRADER = """
from skillmix import Reply, Request, SimpleModel

class WordCount(SimpleModel):
    is_free = True

    async def answer(self, request: Request) -> Reply:
        text, criteria, _ = request.messages[-1].content.split("=====")
        point = 1 if len(text.split()) >= 8 else 0
        names = [line.strip("- ") for line in criteria.splitlines() if line.strip()]
        rows = [f"| {name} | {point} |" for name in names]
        return Reply("\\n".join(["| Criteria | Points Earned |", "|---|---|", *rows]), finish="stop")
"""


def test_a_grader_in_python_grades_a_run(install: Install, in_folder: Path) -> None:
    page = (PAGE.parent / "graders.md").read_text(encoding="utf-8")
    install(GRADER, package="my-grader", entries="lengths = my_grader:WordCount")
    prompt = "{answer}\n=====\n{criteria}\n=====\n{skills} {topic} {definitions} {limit}\n"
    prompts = in_folder / "my-prompts"
    prompts.mkdir()
    for name in ("generate-1.txt", "generate-2.txt"):
        (prompts / name).write_text(fenced(page, f"`my-prompts/{name}`:\n\n```text\n"))
    (prompts / "grade-plain.txt").write_text(prompt)
    document = {
        "name": "own",
        "prompts": str(prompts),
        "students": {"w": {"model": "scripted:student"}},
        "graders": {"long": {"model": "lengths:eight", "prompts": "plain", "rounds": 1}},
        "steps": [{"name": "e", "stage": "evaluate", "students": ["w"], "graders": ["long"], "k": [1, 3],
                   "settings": ["all"], "combinations": 5}],
    }  # fmt: skip

    run = run_checked(experiment_of(document, source="test")).run

    texts = run_texts(run)
    assert len(texts) == 30
    for text in texts:
        assert {v for name, v in text.points.items() if name != "length"} == {len(text.text.split()) >= 8}, text
