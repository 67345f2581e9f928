"""Chat formats: where a template puts what is said, what it writes around it, and which part the model learns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Blanks = Literal["keep", "strip", "lstrip", "rstrip"]


class Turn(NamedTuple):
    """What a user says and what is answered."""

    said: str
    answer: str


class Piece(NamedTuple):
    """A part of a rendered conversation."""

    text: str
    is_mark: bool
    """Whether the template wrote it: only there may special tokens stand."""
    is_trained: bool


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The fixed parts of a rendered conversation, in their order: each turn is asked, then answered."""

    first: str
    """Before the first user's words: begin token, a default system message, the mark of a user."""
    asked: str
    """After a user's words, up to where the model begins to write."""
    lead: str
    """Blanks that the model writes before the answer's own words."""
    end: str
    """What it writes after them: the end token, and blanks before it."""
    between: str
    """From an answer's end token to the next user's words."""
    last: str
    """After the last answer's end token."""
    user_blanks: Blanks = "keep"
    answer_blanks: Blanks = "keep"

    def pieces(self, turns: Sequence[Turn]) -> Iterator[Piece]:
        """A conversation as the template renders it, part by part."""
        before = self.first
        for turn in turns:
            yield Piece(before, is_mark=True, is_trained=False)
            yield Piece(trimmed(turn.said, self.user_blanks), is_mark=False, is_trained=False)
            yield Piece(self.asked, is_mark=True, is_trained=False)
            yield Piece(self.lead, is_mark=True, is_trained=True)
            yield Piece(trimmed(turn.answer, self.answer_blanks), is_mark=False, is_trained=True)
            yield Piece(self.end, is_mark=True, is_trained=True)
            before = self.between
        yield Piece(self.last, is_mark=True, is_trained=False)

    def prompt(self, turns: Sequence[Turn], said: str) -> str:
        """What a model is given to answer the next user's words, after some turns."""
        before = "".join(piece.text for piece in self.pieces(turns)).removesuffix(self.last) if turns else ""
        opening = self.between if turns else self.first
        return f"{before}{opening}{trimmed(said, self.user_blanks)}{self.asked}"


def trimmed(text: str, blanks: Blanks) -> str:
    """A text without the blanks that a template takes away."""
    match blanks:
        case "keep":
            return text
        case "strip":
            return text.strip()
        case "lstrip":
            return text.lstrip()
        case "rstrip":
            return text.rstrip()


_CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LLAMA_2: Final = (
    "{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + message['content'].strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
_MISTRAL: Final = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ ' [INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)
_LLAMA_3: Final = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'].strip() }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
_GEMMA: Final = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}"
    "{{ message['content'].strip() + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
TEMPLATES: Final = {
    "llama-2": _LLAMA_2,
    "mistral-v0.2": _MISTRAL,
    "chatml": _CHATML,
    "llama-3": _LLAMA_3,
    "gemma": _GEMMA,
}
"""Templates by the name of their format, for checkpoints that carry none; a checkpoint's own is always preferred."""
