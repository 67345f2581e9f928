"""Generation on a GPU: `pytest -m gpu tests/models/test_gpu_generation.py`."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from skillmix.calls import Decoding, GenerateKey, Message, Outcome, Reply, Request

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
pytest.importorskip("transformers", reason="the extra `local` is not installed")

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from skillmix.models.local.attention import prepared  # noqa: E402
from skillmix.models.local.generator import Generator  # noqa: E402
from skillmix.models.local.gpu import gpu_decoder as decoding  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
VOCABULARY = 97


class Letters:
    """A renderer whose tokens are letters, and whose replies are the numbers of tokens."""

    def tokens(self, conversations: Sequence[tuple[Message, ...]], _: object = None) -> list[list[int]]:
        return [[ord(letter) % VOCABULARY for m in turns for letter in m.content] for turns in conversations]

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [" ".join(map(str, row)) for row in rows]

    def opening(self, _: Sequence[int]) -> str:
        return ""


def model() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(**sizes, vocab_size=VOCABULARY, num_key_value_heads=2, head_dim=32, initializer_range=0.1)
    return LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()


@pytest.mark.parametrize("most", [100, 32768])
def test_tokens_have_the_probabilities_of_plain_transformers(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts that share a beginning, in one flat row or cut into many, and one whose last token alone is unread."""
    real = decoding.packed_rows
    monkeypatch.setattr(decoding, "packed_rows", lambda starts: real(starts, most))
    random = Random(1)
    prompts = ["".join(random.choice("abcdef ") for _ in range(random.choice([3, 64, 65, 300]))) for _ in range(20)]
    prompts += ["the same beginning " * 8 + prompt for prompt in prompts]
    asked = [
        Request(GenerateKey("s", str(n), 0, 1), "m", (Message("user", prompt),), Decoding(0.7, 12), n)
        for n, prompt in enumerate([*prompts, *prompts[:5]])
    ]
    found: dict[str, list[int]] = {}

    def done(request: Request, outcome: Outcome) -> None:
        assert isinstance(outcome, Reply) and isinstance(request.key, GenerateKey)
        found[request.key.combination] = [int(token) for token in outcome.text.split()]

    renderer: Any = Letters()
    generator = Generator(prepared(model()), renderer, slots=64, done=done, ends=[])
    generator.add(asked)
    generator._queue_new()
    decoder = generator._fitting_decoder()
    assert decoder is not None
    decoder.rows.note_chances()
    while not generator.is_idle:
        generator.work()

    slots = [generator._resting["s", str(n), 0] for n in range(len(asked))]
    assert len(set(slots)) == len(asked)
    plain = model().float()
    assert decoder.rows.chances is not None
    for n, slot in enumerate(slots):
        prompt, written = renderer.tokens([asked[n].messages])[0], found[str(n)]
        assert len(written) == 12
        with torch.enable_grad():  # rotary embeddings without gradients are those of the kernel
            logits = plain(torch.tensor([[*prompt, *written]], device="cuda")).logits[0, len(prompt) - 1 : -1].detach()
        wanted = (logits / 0.7).log_softmax(-1).gather(-1, torch.tensor(written, device="cuda")[:, None])[:, 0]
        assert (decoder.rows.chances[slot, :12] - wanted).abs().mean() < 0.05
