"""The environment that chat templates run in: Jinja's sandbox with bounds of time and size.

Jinja's own sandbox keeps a template from reaching anything. This one also keeps it from looping for ever
(every turn of a loop and every call looks at the clock) and from growing (whatever makes text or a container
of others is measured first).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from time import thread_time
from typing import Any

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.visitor
from jinja2.exceptions import SecurityError

MAX_CHARACTERS = 4 << 20
"""Longest text that a template may write, or hold in one value."""
MAX_CPU_S = 2.0
"""How long a template may run, by the processor's time of its thread."""
_MOST_BITS = 1024
_MOST_COLUMNS = 1000
_GROWING = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs"))
_REMOVED = ("center", "format", "indent", "wordwrap", "xmlattr")


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Call `begin` on the thread that renders, before it does."""

    intercepted_binops = frozenset(("*", "**", "%", "+"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            # The output is a prompt, not a page.
            autoescape=False,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self._limits = threading.local()
        for name in _REMOVED:
            self.filters.pop(name, None)
        self.filters |= {"replace": _replace, "join": _join, "batch": _batch, "slice": _slice}
        self.globals.pop("lipsum", None)

    def begin(self) -> None:
        """From now on a template may run for MAX_CPU_S on this thread."""
        self._limits.until = thread_time() + MAX_CPU_S

    def tick(self) -> None:
        """Raises SecurityError once the time is over."""
        if thread_time() > getattr(self._limits, "until", float("inf")):
            raise SecurityError(f"a chat template may run for {MAX_CPU_S:g} s")

    def sized(self, value: Any) -> Any:
        """`value`, a container that was just made. Raises SecurityError if all that is in it is too much."""
        check_size(value)
        return value

    def concatenated(self, *values: Any) -> str:
        """What `~` makes of them."""
        return _joined("", values)

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree: jinja2.nodes.Template = _Bounding(self).visit(super()._parse(source, name, filename))
        return tree

    def call(self, context: jinja2.runtime.Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.tick()
        if isinstance(text := getattr(obj, "__self__", None), str):
            name = getattr(obj, "__name__", "")
            if name == "replace":
                return _replace(self, text, *args, **kwargs)
            if name == "join":
                return _joined(text, *args, **kwargs)
        found = super().call(context, obj, *args, **kwargs)
        return self.sized(found) if isinstance(found, dict | list | tuple) else found

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or (operator == "%" and isinstance(left, str | bytes)):
            raise SecurityError(f"a chat template may not use {operator} here")
        if operator == "*":
            _check_product(left, right)
        if operator == "+" and not isinstance(left, int | float):
            check_size((left, right))
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str | bytes) and attr in _GROWING:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is not None:
            raise SecurityError("a chat template may not use str.format")
        return None


def check_size(value: Any) -> None:
    """Raises SecurityError if `value` written out has more than MAX_CHARACTERS.

    A container counts each time that it is met, as when it is written: a few lists inside one another may
    stand for more than any memory holds.
    """
    if _size(value, {}) > MAX_CHARACTERS:
        raise SecurityError(f"a chat template may hold {MAX_CHARACTERS} characters in one value")


def _size(value: Any, known: dict[int, int]) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if not isinstance(value, dict | list | tuple):
        return 8
    if id(value) not in known:
        known[id(value)] = 8  # one that holds itself
        inside: Iterable[Any] = (*value, *value.values()) if isinstance(value, dict) else value
        known[id(value)] = 8 + sum(_size(each, known) for each in inside)
    return known[id(value)]


def _check_product(left: Any, right: Any) -> None:
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        raise SecurityError("a chat template may multiply numbers only")
    if isinstance(left, int) and isinstance(right, int) and _bits(left, right) > _MOST_BITS:
        raise SecurityError(f"a chat template may make numbers of up to {_MOST_BITS} bits")


def _bits(*factors: int) -> int:
    return sum(factor.bit_length() for factor in factors)


@jinja2.pass_environment
def _replace(_environment: Any, text: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = str(text), str(old), str(new)
    times = text.count(old) if count is None or count < 0 else min(count, text.count(old))
    if len(text) + times * (len(new) - len(old)) > MAX_CHARACTERS:
        raise SecurityError(f"a chat template may hold {MAX_CHARACTERS} characters in one value")
    replaced: str = text.replace(old, new, times)
    return replaced


def _joined(between: str, values: Iterable[Any]) -> str:
    parts: list[str] = []
    left = MAX_CHARACTERS
    for value in values:
        check_size(value)
        parts.append(str(value))
        left -= len(parts[-1]) + len(between)
        if left < 0:
            raise SecurityError(f"a chat template may hold {MAX_CHARACTERS} characters in one value")
    return between.join(parts)


@jinja2.pass_eval_context
def _join(context: Any, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(jinja2.filters.make_attrgetter(context.environment, attribute), value)
    return _joined(str(d), value)


def _batch(value: Iterable[Any], linecount: int, fill_with: Any = None) -> Iterable[list[Any]]:
    _check_columns(linecount)
    return jinja2.filters.do_batch(value, linecount, fill_with)


@jinja2.pass_environment
def _slice(_environment: Any, value: Any, slices: int, fill_with: Any = None) -> Iterable[list[Any]]:
    _check_columns(slices)
    return jinja2.filters.sync_do_slice(value, slices, fill_with)


def _check_columns(count: Any) -> None:
    if not isinstance(count, int) or not 0 < count <= _MOST_COLUMNS:
        raise SecurityError(f"a chat template may split into 1 to {_MOST_COLUMNS} parts")


class _Bounding(jinja2.visitor.NodeTransformer):
    """Writes into a template's tree what Jinja offers no hook for.

    The functions are the environment's own: a template cannot put others in their place.
    """

    def __init__(self, environment: Sandbox) -> None:
        self._environment = environment

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, self._placed(jinja2.nodes.ExprStmt(self._call("tick", [], node)), node))
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return self._call("concatenated", node.nodes, node)

    def visit_List(self, node: jinja2.nodes.List) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return self._sized(node, node.items)

    def visit_Tuple(self, node: jinja2.nodes.Tuple) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return node if node.ctx == "store" else self._sized(node, node.items)

    def visit_Dict(self, node: jinja2.nodes.Dict) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return self._sized(node, [pair.value for pair in node.items])

    def _sized(self, node: jinja2.nodes.Expr, items: list[jinja2.nodes.Expr]) -> jinja2.nodes.Expr:
        constant = all(isinstance(item, jinja2.nodes.Const) for item in items)
        return node if constant else self._call("sized", [node], node)

    def _call(self, name: str, arguments: list[Any], near: jinja2.nodes.Node) -> jinja2.nodes.Expr:
        own = jinja2.nodes.EnvironmentAttribute(name)
        call: jinja2.nodes.Expr = self._placed(jinja2.nodes.Call(own, arguments, [], None, None), near)
        return call

    def _placed(self, node: Any, near: jinja2.nodes.Node) -> Any:
        return node.set_lineno(near.lineno).set_environment(self._environment)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's words for training; here it is no more
    than its body."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
