"""Chat templates that only copy the contents of messages into a text.

Jinja's sandbox takes a fifth of a millisecond for a conversation with worked examples, and a small model on a GPU needs
little more for a call. A plain template is rendered once for each sequence of roles, with marks instead of contents;
each conversation then takes the place of the marks. Whether a template is plain is read off its syntax tree.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.ext import loopcontrols

_PLAIN_NODES: Final = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.For,
    nodes.If,
    nodes.Name,
    nodes.Const,
    nodes.Getitem,
    nodes.Getattr,
    nodes.Add,
    nodes.Concat,
    nodes.Mod,
    nodes.Compare,
    nodes.Operand,
    nodes.Not,
    nodes.And,
    nodes.Or,
)
_COPYING_NODES: Final = (nodes.Add, nodes.Concat, nodes.Output)
_MARK: Final = "\ue000{}\ue001"
_MARKS: Final = re.compile("\ue000([0-9]+)\ue001")
Render = Callable[[list[dict[str, str]]], str]


def is_plain(template: str) -> bool:
    """Whether a template copies contents and does nothing else with them, so that roles alone decide all the rest.

    The answer is no for every template with a part that this function does not know.

    >>> is_plain("{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}")
    True
    >>> is_plain("{% for m in messages %}{{ m['content'] | trim }}{% endfor %}")
    False
    """
    try:
        tree = Environment(extensions=[loopcontrols], autoescape=True).parse(template)  # parsed, never run
    except (TemplateSyntaxError, RecursionError):
        return False
    parents = {child: node for node in _all_nodes(tree) for child in node.iter_child_nodes()}
    return all(_is_plain_node(node, parents) for node in _all_nodes(tree))


def _all_nodes(tree: nodes.Node) -> list[nodes.Node]:
    found = [tree]
    for node in found:
        found.extend(node.iter_child_nodes())
    return found


def _is_plain_node(node: nodes.Node, parents: dict[nodes.Node, nodes.Node]) -> bool:
    if not isinstance(node, _PLAIN_NODES):
        return False
    if isinstance(node, nodes.For):
        return _iterates_messages(node)
    if _key_of(node) == "content":
        above = parents[node]
        while not isinstance(above, nodes.Output):
            if not isinstance(above, _COPYING_NODES):
                return False
            above = parents[above]
        return True
    if isinstance(node, nodes.Name) and node.ctx == "load":
        return _is_plain_name(node, parents)
    return True


def _iterates_messages(node: nodes.For) -> bool:
    is_simple = isinstance(node.target, nodes.Name) and node.test is None and not node.recursive
    return is_simple and isinstance(node.iter, nodes.Name) and node.iter.name == "messages"


def _is_plain_name(node: nodes.Name, parents: dict[nodes.Node, nodes.Node]) -> bool:
    """Whether a name is used in a way that cannot let the contents of messages decide anything."""
    above = parents[node]
    key = _key_of(above)
    if node.name == "messages":
        if isinstance(above, nodes.For):
            return above.iter is node
        return isinstance(key, int) and _key_of(parents[above]) == "role"
    if node.name in ("add_generation_prompt", "bos_token", "eos_token"):
        return True
    if node.name == "loop":
        return key in ("first", "last", "index", "index0", "length")
    return _is_target(node, parents) and key in ("role", "content")


def _is_target(node: nodes.Name, parents: dict[nodes.Node, nodes.Node]) -> bool:
    """Whether a name is the variable of a loop around it."""
    above: nodes.Node | None = parents[node]
    while above is not None:
        if isinstance(above, nodes.For) and isinstance(above.target, nodes.Name) and above.target.name == node.name:
            return True
        above = parents.get(above)
    return False


def _key_of(node: nodes.Node) -> object:
    """The constant by which a node takes a part of something."""
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        value: object = node.arg.value
        return value
    return None


class PlainTemplate:
    """Renders conversations of a plain template without the template, once it has seen their roles."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._pieces: dict[tuple[str, ...], list[str | int] | None] = {}

    def text(self, turns: Sequence[tuple[str, str]]) -> str:
        """The text of a conversation of roles and contents."""
        roles = tuple([role for role, _ in turns])
        pieces = self._pieces[roles] if roles in self._pieces else self._learned(roles, turns)
        if pieces is None:
            return self._whole(turns)
        return _joined(pieces, turns)

    def _whole(self, turns: Sequence[tuple[str, str]]) -> str:
        return self._render([{"role": role, "content": content} for role, content in turns])

    def _learned(self, roles: tuple[str, ...], turns: Sequence[tuple[str, str]]) -> list[str | int] | None:
        """Text and numbers of contents in their order; None if this conversation comes out otherwise."""
        marked = self._whole([(role, _MARK.format(number)) for number, role in enumerate(roles)])
        parts = _MARKS.split(marked)
        pieces: list[str | int] = [int(part) if place % 2 else part for place, part in enumerate(parts)]
        is_known = all(isinstance(piece, str) or piece < len(turns) for piece in pieces)
        self._pieces[roles] = pieces if is_known and _joined(pieces, turns) == self._whole(turns) else None
        return self._pieces[roles]


def _joined(pieces: Sequence[str | int], turns: Sequence[tuple[str, str]]) -> str:
    return "".join([piece if isinstance(piece, str) else turns[piece][1] for piece in pieces])


def plain_or_none(template: Any, render: Render) -> PlainTemplate | None:
    """A quick way to render conversations; None if the template is not plain."""
    return PlainTemplate(render) if isinstance(template, str) and is_plain(template) else None
