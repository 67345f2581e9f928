"""The rows of a generation batch: how each row starts, and how its tokens are chosen.

Each token is a function of the logits and of one random number, which depends only on the call's seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import shake_128

import numpy as np
import torch

from skillmix.calls import Request

DEFAULT_LIMIT = 512
"""The default number of tokens to generate."""


@dataclass(frozen=True, slots=True)
class Start:
    """The initial state of a row: its slot, its prompt and its sampling settings."""

    slot: int
    tokens: Sequence[int]
    """The tokens of the whole prompt."""
    known: int
    """The number of tokens at the prompt's beginning that are already in the slot."""
    numbers: np.ndarray
    """One uniform random number for each token that the row may generate."""
    temperature: float
    top_p: float | None
    limit: int


class Rows:
    """The state of all rows of a decoder, on its device."""

    def __init__(self, count: int, *, longest: int, ends: Sequence[int], device: torch.device) -> None:
        """Create rows that generate at most `longest` tokens and stop at any of the tokens in `ends`."""
        self.ends = torch.tensor(list(ends), device=device)
        self.token = torch.zeros(count, dtype=torch.long, device=device)
        """The last token of each row, which the next step reads."""
        self.position = torch.zeros(count, dtype=torch.long, device=device)
        """The position of each row's last token."""
        self.count = torch.zeros(count, dtype=torch.long, device=device)
        """The number of tokens that each row has written."""
        self.written = torch.zeros(count, longest, dtype=torch.long, device=device)
        self.is_active = torch.zeros(count, dtype=torch.bool, device=device)
        self.limit = torch.ones(count, dtype=torch.long, device=device)
        self.temperature = torch.ones(count, device=device)
        self.top_p = torch.ones(count, device=device)
        self.numbers = torch.zeros(count, longest, device=device)
        self.chances: torch.Tensor | None = None
        """The log-probability of every written token; None unless `note_chances` was called."""

    @property
    def changing(self) -> list[torch.Tensor]:
        """The tensors that a step changes."""
        return [self.token, self.position, self.count, self.written, self.is_active]

    def begin(self, starts: Sequence[Start], send: Callable[[np.ndarray], torch.Tensor] = torch.from_numpy) -> None:
        """Set up new rows; `send` copies an array to the device."""
        settings = [(s.slot, s.limit, len(s.tokens) - 1, s.tokens[-1]) for s in starts]
        slots, limits, positions, tokens = send(np.array(settings)).unbind(1)
        sampling = [(s.temperature, 1.0 if s.top_p is None else s.top_p) for s in starts]
        temperatures, top_p = send(np.array(sampling, dtype=np.float32)).unbind(1)
        self.numbers[slots] = send(numbers_of(starts, self.numbers.shape[1]))
        self.limit[slots], self.position[slots], self.token[slots] = limits, positions, tokens
        self.temperature[slots], self.top_p[slots] = temperatures, top_p
        # Avoid `tensor[slots] = 0`, which waits for a GPU.
        self.count.index_fill_(0, slots, 0)
        self.is_active.index_fill_(0, slots, True)

    def note_chances(self) -> None:
        """Record log-probabilities from now on, which is slow; tests call this before a step is captured."""
        self.chances = torch.zeros(self.numbers.shape, device=self.numbers.device)

    def accept(self, rows: torch.Tensor, logits: torch.Tensor, with_top_p: bool) -> None:
        """Choose the next token of active rows; an end token, or the last token within the limit, ends a row."""
        active, count = self.is_active[rows], self.count[rows]
        index = count.clamp(max=self.numbers.shape[1] - 1)
        top_p = self.top_p[rows] if with_top_p else None
        token = choose(logits, self.numbers[rows, index], self.temperature[rows], top_p)
        if self.chances is not None:
            scaled = torch.log_softmax(logits.float() / self.temperature[rows, None], dim=-1)
            chance = scaled.gather(-1, token[:, None])[:, 0]
            self.chances[rows, index] = torch.where(active, chance, self.chances[rows, index])
        self.written[rows, index] = torch.where(active, token, self.written[rows, index])
        count = count + active
        self.count[rows] = count
        self.token[rows] = torch.where(active, token, self.token[rows])
        self.position[rows] = torch.where(active, self.position[rows] + 1, self.position[rows])
        is_end = (token[:, None] == self.ends).any(-1)
        self.is_active[rows] = active & ~is_end & (count < self.limit[rows])


def start_of(request: Request, tokens: Sequence[int], *, slot: int, known: int = 0) -> Start:
    """Return the initial state of the row for a request whose prompt has these tokens."""
    decoding = request.decoding
    limit = decoding.max_tokens or DEFAULT_LIMIT
    temperature = 1.0 if decoding.temperature is None else decoding.temperature
    return Start(slot, tokens, known, uniforms(request.seed or 0, limit), temperature, decoding.top_p, limit)


def numbers_of(starts: Sequence[Start], longest: int) -> np.ndarray:
    """Return the random numbers of the given rows, padded with zeros."""
    numbers = np.zeros((len(starts), longest), dtype=np.float32)
    for row, start in zip(numbers, starts, strict=True):
        row[: start.limit] = start.numbers[: start.limit]
    return numbers


def uniforms(seed: int, count: int) -> np.ndarray:
    """Draw the random numbers in [0, 1) of one call.

    The numbers depend only on the call's seed, and are the same on every machine.
    """
    raw = shake_128(f"skillmix tokens {seed}".encode()).digest(4 * count)
    # Use 24 bits, because a 32-bit float represents such numbers without rounding up to 1.
    numbers: np.ndarray = (np.frombuffer(raw, dtype="<u4") >> 8).astype(np.float32) / np.float32(1 << 24)
    return numbers


def choose(
    logits: torch.Tensor, numbers: torch.Tensor, temperatures: torch.Tensor, top_p: torch.Tensor | None
) -> torch.Tensor:
    """Choose a token for each row by inverse transform sampling, or the most likely token at temperature 0."""
    logits = logits.float()
    likeliest = logits.argmax(-1)
    is_greedy = temperatures <= 0
    scaled = logits / torch.where(is_greedy, 1.0, temperatures)[:, None]
    chances = torch.softmax(scaled, dim=-1)
    if top_p is not None:
        # The most likely tokens that together reach top_p keep their probabilities; all other tokens have probability
        # 0.
        ordered, order = chances.sort(dim=-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        kept = torch.where(before < top_p[:, None], ordered, 0.0)
        # A row without top_p keeps its exact probabilities, whatever the settings of other rows.
        chances = torch.where((top_p < 1)[:, None], torch.zeros_like(chances).scatter_(-1, order, kept), chances)
    cumulative = chances.cumsum(-1)
    targets = numbers[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, targets, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
    return torch.where(is_greedy, likeliest, drawn)
