"""Packages that are not installed: all of them in one error, before anything is made."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skillmix.calls import Decoding, GenerateKey, Message, Request
from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.experiment.experiment import load_experiment
from skillmix.models import specs
from skillmix.models.lineage_files import LINEAGE_FILE
from skillmix.models.specs import open_model, parse_spec
from skillmix.steps import checks

HERE = {
    "dataset-quickstart": ("pyarrow, torch, transformers, safetensors", "local,parquet"),
    "quickstart": ("pyarrow, torch, transformers, safetensors", "train"),
    "tune.yaml": ("pyarrow, torch, transformers, safetensors, peft", "train"),
}


@pytest.mark.parametrize("name", HERE)
def test_a_run_names_all_missing_packages_and_extras_at_once(
    name: str, in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda package: None)
    packages, extras = HERE[name]
    if name == "tune.yaml":
        main(["init", "tune"])
        capsys.readouterr()

    status = main(["run", name])

    assert status == 2
    experiment = "my-tuning" if name == "tune.yaml" else name
    assert capsys.readouterr().err == (
        f"error: {experiment} needs packages that are not installed: {packages}.\n"
        f"hint: pip install 'skillmix[{extras}]'\n"
    )
    assert not (in_folder / "runs").exists()


def test_a_dry_run_warns_of_missing_packages(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda package: None)

    assert main(["run", "dataset-quickstart", "--dry-run"]) == 0

    assert "warning: dataset-quickstart needs packages" in capsys.readouterr().err


def test_a_dry_run_does_not_warn_of_packages_that_only_the_machines_of_a_cluster_need(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda package: None if package == "torch" else object())

    assert main(["run", "dataset-quickstart", "--dry-run", "--on", "ray"]) == 0

    assert "packages" not in capsys.readouterr().err


def test_a_dry_run_refuses_a_damaged_model_in_one_error(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = load_experiment(Path("quickstart")).steps
    for step in steps:
        model = in_folder / "runs/quickstart" / step.name / "model"
        model.mkdir(parents=True)
        (model / LINEAGE_FILE).write_text('{"kind": "model"}', encoding="utf-8")

    assert main(["run", "quickstart", "--dry-run"]) == 2
    assert LINEAGE_FILE in capsys.readouterr().err


def test_scripted_models_and_code_need_no_further_package(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda package: None)

    assert main(["run", "smoke", "--dry-run"]) == 0

    assert "packages" not in capsys.readouterr().err


async def _asked(spec: str) -> None:
    model = open_model(parse_spec(spec))

    async def one() -> AsyncIterator[Request]:
        key = GenerateKey("student", "c", 0, 1)
        yield Request(key, spec, (Message("user", "Write."),), Decoding(), 0)

    try:
        async for _ in model.serve(one()):
            pass
    finally:
        await model.close()


def test_a_local_model_without_its_packages_is_refused_when_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "find_spec", lambda package: None if package == "torch" else object())

    with pytest.raises(UserError, match="local:nowhere needs the package torch") as caught:
        asyncio.run(_asked("local:nowhere"))

    assert caught.value.hint == "pip install 'skillmix[local]'"


def test_a_local_model_that_is_not_asked_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its texts may be there already, and other models grade them; or other machines ask it."""
    monkeypatch.setattr(specs, "find_spec", lambda package: None)

    open_model(parse_spec("local:nowhere"))
