"""Runs a program and then its tests, inside the Python that the playground starts in the browser.

Tests are functions whose names begin with `test_`, such methods of classes whose names begin with `Test`,
the tests of `unittest.TestCase`s, and bare asserts; there is no pytest here. They see what the program
defines, in its own namespace and as the module `program`. Every outcome is reported as one line of JSON as
soon as it is known, so that a run that is cut short has told what came before:

    {"type": "program", "outcome": "passed" | "failed", "message", "traceback", "file", "line", "ms"}
    {"type": "test", "name", "outcome": "passed" | "failed" | "skipped", …}
    {"type": "test", "name", "outcome": "running", …} before each test

`message` and `traceback` are empty for what passed. `file` and `line` are the innermost place of the person's
own that failed; "" and 0 where there is none. Times are milliseconds of wall clock.
"""

from __future__ import annotations

import ast
import inspect
import io
import itertools
import json
import linecache
import reprlib
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NoReturn, TypeGuard

PROGRAM = "program.py"
TESTS = "tests.py"
LONGEST_MESSAGE = 1_000
LONGEST_TRACEBACK = 6_000
LONGEST_VALUE = 200

Report = Callable[[str], object]
Namespace = dict[str, object]
Test = Callable[[], object]


@dataclass(frozen=True)
class Outcome:
    """How one piece of code ended; `type` is "program" or "test"."""

    type: str
    name: str
    outcome: str = "passed"
    message: str = ""
    traceback: str = ""
    file: str = ""
    line: int = 0
    ms: float = 0.0


def run(program: str, tests: str, report: Report) -> None:
    """Runs both texts and reports each outcome; nothing that they raise comes out of here."""
    sys.stdin = _Nobody()
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = sys.modules["program"] = module
    for outcome in _outcomes(program, tests, vars(module)):
        sys.stdout.flush()
        sys.stderr.flush()
        report(json.dumps(asdict(outcome)))


def _outcomes(program: str, tests: str, names: Namespace) -> Iterator[Outcome]:
    of_program = _attempt(Outcome("program", PROGRAM), lambda: exec(_compile(program, PROGRAM), names))  # noqa: S102
    yield of_program
    if of_program.outcome == "failed" or not (tests.strip() or _collect(names)):
        return
    asserts = itertools.count()
    names |= {_SHORTENED: _shorten, _ASSERTED: lambda value: (next(asserts), value)[1]}
    of_tests = _attempt(Outcome("test", TESTS), lambda: exec(_compile(tests, TESTS), names))  # noqa: S102
    asserted = next(asserts) > 0
    found = _collect(names)
    # A file of tests alone has nothing to say by itself; one of bare asserts is a test of its own.
    if of_tests.outcome == "failed" or (asserted and not found):
        yield of_tests
    if of_tests.outcome == "passed":
        for name, test in found:
            yield Outcome("test", name, "running")
            yield _attempt(Outcome("test", name), test)


def _collect(names: Namespace) -> list[tuple[str, Test]]:
    """Every test by its name, in the order in which they are written."""
    found: list[tuple[str, Test]] = []
    for name, it in list(names.items()):
        if name.startswith("test_") and inspect.isfunction(it):
            found.append((name, it))
        elif inspect.isclass(it) and _is_test_case(it):
            found += _cases(it)
        elif inspect.isclass(it) and name.startswith("Test"):
            found += _methods(it)
    return found


def _is_test_case(it: type) -> bool:
    unittest = sys.modules.get("unittest")  # whoever has a TestCase has imported it
    return unittest is not None and issubclass(it, unittest.TestCase)


def _cases(kind: type[Any]) -> list[tuple[str, Test]]:
    """The tests of a TestCase, each in a suite of its own, which sets its class up too."""
    unittest = sys.modules["unittest"]
    loaded = unittest.defaultTestLoader.loadTestsFromTestCase(kind)
    return [(f"{kind.__name__}.{case._testMethodName}", unittest.TestSuite([case]).debug) for case in loaded]


def _methods(kind: type[Any]) -> list[tuple[str, Test]]:
    names = [name for name in dir(kind) if name.startswith("test_") and callable(getattr(kind, name))]
    order = {name: at for at, name in enumerate(vars(kind))}
    names.sort(key=lambda name: order.get(name, -1))
    return [(f"{kind.__name__}.{name}", partial(_call_method, kind, name)) for name in names]


def _call_method(kind: type[Any], name: str) -> object:
    """On an instance of its own, between the class's `setup_method` and `teardown_method`."""
    one = kind()
    for_setup, for_teardown = (getattr(one, f"{when}_method", None) for when in ("setup", "teardown"))
    method = getattr(one, name)
    if for_setup:
        for_setup(*[method][: len(inspect.signature(for_setup).parameters)])
    try:
        return method()
    finally:
        if for_teardown:
            for_teardown(*[method][: len(inspect.signature(for_teardown).parameters)])


def _attempt(blank: Outcome, action: Callable[[], object]) -> Outcome:
    began = time.perf_counter()
    failure: BaseException | None = None
    try:
        result = action()
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError("an async test is not run here: call asyncio.run in a plain one")
    except SystemExit as left:
        failure = None if left.code in (None, 0) else left
    except BaseException as error:
        if type(error).__name__ == "SkipTest":
            return replace(blank, outcome="skipped", message=str(error))
        failure = error
    ended = replace(blank, ms=(time.perf_counter() - began) * 1000)
    if failure is None:
        return ended
    file, line = _place(failure)
    message = _message(failure)
    return replace(
        ended, outcome="failed", message=message, traceback=_traceback(failure), file=file, line=line
    )


def _message(failure: BaseException) -> str:
    kind = type(failure).__name__
    try:
        said = failure.msg if _is_unreadable(failure) else str(failure)
    except Exception:
        said = "its text cannot be shown"
    if isinstance(failure, AssertionError) and said:
        return _leave_out_middle(said, LONGEST_MESSAGE)
    return _leave_out_middle(f"{kind}: {said}" if said else kind, LONGEST_MESSAGE)


def _is_unreadable(failure: BaseException) -> TypeGuard[SyntaxError]:
    """Whether one of the two files could not be read as Python."""
    return isinstance(failure, SyntaxError) and failure.filename in (PROGRAM, TESTS)


def _place(failure: BaseException) -> tuple[str, int]:
    if _is_unreadable(failure):
        return str(failure.filename), failure.lineno or 0
    frames = traceback.extract_tb(failure.__traceback__)
    own = [(frame.filename, frame.lineno or 0) for frame in frames if frame.filename in (PROGRAM, TESTS)]
    return own[-1] if own else ("", 0)


def _traceback(failure: BaseException) -> str:
    """The traceback with the frames of the person's two files only, and those of its causes."""
    told = traceback.TracebackException.from_exception(failure)
    for one in _chain(told):
        own = [frame for frame in one.stack if frame.filename in (PROGRAM, TESTS)]
        one.stack = traceback.StackSummary.from_list(own)
    return _leave_out_middle("".join(told.format()), LONGEST_TRACEBACK)


def _chain(told: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    yield told
    for cause in (told.__cause__, told.__context__, *(getattr(told, "exceptions", None) or ())):
        if cause is not None:
            yield from _chain(cause)


def _leave_out_middle(text: str, most: int) -> str:
    """Keeps the beginning and the end: where it came from, and what it was."""
    return text if len(text) <= most else f"{text[: most // 3]}\n[…]\n{text[-(most - most // 3) :]}"


def _compile(source: str, file: str) -> types.CodeType:
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    tree = ast.parse(source, file)
    if file == TESTS:
        tree = ast.fix_missing_locations(_TellingAsserts().visit(tree))
    return compile(tree, file, "exec")


class _TellingAsserts(ast.NodeTransformer):
    """Makes an assert without a message say what it compared: both sides are kept as they are evaluated.

    `assert f(1) == 2` becomes `assert (left := f(1)) == (right := 2), <a text with their values>`.
    """

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        if node.msg is not None:
            return ast.copy_location(ast.Assert(_count_assert(node.test), node.msg), node)
        test, told = node.test, list[ast.expr]()
        if isinstance(node.test, ast.Compare) and len(node.test.ops) == 1:
            sides = [node.test.left, node.test.comparators[0]]
            told = [
                part
                for i, side in enumerate(sides)
                if not _is_literal(side)
                for part in _describe_side(side, i)
            ]
            kept = [side if _is_literal(side) else _name_side(side, i) for i, side in enumerate(sides)]
            test = ast.Compare(kept[0], node.test.ops, [kept[1]])
        text = ast.JoinedStr([ast.Constant(f"assert {ast.unparse(node.test)}"), *told])
        return ast.copy_location(ast.Assert(_count_assert(test), text), node)


def _count_assert(test: ast.expr) -> ast.expr:
    """The same value; that there was an assert is noted."""
    return ast.Call(ast.Name(_ASSERTED, ast.Load()), [test], [])


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return False
    return True


def _name_side(side: ast.expr, i: int) -> ast.expr:
    return ast.NamedExpr(ast.Name(f"_side_{i}", ast.Store()), side)


def _describe_side(side: ast.expr, i: int) -> list[ast.expr]:
    value = ast.Call(ast.Name(_SHORTENED, ast.Load()), [ast.Name(f"_side_{i}", ast.Load())], [])
    return [ast.Constant(f"\n{ast.unparse(side)} is "), ast.FormattedValue(value, -1)]


_SHORTENED = "_monolane_shortened"
_ASSERTED = "_monolane_asserted"


def _shorten(value: object) -> str:
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = LONGEST_VALUE
    return short.repr(value)


class _Nobody(io.TextIOBase):
    """Standard input where nobody types."""

    def readable(self) -> bool:
        return True

    def read(self, _size: int | None = -1, /) -> NoReturn:
        raise EOFError("input() has nobody to ask here: write the value into the program or a test")

    def readline(self, size: int = -1, /) -> NoReturn:  # type: ignore[override]
        self.read(size)
