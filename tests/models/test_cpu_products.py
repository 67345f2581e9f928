"""Products on a CPU treat every row alike, or are cut into pieces that do."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
pytest.importorskip("transformers", reason="the extra `local` is not installed")

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from skillmix.models.local.cpu import cpu_decoder as products  # noqa: E402
from skillmix.models.local.cpu.cpu_decoder import LARGEST, SIZES, make_rows_independent, rows_agree, size_for  # noqa: E402

pytestmark = pytest.mark.machine


def small_model(*, tied: bool = True) -> Any:
    config = LlamaConfig(
        vocab_size=300, hidden_size=96, intermediate_size=200, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=1, tie_word_embeddings=tied,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval().requires_grad_(False)


def products_of(model: Any) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}


def check_rows(model: Any) -> None:
    """Compare each product with a plain one, and each of its rows with the same row among others."""
    plain = products_of(small_model())
    for name, product in products_of(model).items():
        rows = torch.randn(LARGEST, product.in_features)
        whole = product(rows)
        assert torch.allclose(whole, rows @ plain[name].weight.t(), atol=1e-4)
        for size in SIZES:
            first = LARGEST - size - (size < LARGEST)
            assert torch.equal(product(rows[None, first : first + size])[0], whole[first : first + size])


def test_a_row_has_the_same_bits_in_products_of_every_size() -> None:
    model = small_model()

    make_rows_independent(model)
    make_rows_independent(model)

    check_rows(model)


def test_packed_weights_take_the_place_of_plain_ones_but_not_of_embeddings() -> None:
    model = small_model()
    embeddings, parameters = model.get_input_embeddings().weight, sum(p.numel() for p in model.parameters())

    make_rows_independent(model)

    assert model.get_input_embeddings().weight is embeddings is model.get_output_embeddings().weight
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("largest_equal", [32, 8, 1])
def test_a_processor_on_which_sizes_differ_gets_pieces(monkeypatch: pytest.MonkeyPatch, largest_equal: int) -> None:
    real, sizes = torch.nn.functional.linear, set[int]()

    def last_row_is_off(rows: Any, *rest: Any) -> Any:
        sizes.add(len(rows))
        result = real(rows, *rest)
        if len(rows) > largest_equal:
            result[-1] += 1e-3
        return result

    monkeypatch.setattr(products, "rows_agree", lambda *_, **__: False)
    monkeypatch.setattr(torch.nn.functional, "linear", last_row_is_off)
    model = small_model()

    make_rows_independent(model)
    sizes.clear()
    check_rows(model)

    assert max(sizes) <= largest_equal


def test_rows_that_depend_on_the_size_or_on_their_index_are_noticed() -> None:
    def depends_on_size(rows: Any) -> Any:
        return rows * 2 + (len(rows) == SIZES[5]) * 1e-6

    def depends_on_index(rows: Any) -> Any:
        result = rows * 2
        result[-1] += 1e-6
        return result

    assert rows_agree(lambda rows: rows * 2, inputs=8, most_rows=LARGEST)
    assert not rows_agree(depends_on_size, inputs=8, most_rows=LARGEST)
    assert not rows_agree(depends_on_index, inputs=8, most_rows=LARGEST)


def test_a_build_without_packed_products_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Any:
        raise NotImplementedError("no kernel")  # what torch raises for an operation that its build does not have

    monkeypatch.setattr(products, "Packed", missing)

    model = small_model()
    make_rows_independent(model)

    check_rows(model)


def test_a_batch_is_filled_up_to_the_next_size() -> None:
    assert [size_for(rows) for rows in (1, 8, 9, 16, 17, 250, 256)] == [8, 8, 16, 16, 32, 256, 256]
