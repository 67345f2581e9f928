"""From messages to tokens: the canonical rendering in the model's own chat format, tokenised as a whole."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from skillmix.calls import Message
from skillmix.errors import UserError

_WORD_JOINER = "\u2060"


class Renderer:
    """A model's tokenizer and chat template."""

    def __init__(self, tokenizer: Any, *, name: str) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(
                f"The tokenizer of {name} has no chat template.", hint="Use an instruction-tuned model, or add one."
            )
        self.tokenizer = tokenizer
        self._special = sorted(tokenizer.all_special_tokens, key=len, reverse=True)
        self._rendered = lru_cache(maxsize=4096)(self._render)

    def tokens(self, conversations: Sequence[tuple[Message, ...]]) -> list[list[int]]:
        """The prompts of some conversations; those that are asked for several times are rendered once."""
        texts = [self._rendered(messages) for messages in conversations]
        different = list(dict.fromkeys(texts))
        # Not through transformers' own wrapper, which takes longer than the tokenising.
        encoded = self.tokenizer.backend_tokenizer.encode_batch_fast(different, add_special_tokens=False)
        by_text = {text: found.ids for text, found in zip(different, encoded, strict=True)}
        return [by_text[text] for text in texts]

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """What rows of tokens say, without the marks of the chat format."""
        said: list[str] = self.tokenizer.backend_tokenizer.decode_batch(rows, skip_special_tokens=True)
        return said

    def ends(self, model: Any) -> list[int]:
        """Tokens that end a turn: what the tokenizer says and what the model's own settings say."""
        named = getattr(model.generation_config, "eos_token_id", None)
        listed = named if isinstance(named, list) else [named]
        return sorted({token for token in (*listed, self.tokenizer.eos_token_id) if token is not None})

    def _render(self, messages: tuple[Message, ...]) -> str:
        said = [{"role": m.role, "content": self._inert(m.content)} for m in messages]
        try:
            text: str = self.tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # noqa: BLE001  # a template is a stranger's program and may raise anything
            raise UserError(
                f"The chat template cannot render a conversation: {error}", hint="Check the model."
            ) from None
        return text

    def _inert(self, content: str) -> str:
        """A mark of the chat format that a text merely mentions must not become one."""
        for token in self._special:
            if token in content:
                content = content.replace(token, f"{token[0]}{_WORD_JOINER}{token[1:]}")
        return content
