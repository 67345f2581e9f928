"""A small model that trains in seconds: random weights, the bundled model's tokenizer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from skillmix.models.bundled import bundled_models


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two layers; nobody changes it."""
    torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
    folder = bundled_models()[0].folder
    if folder is None:
        pytest.skip("the bundled model is not in the cache: `skillmix models --fetch` brings it")
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    path = tmp_path_factory.mktemp("models") / "small"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def no_amx() -> Iterator[None]:
    """Products in bfloat16 without oneDNN, which kills the process on CPUs that claim more than they can."""
    torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(before)
