"""Students from scratch: `new:SHAPE` as the base of a train step, from the words of the data to the evaluated model."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from skillmix.calls import Decoding, GenerateKey, Message, Request
from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.models.shapes import ModelShape, shape_of
from skillmix.models.specs import open_model, parse_spec
from skillmix.scores.scoring import run_scores
from skillmix.steps.run import train_steps
from skillmix.training.job_run import new_model, word_tokenizer
from tests.training.tiny import weights_of

ROOT = Path(__file__).parents[2]
ANIMALS = ["owl", "fox", "crab", "mole"]
DEEDS = ["sleeps", "sings", "waits", "digs"]
PLACES = ["here", "there", "outside", "below"]
ROWS = [
    (f"{animal} ; {place}", f"The {animal} {deed} {place}, I think.")
    for animal, deed in zip(ANIMALS, DEEDS, strict=True)
    for place in PLACES
]
STEP = {
    "name": "m1", "stage": "train", "base": "scratch", "data": ["./data"], "steps": 12, "batch": 4,
    "optimizer": "muon", "learning_rate": 0.02, "schedule": "cosine", "warmup_steps": 2, "checkpoint_every": 4,
}  # fmt: skip


def experiment(place: Path, *steps: dict[str, Any], name: str = "small", **student: Any) -> Path:
    (place / "data").mkdir(exist_ok=True)
    rows = [
        {"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": text}]} for ask, text in ROWS
    ]
    (place / "data" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    document = {
        "name": name,
        "catalog": "verifiable",
        "students": {"scratch": {"model": "new:32x2x2", "max_tokens": 12, **student}},
        "graders": {"code": {"model": "rules:"}},
        "steps": list(steps),
    }
    path = place / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def test_a_student_from_scratch_learns_and_writes(in_folder: Path) -> None:
    from skillmix.models.checkpoints import checkpoint_of
    from skillmix.models.local.generator import Generator
    from skillmix.models.local.loading import load

    path = experiment(in_folder, {**STEP, "steps": 150})

    [trained] = train_steps(path)

    replies: dict[Any, Any] = {}
    loaded = load(checkpoint_of(parse_spec(f"local:{trained.folder}")), device="cpu")
    generator = Generator(*loaded, slots=8, done=lambda r, o: replies.__setitem__(r.messages[0].content, o))
    decoding = Decoding(temperature=0.0, max_tokens=12, top_p=None)
    keys = [GenerateKey("s", ask, 0, 1) for ask, _ in ROWS]
    generator.add([Request(key, "m", (Message("user", key.combination),), decoding, 1) for key in keys])
    while not generator.is_idle:
        generator.work()
    assert {ask: reply.text for ask, reply in replies.items()} == dict(ROWS)
    assert {reply.finish for reply in replies.values()} == {"stop"}


def test_a_run_trains_it_and_then_evaluates_it(in_folder: Path) -> None:
    asking = {"name": "asked", "stage": "evaluate", "students": ["step:m1"], "graders": ["code"], "k": [1]}
    path = experiment(in_folder, STEP, {**asking, "settings": ["train"], "combinations": 2, "generations": 1})

    assert main(["run", str(path)]) == 0

    assert {(score.student, score.k) for score in run_scores("small")} == {("m1", 1)}


def test_lineage_weights_and_settings_are_those_of_the_recipe(in_folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    [trained] = train_steps(experiment(in_folder, STEP))

    about = json.loads((trained.folder / "skillmix.json").read_text(encoding="utf-8"))
    assert about["base"]["spec"] == "new:32x2x2" and about["parent"] is None and about["adapter"] is False
    assert about["recipe"]["optimizer"] == "muon" and about["recipe"]["steps_taken"] == 12
    model = AutoModelForCausalLM.from_pretrained(trained.folder)
    assert type(model).__name__ == "LlamaForCausalLM" and model.config.tie_word_embeddings
    tokenizer = AutoTokenizer.from_pretrained(trained.folder)
    assert model.config.vocab_size == len(tokenizer) and "owl" in tokenizer.get_vocab()
    assert tokenizer.decode(tokenizer("The owl waits here, I think.").input_ids) == "The owl waits here, I think."


def test_training_twice_gives_the_same_weights_and_another_seed_others(in_folder: Path) -> None:
    first, second = ({**STEP, "steps": 4, "name": name} for name in ("m1", "m2"))

    one, two, other = train_steps(experiment(in_folder, first, second, {**first, "name": "m3", "seed": 5}))

    weights = [load_file(trained.folder / "model.safetensors") for trained in (one, two, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not torch.equal(weights[0]["model.embed_tokens.weight"], weights[2]["model.embed_tokens.weight"])


@pytest.mark.machine
def test_killed_in_the_middle_it_ends_with_the_same_weights(in_folder: Path) -> None:
    straight, cut = (experiment(in_folder, STEP, name=name) for name in ("straight", "cut"))
    train_steps(straight)

    killed = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "training" / "killed_run.py"), str(cut), "7"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    train_steps(cut)

    found, expected = (load_file(in_folder / f"runs/{name}/m1/model/model.safetensors") for name in ("cut", "straight"))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_first_weights_are_the_same_on_every_machine() -> None:
    model = new_model(ModelShape(16, 1, 1), word_tokenizer(["one two"]), seed=3)

    first = weights_of(model)[:4]
    raw = torch.randint(0, 1 << 24, (4,), generator=torch.Generator().manual_seed(3))
    assert torch.allclose(first, (raw / (1 << 24) - 0.5) * 12**0.5 * first.new_tensor(0.02), atol=1e-8)
    assert abs(float(weights_of(model).abs().max()) - 1.0) < 1e-6  # norms


@pytest.mark.parametrize(
    "text",
    [
        'She said, "Counting by three: three, six, nine!" and left.',
        "The dogs' owner isn't well-known—she said 'hello' (twice); it costs $5.50, or 10:30 p.m. 50%…",
        'He asked: "Why?" "Because," she said. AND/OR [x] – y.',
        "Three owls, Laura; aren't they?",
        "“Äpfel”, said she: ‘no’.",
        "snake_case is 1,000 times worse...",
    ],
)
def test_a_text_comes_back_as_it_was(text: str) -> None:
    tokenizer = word_tokenizer([text])

    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_blanks_are_normal_and_capitals_count() -> None:
    tokenizer = word_tokenizer(["word word Word , ."])

    assert tokenizer.decode(tokenizer("word , \n word .").input_ids) == "word, word."
    assert tokenizer("word").input_ids != tokenizer("Word").input_ids
    assert tokenizer("other").input_ids == [tokenizer.unk_token_id]


def test_words_do_not_depend_on_the_order_of_the_texts() -> None:
    texts = [text for row in ROWS for text in row]

    assert word_tokenizer(texts).get_vocab() == word_tokenizer(texts[::-1]).get_vocab()


def test_the_mask_is_shown_before_the_training(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = experiment(in_folder, STEP)

    assert main(["train", str(path), "--show-mask"]) == 0

    lines = capsys.readouterr().out.splitlines()
    trained = [line for line in lines if "█" in line]
    assert [line for line in lines if "<user>" in line] and "think" in "".join(trained)
    assert "</s>" in trained[-1] and "<assistant>" not in "".join(trained)


def test_its_words_are_those_that_it_continues_with(in_folder: Path) -> None:
    [one, two] = train_steps(experiment(in_folder, STEP, {**STEP, "name": "m2", "base": "step:m1", "steps": 2}))

    assert (one.folder / "tokenizer.json").read_bytes() == (two.folder / "tokenizer.json").read_bytes()
    about = json.loads((two.folder / "skillmix.json").read_text(encoding="utf-8"))
    assert about["base"]["spec"] == f"local:{one.folder}" and about["parent"] == about["base"]["hash"]


@pytest.mark.parametrize("name", ["big", "100x2x4", "96x2", "96x0x4", "9999x2x1", "tiny+adapter", "96x2x64"])
def test_an_unknown_shape_names_the_forms(name: str) -> None:
    with pytest.raises(UserError, match="is not a valid shape") as error:
        shape_of(f"new:{name}")

    assert "new:tiny" in str(error.value.hint) and "WIDTHxLAYERSxHEADS" in str(error.value.hint)


@pytest.mark.parametrize(
    ("name", "low", "high"), [("tiny", 0.2e6, 0.3e6), ("small", 0.9e6, 1.1e6), ("base", 3.9e6, 5e6)]
)
def test_a_shape_has_about_the_weights_of_its_name(name: str, low: float, high: float) -> None:
    shape = shape_of(f"new:{name}")
    assert isinstance(shape, ModelShape)
    model = new_model(shape, word_tokenizer(["one two three"]), seed=0)

    count = sum(parameter.numel() for parameter in model.parameters())
    assert low < count < high and shape.weights == count - model.config.vocab_size * shape.width


def test_it_cannot_be_asked_before_it_is_trained(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asking = {"name": "asked", "stage": "evaluate", "students": ["scratch"], "graders": ["code"], "k": [1]}
    path = experiment(in_folder, STEP, {**asking, "combinations": 2})

    assert main(["run", str(path)]) != 0
    assert main(["run", str(path), "--dry-run"]) != 0

    told = capsys.readouterr().err
    assert told.count("steps.asked: new:32x2x2 is untrained") == 2 and "step:NAME" in told
    assert not (in_folder / "runs" / "small" / "m1").exists()
    with pytest.raises(UserError, match="not a model that can be called"):
        open_model(parse_spec("new:tiny"))


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ({"lora": {"rank": 2}, "optimizer": "adam"}, "sets lora"),
        ({"format": "chatml"}, "sets format"),
        ({"ranks": 2}, "sets ranks"),
    ],
)
def test_settings_that_need_a_trained_base_are_refused(in_folder: Path, step: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        train_steps(experiment(in_folder, {**STEP, **step}))


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ({"lora": {"rank": 2}}, "remove lora"),
        ({"optimizer": "adam", "adam_learning_rate": 1e-3}, "needs optimizer: muon"),
    ],
)
def test_recipes_that_contradict_muon_are_refused(in_folder: Path, step: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        train_steps(experiment(in_folder, {**STEP, **step}))


def test_a_system_text_is_refused(in_folder: Path) -> None:
    with pytest.raises(UserError, match="has no system role"):
        train_steps(experiment(in_folder, STEP, system="Be brief."))
