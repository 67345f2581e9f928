"""Chat templates that only copy contents, rendered without the template."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

import skillmix
from skillmix.models.local.plain_templates import PlainTemplate, Render, is_plain

SHIPPED = sorted((Path(skillmix.__file__).parent / "data" / "chat_formats").glob("*.jinja"))
SMOLLM = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You help.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

CONVERSATIONS = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text(max_size=30)), min_size=1, max_size=6
)


def render_of(template: str, calls: list[int] | None = None) -> Render:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    compiled = environment.from_string(template)

    def render(turns: list[dict[str, str]]) -> str:
        if calls is not None:
            calls.append(len(turns))
        return compiled.render(messages=turns, add_generation_prompt=True, bos_token="<s>", eos_token="</s>")

    return render


@settings(deadline=None, max_examples=50)
@given(conversations=st.lists(CONVERSATIONS, min_size=1, max_size=4))
def test_a_plain_template_gives_the_text_of_the_template(conversations: list[list[tuple[str, str]]]) -> None:
    render = render_of(SMOLLM)
    plain = PlainTemplate(render)
    for turns in conversations:
        whole = render([{"role": role, "content": content} for role, content in turns])
        assert plain.text(turns) == plain.text(turns) == whole


def test_marks_in_a_message_are_copied_like_other_signs() -> None:
    render = render_of(SMOLLM)
    plain = PlainTemplate(render)
    for content in ("a", "\ue0000\ue001 \ue0001\ue001"):
        turns = [("user", content), ("assistant", "b")]
        assert plain.text(turns) == render([{"role": role, "content": text} for role, text in turns])


def test_the_template_renders_only_conversations_with_new_roles() -> None:
    calls: list[int] = []
    plain = PlainTemplate(render_of(SMOLLM, calls))
    for number in range(5):
        plain.text([("user", f"{number}"), ("assistant", "x")])
    assert len(calls) == 2, "once with marks, and once to compare"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (SMOLLM, True),
        ("{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}", True),
        ("{{ bos_token }}{% for m in messages %}{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}", True),
        ("{% for m in messages %}{{ m.content | trim }}{% endfor %}", False),
        ("{% for m in messages %}{{ m.content.strip() }}{% endfor %}", False),
        ("{% for m in messages %}{{ m.content[0] }}{% endfor %}", False),
        ("{% for m in messages %}{% if m.content %}x{% endif %}{% endfor %}", False),
        ("{% for m in messages %}{% if 'x' in m.content %}x{% endif %}{% endfor %}", False),
        ("{% for m in messages %}{{ m }}{% endfor %}", False),
        ("{% for m in messages %}{{ m['con' + 'tent'] | length }}{% endfor %}", False),
        ("{% for m in messages %}{% set c = m.content %}{{ c | upper }}{% endfor %}", False),
        ("{% for m in messages[1:] %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages if m.content %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages | reverse %}{{ m.content }}{% endfor %}", False),
        ("{{ messages[0].content }}", False),
        ("{{ messages }}", False),
        ("{% for m in messages %}{{ [m.content, 'x'] | join }}{% endfor %}", False),
        ("{% for m in messages %}{% for n in messages %}{{ m.content > n.content }}{% endfor %}{% endfor %}", False),
        ("{% for m in messages %}{{ m.content % 3 }}{% endfor %}", False),
        ("{% for m in messages %}{{ loop.previtem.content }}{% endfor %}", False),
        ("{% for m in messages %}{{ other.content }}{% endfor %}", False),
        ("{% for message in messages %}{{ message['content'] }}{% endfor", False),
    ],
)
def test_a_template_is_plain_only_if_it_copies_contents(template: str, expected: bool) -> None:
    assert is_plain(template) is expected


def test_shipped_formats_are_rendered_as_their_templates_say() -> None:
    plain_ones = [file for file in SHIPPED if is_plain(file.read_text(encoding="utf-8"))]
    assert "chatml" in {file.stem for file in plain_ones}
    for file in plain_ones:
        render = render_of(file.read_text(encoding="utf-8"))
        plain = PlainTemplate(render)
        for turns in ([("user", "a  ")], [("user", " b"), ("assistant", "c\n"), ("user", "")]):
            assert plain.text(turns) == render([{"role": role, "content": content} for role, content in turns])


def test_a_template_with_signs_like_marks_is_left_to_the_template() -> None:
    render = render_of("\ue0007\ue001" + SMOLLM)
    plain = PlainTemplate(render)
    assert plain.text([("user", "a")]) == render([{"role": "user", "content": "a"}])
