"""Models from nothing: words of the training text as tokens, and a small Llama with random weights.

A tokenizer of words and punctuation marks. Blanks are no tokens: the decoder writes one blank between two words, and
none where a mark leans on its neighbour. Quotation marks that open and marks without blanks around them, which look
like others, are tokens of their own (private characters), so that a text comes back as it was.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from skillmix.models.local.loading import read_tokenizer
from skillmix.models.shapes import ModelShape
from skillmix.runs.progress import say
from skillmix.training.data.examples import Conversation
from skillmix.training.job import checkpoint_in

_UNKNOWN, _BEGIN, _END, _USER, _ASSISTANT = _SPECIAL = "<unk>", "<s>", "</s>", "<user>", "<assistant>"
_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<user>' + message['content'] | trim }}"
    "{% elif message['role'] == 'assistant' %}{{ '<assistant>' + message['content'] | trim + '</s>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
_NO_WORD: Final = "\uf8ff"
"""No token begins with it."""
_MOST_WORDS: Final = 1 << 14
"""Words of a vocabulary; rarer ones are unknown."""
_WORD: Final = r"(?:[^\W\d_]\.){2,}|\w+(?:['’-]\w+|(?<=\d)[.,:]\d+)*|[^\w\s]"
_PRIVATE: Final = {
    r'(?<![^\s(\[{“‘—])"(?=\S)': ("\ue000", '"'),
    r"(?<![^\s(\[{“‘—\ue000])'(?=\S)": ("\ue001", "'"),
    r"(?<=\S)—(?=\S)": ("\ue002", "—"),
    r"(?<=\S)–(?=\S)": ("\ue003", "–"),
    r"(?<=\S)/(?=\S)": ("\ue004", "/"),
}
"""Straight quotation marks that open, and marks without blanks around them: where they are, their tokens, and what a
text has for them."""
_BLANK_BEFORE: Final = r" (?=[,.;:!?…)\]}”’%\"'\ue002-\ue004])"
_BLANK_AFTER: Final = r"(?<=[(\[{“‘$£€#\ue000-\ue004]) "
"""Blanks that the decoder takes away again."""
_LONGEST: Final = 2048
"""Tokens of a text; positions have no weights."""
_SPREAD: Final = 0.02
"""Standard deviation of the random weights."""


def base_tokenizer(base: str, conversations: Sequence[Conversation]) -> tuple[Any, list[int]]:
    """The tokenizer of a train step's base, and the tokens that end a text; a new model learns it from the data."""
    checkpoint = checkpoint_in(base)
    if checkpoint is not None:
        return read_tokenizer(checkpoint)
    tokenizer = word_tokenizer([text for talk in conversations for turn in talk.turns for text in turn])
    return tokenizer, [tokenizer.eos_token_id]


def word_tokenizer(texts: Sequence[str]) -> Any:
    """A tokenizer of the words and marks in some texts, the most frequent first; their order does not matter."""
    backend = Tokenizer(models.WordLevel({}, unk_token=_UNKNOWN))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(place), token) for place, (token, _) in _PRIVATE.items()]
    )
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), "removed", invert=True)
    marks = [decoders.Replace(token, mark) for token, mark in _PRIVATE.values()]
    backend.decoder = decoders.Sequence(
        [
            decoders.WordPiece(prefix=_NO_WORD, cleanup=False),
            decoders.Fuse(),
            *(decoders.Replace(Regex(blank), "") for blank in (_BLANK_BEFORE, _BLANK_AFTER)),
            *marks,
        ]
    )
    trainer = trainers.WordLevelTrainer(vocab_size=_MOST_WORDS, special_tokens=list(_SPECIAL), show_progress=False)
    backend.train_from_iterator(texts, trainer)
    if backend.get_vocab_size() == _MOST_WORDS:
        say(f"the model knows the {_MOST_WORDS:,} most frequent words and marks of its texts only")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token=_UNKNOWN,
        bos_token=_BEGIN,
        eos_token=_END,
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=_LONGEST,
    )


@torch.no_grad()  # type: ignore[untyped-decorator]
def new_model(shape: ModelShape, tokenizer: Any, *, seed: int) -> Any:
    """A Llama with random weights, which are the same on every machine."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=_LONGEST,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            # Not normally distributed: processors round logarithms and cosines differently.
            uniform = torch.rand(parameter.shape, generator=generator) - 0.5
            parameter.copy_(uniform * (12**0.5 * _SPREAD))
    return model
