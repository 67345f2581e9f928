"""Tiny models of many families are trained and evaluated on a CPU, or refused by the dry run."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.calls import Decoding, GenerateKey, Message, Outcome, Reply, Request
from skillmix.commands import main

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
transformers = pytest.importorskip("transformers", reason="the extra `local` is not installed")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402

from skillmix.models.local.generator import BatchedGenerator, Generator, new_generator  # noqa: E402
from skillmix.models.local.loading import load  # noqa: E402

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.3,
}
WINDOW = {"sliding_window": 16}
HEADS = {"head_dim": 8}
EXPERTS = {"num_experts_per_tok": 2}
TRAINED: dict[str, tuple[dict[str, Any], type]] = {
    "Llama": ({}, Generator),
    "Mistral": (WINDOW, BatchedGenerator),
    "Qwen2": ({}, Generator),
    "Qwen3": (HEADS, Generator),
    "Gemma3Text": (HEADS | WINDOW, BatchedGenerator),
    "Olmo2": ({}, Generator),
    "Qwen3Moe": (HEADS | EXPERTS | {"num_experts": 4, "moe_intermediate_size": 16}, BatchedGenerator),
    "Granite": ({}, Generator),
}
"""Families that can be trained, and the generators that write with them."""
REFUSED: dict[str, tuple[dict[str, Any], type]] = {
    "Gemma2": (HEADS | WINDOW, BatchedGenerator),
    "GptOss": (HEADS | EXPERTS | WINDOW | {"num_local_experts": 4}, BatchedGenerator),
    "Phi": ({}, Generator),
    "Lfm2": ({"layer_types": ["conv", "full_attention"], "block_multiple_of": 8}, BatchedGenerator),
}
"""Families that can be evaluated but not trained."""


def write_model(family: str, folder: Path) -> None:
    """A model of random weights with a tokenizer of bytes."""
    words = ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}"
        "{% if m.role == 'assistant' %}</s>{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    tokenizer.save_pretrained(folder)
    settings, _ = {**TRAINED, **REFUSED}[family]
    config = getattr(transformers, f"{family}Config")(**{**SIZES, "vocab_size": len(words), **settings})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def experiment(folder: Path) -> str:
    turns = [{"role": "user", "content": "Say something."}, {"role": "assistant", "content": "Something else."}]
    (folder / "data.jsonl").write_text(4 * (json.dumps({"messages": turns}) + "\n"), encoding="utf-8")
    train = {
        "name": "m",
        "stage": "train",
        "base": "base",
        "data": [str(folder / "data.jsonl")],
        "steps": 1,
        "batch": 2,
    }
    evaluate = {"name": "e", "stage": "evaluate", "students": ["base", "step:m"], "graders": ["rules"], "k": [1]}
    document = {
        "name": "family",
        "catalog": "verifiable",
        "students": {"base": {"model": f"local:{folder / 'model'}", "max_tokens": 8}},
        "graders": {"rules": {"model": "rules:"}},
        "steps": [train, {**evaluate, "combinations": 1, "generations": 2}],
    }
    path = folder / "family.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(path)


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLMIX_DEVICE", "cpu")

    def has_own_format(folder: object, mistral_format: bool | None = None, **_: object) -> bool:
        """Behave as with mistral_common installed and its tokenizer in the folder."""
        return mistral_format is not False

    # The packages that are installed must not decide whether a Mistral is loaded with its tokenizer.json.
    auto = "transformers.models.auto.tokenization_auto._use_mistral_format"
    monkeypatch.setattr(auto, has_own_format, raising=False)


@pytest.mark.parametrize("family", TRAINED)
def test_a_family_is_trained_and_evaluated(in_folder: Path, family: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(family, in_folder / "model")
    file = experiment(in_folder)

    assert main(["run", file]) == 0

    capsys.readouterr()
    assert main(["scores", "family", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["student"], row["complete"]) for row in rows} == {("base", 1), ("m", 1)}


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_cannot_be_trained_is_refused_by_the_dry_run(
    in_folder: Path, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(family, in_folder / "model")

    assert main(["run", experiment(in_folder), "--dry-run"]) == 2

    error, _, hint = capsys.readouterr().err.partition("\n")
    assert f"{family}ForCausalLM cannot be trained" in error
    assert hint.count("\n") <= 1


PROMPTS = ["Say something.", "Say something else about bread, trains, chess and rivers.", "Hm"]


def request(number: int, *, temperature: float, tokens: int) -> Request:
    key = GenerateKey("s", str(number), 0, 1)
    return Request(key, "m", (Message("user", PROMPTS[number]),), Decoding(temperature, tokens), number)


def texts(generator: Any, requests: list[Request]) -> dict[str, str]:
    found: dict[str, str] = {}

    def done(asked: Request, outcome: Outcome) -> None:
        assert isinstance(outcome, Reply)
        found[str(asked.key)] = outcome.text

    generator.done = done
    generator.add(requests)
    while not generator.is_idle:
        generator.work()
    return found


def plain_texts(folder: Path, tokens: int) -> list[str]:
    """The likeliest texts of transformers, one at a time."""
    model, renderer = load(folder)
    written = []
    for prompt in PROMPTS:
        (ids,) = renderer.tokens([(Message("user", prompt),)])
        output = model.generate(
            input_ids=torch.tensor([ids]), do_sample=False, max_new_tokens=tokens, pad_token_id=2, eos_token_id=2
        )
        written += renderer.texts([[token for token in output[0, len(ids) :].tolist() if token != 2]])
    return written


@pytest.mark.parametrize("family", [*TRAINED, *REFUSED])
def test_texts_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    _, kind = {**TRAINED, **REFUSED}[family]
    write_model(family, tmp_path)
    wanted = plain_texts(tmp_path, 24)

    model, renderer = load(tmp_path)
    generator = new_generator(model, renderer, 2, name=family)
    found = texts(generator, [request(number, temperature=0.0, tokens=24) for number in range(len(PROMPTS))])

    assert type(generator) is kind
    assert list(dict(sorted(found.items())).values()) == wanted


def test_a_seed_decides_a_text_in_batches_too(tmp_path: Path) -> None:
    write_model("Gemma3Text", tmp_path)
    model, renderer = load(tmp_path)
    asked = [request(number, temperature=0.8, tokens=8 + 8 * number) for number in range(len(PROMPTS))]

    together = texts(new_generator(model, renderer, 3, name="gemma"), asked)
    alone = texts(new_generator(model, renderer, 1, name="gemma"), asked)

    assert together == alone
    assert len(set(together.values())) == len(PROMPTS)
