"""Convert messages to tokens with the model's own chat template, and tokens to text."""

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any, Final

from skillmix.calls import Message
from skillmix.errors import UserError
from skillmix.grading.answers import OPENING, is_thought_tag, opens_thought
from skillmix.models.request_fields import TEMPLATE_OPTIONS

_END_OF_PROMPT: Final = 16
"""The number of tokens at the end of a prompt that are searched for the start of a thought."""
_WORD_JOINER = "\u2060"
_SYSTEM_HINT = (
    "Not every model supports a system role. Remove system from this model, or put its text into your own prompt set."
)


class Renderer:
    """A model's tokenizer and chat template."""

    def __init__(self, tokenizer: Any, *, name: str) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(
                f"The tokenizer of {name} has no chat template.",
                hint="Use an instruction-tuned model, or add a chat template to the tokenizer.",
            )
        self.tokenizer = tokenizer
        self._name = name
        self._special = sorted(tokenizer.all_special_tokens, key=len, reverse=True)
        self._shows_thoughts = any(map(is_thought_tag, self._special))
        self._decoded = tokenizer.backend_tokenizer.decode_batch
        self._rendered = lru_cache(maxsize=4096)(self._render)

    def tokens(
        self, conversations: Sequence[tuple[Message, ...]], extras: Sequence[str | None] = ()
    ) -> list[list[int]]:
        """Return the prompt tokens of conversations; equal conversations are rendered and tokenized once.

        `extras` contains the extra fields of each request as JSON, with the options for the chat template.
        """
        texts = [self._rendered(messages, extra) for messages, extra in zip_longest(conversations, extras)]
        unique = list(dict.fromkeys(texts))
        # Avoid the wrapper in transformers, which takes longer than the tokenization itself.
        encodings = self.tokenizer.backend_tokenizer.encode_batch_fast(unique, add_special_tokens=False)
        by_text = {text: encoding.ids for text, encoding in zip(unique, encodings, strict=True)}
        return [by_text[text] for text in texts]

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Decode rows of tokens into texts, without the special tokens of the chat format."""
        texts: list[str] = self._decoded(rows, skip_special_tokens=not self._shows_thoughts)
        if self._shows_thoughts:
            for token in (token for token in self._special if not is_thought_tag(token)):
                texts = [text.replace(token, "") for text in texts]
        return texts

    def opening(self, prompt: Sequence[int]) -> str:
        """Return `OPENING` if a prompt ends with the start of a thought, which belongs to the reply; otherwise ""."""
        (end,) = self._decoded([prompt[-_END_OF_PROMPT:]], skip_special_tokens=False)
        return OPENING if opens_thought(end) else ""

    def ends(self, model: Any) -> list[int]:
        """Return the tokens that end a turn, according to the tokenizer and the model's generation config."""
        setting = getattr(model.generation_config, "eos_token_id", None)
        listed = setting if isinstance(setting, list) else [setting]
        return sorted({token for token in (*listed, self.tokenizer.eos_token_id) if token is not None})

    def _render(self, messages: tuple[Message, ...], extra: str | None) -> str:
        turns = []
        for message in messages:
            content = message.content
            for token in self._special:  # split each mention of a special token, so that it is read as text
                if token in content:
                    content = content.replace(token, f"{token[0]}{_WORD_JOINER}{token[1:]}")
            turns.append({"role": message.role, "content": content})
        options = json.loads(extra).get(TEMPLATE_OPTIONS, {}) if extra else {}
        has_system = messages[0].role == "system"
        try:
            text: str = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **options)
        except Exception as error:  # noqa: BLE001  # a template is untrusted code and may raise anything
            hint = _SYSTEM_HINT if has_system else "Check the template of this model."
            raise UserError(f"The chat template cannot render a conversation: {error}", hint=hint) from None
        # Some templates skip a system turn without an error.
        if has_system and turns[0]["content"].strip() not in text:
            raise UserError(f"The chat template of {self._name} omits the system prompt.", hint=_SYSTEM_HINT)
        return text
