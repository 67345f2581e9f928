"""The real bundled model as converted here; skipped where it is not in the cache or nothing can load it."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from skillmix.models.bundled import bundled_model, bundled_models

VALUES = "785e20b3e653276b0579b744214a1186d730ba80af04f397f642d6432e5e0154"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@pytest.fixture(scope="module")
def folder() -> Path:
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'skillmix[local]'")
    found = bundled_models()[0].folder
    if found is None:
        pytest.skip("bundled:smollm2-135m is not in the cache: its first use fetches it (93 MB)")
    return Path(found)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


def document(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def test_cached_model_is_found_in_milliseconds(folder: Path) -> None:
    start = time.process_time()

    assert bundled_model("smollm2-135m") == folder

    assert time.process_time() - start < 0.1


def test_folder_holds_safetensors_and_text_only(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}

    assert names == {
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "skillmix.json",
    }
    assert "auto_map" not in document(folder / "config.json")


def test_values_are_the_ones_that_transformers_imports(folder: Path) -> None:
    """The digest was taken where all 272 tensors were bit-identical to an import by transformers 5.22."""
    load_file = pytest.importorskip("safetensors.numpy").load_file
    values = hashlib.sha256()

    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        values.update(name.encode())
        values.update(tensor.tobytes())

    assert values.hexdigest() == VALUES


def test_record_has_the_hash_of_the_weights(folder: Path) -> None:
    with (folder / "model.safetensors").open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()

    assert document(folder / "skillmix.json")["sha256_of_weights"] == weights


def test_turns_end_with_im_end_in_every_file(folder: Path, tokenizer: Any, model: Any) -> None:
    configs = [document(folder / "config.json"), document(folder / "generation_config.json")]

    assert [(c["bos_token_id"], c["eos_token_id"], c["pad_token_id"]) for c in configs] == [(1, 2, 2)] * 2
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    assert (tokenizer.pad_token, tokenizer.pad_token_id) == ("<|im_end|>", 2)
    assert model.generation_config.eos_token_id == 2


def test_no_sampling_setting_is_left_in_the_generation_config(folder: Path) -> None:
    assert set(document(folder / "generation_config.json")) == {"bos_token_id", "eos_token_id", "pad_token_id"}


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("12345", [33, 34, 35, 36, 37]),
        # Blanks before a digit stay together only if digits are split off first.
        ("a\n\n1. b", [81, 1116, 33, 30, 278]),
        ("a  1", [81, 256, 33]),
        ("x² ½", [104, 19133, 216, 16738]),
        ("Hello world! 123", [19556, 905, 17, 216, 33, 34, 35]),
        ("The capital of France is", [504, 3575, 282, 4649, 314]),
        ("Café déjà vu.", [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30]),
        ("  multiple   spaces", [216, 2701, 256, 5600]),
        ("<|im_start|>user\n", [1, 4093, 198]),
        ("", []),
    ],
)
def test_text_is_split_as_by_the_published_tokenizer(tokenizer: Any, text: str, ids: list[int]) -> None:
    assert tokenizer(text).input_ids == ids
    assert tokenizer.decode(ids) == text


def test_tokenizer_gives_what_generate_takes(tokenizer: Any) -> None:
    assert set(tokenizer("Hi")) == {"input_ids", "attention_mask"}


def test_template_puts_the_default_system_turn_first(tokenizer: Any) -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Bye"},
    ]

    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    assert rendered == (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_template_leaves_a_system_turn_of_the_user_as_it_is(tokenizer: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]

    rendered = tokenizer.apply_chat_template(messages, tokenize=False)

    assert rendered == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"


def test_greedy_reply_is_the_one_of_llama_cpp_and_ends_by_itself(tokenizer: Any, model: Any) -> None:
    messages = [{"role": "user", "content": "Write one sentence about rain."}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)

    output = model.generate(**prompt, do_sample=False, max_new_tokens=60)[0]

    assert tokenizer.decode(output[prompt["input_ids"].shape[1] :]) == (
        "The rain is a powerful and unpredictable force that can transform the world around us, "
        "from the delicate balance of nature to the relentless rhythm of the ocean.<|im_end|>"
    )


def test_weights_load_in_fp32_with_none_left_over(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)

    assert not any(info.values())
    assert model.dtype == torch.float32
    assert model.num_parameters() == 134_515_008
    assert model.lm_head.weight is model.model.embed_tokens.weight
