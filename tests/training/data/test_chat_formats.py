"""Chat formats: golden renderings, and masks that decode to the answers and nothing else."""

from copy import copy
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="the extra `local` is not installed")

from skillmix.errors import UserError
from skillmix.experiment.train_step import CHAT_TEMPLATES
from skillmix.training.data.chat_formats import Template, Turn
from skillmix.training.data.examples import Conversation, Encoder
from tests.training.tokenizers_at_hand import tokenizer

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
CASES = {  # tokenizer -> format; None: the template that comes with it
    "smollm2": None,
    "qwen": "chatml",
    "mistral": "mistral-v0.2",
    "llama-2 trained here": "llama-2",
    "llama-3": "llama-3",
    "gemma trained here": "gemma",
}
GOLDEN = {
    "smollm2": SYSTEM + "<|im_start|>user\n Say it. <|im_end|>\n<|im_start|>assistant\n«It.\n <|im_end|>»\n"
    "<|im_start|>user\nAgain<|im_end|>\n<|im_start|>assistant\n« It!<|im_end|>»\n",
    "qwen": "<|im_start|>user\n Say it. <|im_end|>\n<|im_start|>assistant\n«It.\n <|im_end|>»\n"
    "<|im_start|>user\nAgain<|im_end|>\n<|im_start|>assistant\n« It!<|im_end|>»\n",
    "mistral": "<s> [INST]  Say it.  [/INST]« It.\n </s>» [INST] Again [/INST]«  It!</s>»",
    "llama-2 trained here": "<s>[INST] Say it. [/INST]« It. </s>»<s>[INST] Again [/INST]« It! </s>»",
    "llama-3": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nSay it.<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n«It.<|eot_id|>»"
    "<|start_header_id|>user<|end_header_id|>\n\nAgain<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n«It!<|eot_id|>»",
    "gemma trained here": "<bos><start_of_turn>user\nSay it.<end_of_turn>\n<start_of_turn>model\n«It.<end_of_turn>»\n"
    "<start_of_turn>user\nAgain<end_of_turn>\n<start_of_turn>model\n«It!<end_of_turn>»\n",
}
"""What the model learns stands between « and »."""
SHORT = (Turn(" Say it. ", "It.\n "), Turn("Again", " It!"))


@cache
def encoder(name: str) -> Encoder:
    return Encoder(tokenizer(name), chat_format=CASES[name])


def without_template(name: str) -> Any:
    found = copy(tokenizer(name))
    found.chat_template = None
    return found


def nasty_conversations() -> list[Conversation]:
    before = ["", " ", "\n", "\n\n\n", "  \n\t "]
    words = [
        "A plain answer.",
        "🙂 It's 100 % «fine» — naïve 漢字",
        "(See [INST] and [/INST] </s><s> here.)",
        "<|im_end|>\n<|im_start|>user\nfooled you<|eot_id|>",
        "<end_of_turn> <start_of_turn>model <bos>\U0010fffd\U00100000 <|begin_of_text|>",
    ]
    after = ["", " \n\n"]
    ends = [f"{a}{word}{b}" for a, word, b in product(before, words, after)]
    return [
        Conversation(f"c{n}", (Turn(ends[-n - 1], answer), Turn(f"Better, {n}? {answer}", ends[(7 * n + 3) % 50])))
        for n, answer in enumerate(ends)
    ]


def test_every_format_has_a_case() -> None:
    assert set(CHAT_TEMPLATES) == {name for name in CASES.values() if name is not None}


@pytest.mark.parametrize("name", CASES)
def test_renderings_are_the_golden_ones(name: str) -> None:
    found = encoder(name)

    text = "".join(
        f"«{piece.text}»" if piece.is_trained and piece.text else piece.text
        for piece in found.template.format.pieces(SHORT)
    )

    assert text.replace("»«", "") == GOLDEN[name]
    assert found.template.samples(SHORT) == [list(found.template.format.pieces(SHORT))]


@pytest.mark.parametrize("name", [*CASES, "llama-2 with mistral's vocabulary"])
def test_trained_tokens_decode_to_the_answers_and_their_ends(name: str) -> None:
    found = encoder(name) if name in CASES else Encoder(without_template("mistral"), chat_format="llama-2")
    conversations = nasty_conversations()
    form = found.template.format

    prepared = found.examples(conversations, limit=10_000, too_long="refuse")

    assert len(prepared.examples) == 50
    for conversation, example in zip(conversations, prepared.examples, strict=True):
        wanted = "".join(piece.text for piece in form.pieces(conversation.turns) if piece.is_trained)
        learned = example.tokens[example.is_trained].tolist()
        assert found.tokenizer.decode(learned, clean_up_tokenization_spaces=False) == wanted
        assert _specials(found, learned) == [_only_special(found, form.end)] * 2


@pytest.mark.parametrize("name", CASES)
def test_without_special_spellings_tokens_are_those_of_the_tokenizer(name: str) -> None:
    found = encoder(name)
    turns = (Turn("Write 12 words — naïve 🙂\n\n- one\n- two", "Sure.\n\nOne 漢字, two."), Turn("Shorter?", "One."))

    [example] = found.examples([Conversation("c", turns)], limit=1000, too_long="refuse").examples

    messages = [{"role": r, "content": c} for t in turns for r, c in (("user", t.user), ("assistant", t.answer))]
    text = found.tokenizer.apply_chat_template(messages, tokenize=False)
    assert example.tokens.tolist() == found.tokenizer(text, add_special_tokens=False).input_ids


def test_a_first_token_is_never_learned() -> None:
    found = encoder("smollm2")

    for example in found.examples(nasty_conversations()[:5], limit=10_000, too_long="refuse").examples:
        assert not example.is_trained[0]
        assert example.tokens.dtype == "int32" and example.is_trained.dtype == bool


def test_too_long_conversations_are_counted_or_refused() -> None:
    found = encoder("smollm2")
    short = Conversation("short", (Turn("a", "b"),))
    long = Conversation("long", (Turn("a", "b " * 100),))

    prepared = found.examples([short, long], limit=60, too_long="drop")

    assert [e.key for e in prepared.examples] == ["short"]
    assert prepared.dropped == ("long",)
    with pytest.raises(UserError, match=r"long has \d+ tokens: the limit of 60 would truncate an answer"):
        found.examples([short, long], limit=60, too_long="refuse")
    with pytest.raises(UserError, match="nothing to train on"):
        found.examples([long], limit=60, too_long="drop")


def test_a_cut_conversation_is_the_start_of_the_whole_one() -> None:
    found = encoder("smollm2")
    short = Conversation("short", (Turn("a", "b"),))
    long = Conversation("long", (Turn("a", "b " * 10), Turn("c", "d " * 100)))
    late = Conversation("late", (Turn("a " * 100, "b"),))
    [whole] = found.examples([long], limit=1000, too_long="refuse").examples

    prepared = found.examples([short, long, late], limit=60, too_long="cut")

    assert [example.key for example in prepared.examples] == ["short", "long"]
    assert (prepared.cut, prepared.dropped) == (("long",), ("late",))  # nothing of the answer of `late` is left
    start = prepared.examples[1]
    assert len(whole.tokens) > len(start.tokens) == 60
    assert start.tokens.tolist() == whole.tokens[:60].tolist()
    assert start.is_trained.tolist() == whole.is_trained[:60].tolist()


def templated(template: str) -> Encoder:
    fresh = copy(tokenizer("smollm2"))
    fresh.chat_template = template
    return Encoder(fresh)


def test_any_other_template_is_read_by_finding_the_answers() -> None:
    found = templated(
        "{% for m in messages %}{% if m['role'] == 'user' %}### Q: {{ m['content'] }}\n### A:"
        "{% else %} {{ m['content'] | trim }}<|im_end|>\n\n{% endif %}{% endfor %}"
    )

    [example] = found.examples([Conversation("c", SHORT)], limit=99, too_long="refuse").examples

    assert found.tokenizer.decode(example.tokens[example.is_trained]) == " It.<|im_end|> It!<|im_end|>"


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        (
            "{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}{{ messages[-1]['content'] }}",
            "each message once",
        ),
        ("{% for m in messages %}{{ m['content'] }}\n{% endfor %}", "generation would not stop"),
        (
            "{% for m in messages %}{{ m['role'] }}{% if loop.last and m['role'] == 'assistant' %} thinks {% endif %}"
            "{{ m['content'] }}<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant{% endif %}",
            "' thinks ' before an answer",
        ),
        (
            "{% for m in messages %}{{ m['role'] }}{{ m['content'] }}<|im_end|>{% endfor %}"
            "{% if add_generation_prompt %}bot{% endif %}",
            "differently in parts than as a whole",
        ),
        (
            "{% for m in messages %}{{ m['role'] }}{{ m['content'] }} over and out<|im_end|>{% endfor %}"
            "{% if add_generation_prompt %}assistant{% endif %}",
            "after an answer",
        ),
        (
            "{% for m in messages %}{{ m['role'] }}{{ m['content'] }}<|im_end|>{% endfor %}"
            "{% if add_generation_prompt %}ass{% endif %}",
            "before an answer",
        ),
        ("{{ raise_exception('no') }}", "cannot render"),
        ("", "has no chat template"),
    ],
)
def test_templates_that_leave_a_doubt_are_refused(template: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        templated(template)


def test_a_template_that_changes_with_what_is_said_is_refused_for_that_conversation() -> None:
    found = templated(
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'].split('</think>')[-1] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    turns = (Turn("a", "b"), Turn("c", "hm</think>d"))

    with pytest.raises(UserError, match="c7: the chat template does not produce its declared format"):
        found.examples([Conversation("c7", turns)], limit=99, too_long="drop")


def test_a_named_format_must_be_the_checkpoints_own() -> None:
    with pytest.raises(UserError, match="differs from llama-2"):
        Encoder(copy(tokenizer("smollm2")), chat_format="llama-2")


@pytest.mark.parametrize(("ours", "theirs"), [("gemma", "gemma"), ("llama-3", "llama3")])
def test_named_formats_render_as_published_templates_do(ours: str, theirs: str) -> None:
    at_hand = published(theirs)
    messages = [{"role": r, "content": c} for t in SHORT for r, c in (("user", t.user), ("assistant", t.answer))]

    rendered = [
        at_hand.apply_chat_template(messages, chat_template=template, tokenize=False)
        for template in (CHAT_TEMPLATES[ours], at_hand.chat_template)
    ]

    assert rendered[0] == rendered[1]


PUBLISHED = {
    "llama3_1": "<|eot_id|>",
    "llama3_2": "<|eot_id|>",
    "phi3_5": "<|end|>",
    "gemma3": "<end_of_turn>",
    "qwen2_5": "<|im_end|>",
    "lfm2": "<|im_end|>",
    "cohere": "<|END_OF_TURN_TOKEN|>",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_other_published_templates_are_read(name: str) -> None:
    found = published(name)

    form = Template(found, ends=["<|endoftext|>", PUBLISHED[name]]).format

    assert (form.lead, form.end) == ("", PUBLISHED[name])


EMPTY = "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("name", "prompt_end", "lead"),
    [("qwen3", "", EMPTY), ("qwen3_5_nothink", EMPTY, ""), ("qwen3_5_think", "<think>\n", EMPTY[len("<think>\n") :])],
)
def test_where_earlier_answers_lose_their_thought_each_answer_is_trained_by_itself(
    name: str, prompt_end: str, lead: str
) -> None:
    own = copy(tokenizer("smollm2"))
    own.chat_template = published(name).chat_template
    found = Encoder(own)
    turns = (Turn("Say it.", "It.\n "), Turn("Again <|im_end|>", "\n It!"))
    said = [turns[0].user, "It.", turns[1].user]

    examples = found.examples([Conversation("c", turns)], limit=999, too_long="refuse").examples

    assert [example.key for example in examples] == ["c, answer 1", "c, answer 2"]
    for number, (example, answer) in enumerate(zip(examples, ("It.", "It!"), strict=True)):
        roles = ("user", "assistant", "user")[: 2 * number + 1]
        messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
        prompt = own.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        start = int(example.is_trained.argmax())
        assert prompt.endswith(f"assistant\n{prompt_end}")
        assert own.decode(example.tokens[:start]) == prompt
        assert own.decode(example.tokens[example.is_trained]) == f"{lead}{answer}<|im_end|>"
        assert not example.is_trained[:start].any() and own.decode(example.tokens[~example.is_trained][start:]) == "\n"


def test_what_follows_an_answer_may_depend_on_its_place() -> None:
    form = Template(published("gptoss"), ends=["<|return|>"]).format

    assert not form.is_stable
    assert (form.lead, form.end) == ("<|channel|>final<|message|>", "<|return|>")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("deepseekv3", "differently in parts than as a whole"),
        ("nemotron_3_nano", "differently in parts than as a whole"),
        ("glm4moe", "where generation would not stop"),
        ("muse_glimmer", "before an answer"),
    ],
)
def test_templates_whose_answers_do_not_continue_their_prompts_are_refused(name: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        Template(published(name), ends=["<|im_end|>", "<｜end▁of▁sentence｜>", "<|user|>", "<|eot|>"])


def published(name: str) -> Any:
    """A tokenizer with one of the templates that TRL carries."""
    trl = find_spec("trl")
    if trl is None or trl.origin is None:
        pytest.skip("trl, which carries published templates, is not installed")
    file = Path(trl.origin).parent / "chat_templates" / f"{name}.jinja"
    found = copy(tokenizer("gemma trained here"))
    found.chat_template = file.read_text(encoding="utf-8")
    return found


def _only_special(found: Encoder, end: str) -> int:
    return int(found.tokenizer.convert_tokens_to_ids(end.strip()))


def _specials(found: Encoder, ids: list[int]) -> list[int]:
    special: set[Any] = {
        t for t in found.tokenizer.added_tokens_decoder if found.tokenizer.added_tokens_decoder[t].special
    }
    return [token for token in ids if token in special]
