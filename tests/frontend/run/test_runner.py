"""The runner that the browser's Python is given, run here by this one."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SOURCES = Path(__file__).resolve().parents[3] / "static/src/run"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SOURCES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made  # dataclasses look their module up
    spec.loader.exec_module(made)
    return made


runner = module("runner")


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    """The runner lives in an interpreter of its own: it puts its program in `__main__`'s place."""
    kept = sys.modules["__main__"], sys.stdin
    yield
    sys.modules["__main__"], sys.stdin = kept
    sys.modules.pop("program", None)


def outcomes(program: str, tests: str = "") -> list[dict[str, Any]]:
    lines: list[str] = []
    runner.run(program, tests, lines.append)
    told = [json.loads(line) for line in lines]
    return [one for one in told if one["outcome"] != "running"]


def names(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["name"], one["outcome"]) for one in found]


def test_tests_see_the_program_by_name_and_as_a_module() -> None:
    found = outcomes(
        "def add(a, b):\n    return a + b\n",
        "from program import add as same\n"
        "def test_name():\n    assert add(1, 2) == 3\n"
        "def test_module():\n    assert same is add\n",
    )
    assert names(found) == [("program.py", "passed"), ("test_name", "passed"), ("test_module", "passed")]


def test_each_test_is_told_apart_and_a_failure_does_not_end_the_rest() -> None:
    found = outcomes("", "def test_a():\n    raise ValueError('a')\ndef test_b():\n    pass\n")
    assert names(found) == [("program.py", "passed"), ("test_a", "failed"), ("test_b", "passed")]
    assert found[1]["message"] == "ValueError: a"


def test_an_assert_says_what_it_compared_but_not_what_is_written_there() -> None:
    program = "def add(a, b):\n    return a - b\ndef two():\n    return 2\n"
    [_, one, other] = outcomes(
        program, "def test_a():\n    assert add(1, 2) == 3\ndef test_b():\n    assert add(1, 2) > two()\n"
    )
    assert one["message"] == "assert add(1, 2) == 3\nadd(1, 2) is -1"
    assert other["message"] == "assert add(1, 2) > two()\nadd(1, 2) is -1\ntwo() is 2"


def test_an_assert_evaluates_each_side_once_and_keeps_its_own_message() -> None:
    found = outcomes(
        "calls = []\ndef f():\n    calls.append(1)\n    return len(calls)\n",
        "def test_once():\n    assert f() == 1\n    assert f() == 2, 'other'\n"
        "    assert len(calls) == 3, 'mine'\n",
    )
    assert found[1]["message"] == "mine"


def test_bare_asserts_are_one_test_by_the_name_of_their_file() -> None:
    assert names(outcomes("x = 1\n", "assert x == 1\n")) == [("program.py", "passed"), ("tests.py", "passed")]
    assert names(outcomes("x = 1\n", "assert x == 2\n")) == [("program.py", "passed"), ("tests.py", "failed")]


def test_test_functions_of_the_program_itself_run_too() -> None:
    assert names(outcomes("def test_own():\n    assert 1 == 1\n"))[1:] == [("test_own", "passed")]


def test_tests_of_a_program_that_failed_are_not_run() -> None:
    assert names(outcomes("1 / 0\n", "def test_a():\n    pass\n")) == [("program.py", "failed")]


@pytest.mark.parametrize(
    ("program", "tests", "file", "line"),
    [
        ("x = 1\n\ndef f():\n    return y\n\nf()\n", "", "program.py", 4),
        ("x = 1\ny = (\n", "", "program.py", 2),
        ("import json\njson.loads('{')\n", "", "program.py", 2),
        ("def f(a):\n    return 1 / a\n", "def test_f():\n    assert f(1)\n    f(0)\n", "program.py", 2),
        ("x = 1\n", "\ndef test_x():\n    y = 2\n    assert x == y\n", "tests.py", 4),
        ("def f(a, b):\n    pass\nf(1, 2)\nint('x')\n", "", "program.py", 4),
    ],
)
def test_a_failure_names_the_line_of_the_person_s_own_that_failed(
    program: str, tests: str, file: str, line: int
) -> None:
    failed = outcomes(program, tests)[-1]
    assert (failed["file"], failed["line"]) == (file, line)


def test_a_traceback_shows_the_person_s_own_lines_only() -> None:
    [failed] = outcomes("import json\n\ndef read(text):\n    return json.loads(text)\n\nread('{')\n")
    lines = failed["traceback"].splitlines()
    assert [line.strip() for line in lines if line.startswith("  File")] == [
        'File "program.py", line 6, in <module>',
        'File "program.py", line 4, in read',
    ]
    assert any("return json.loads(text)" in line for line in lines)
    assert lines[-1].startswith("json.decoder.JSONDecodeError")


def test_the_cause_of_an_error_is_shown_the_same_way() -> None:
    program = "import json\ntry:\n    json.loads('{')\nexcept ValueError as e:\n    raise KeyError from e\n"
    trace = outcomes(program)[0]["traceback"]
    assert "direct cause" in trace
    assert "decoder.py" not in trace


def test_a_syntax_error_points_at_its_place() -> None:
    [failed] = outcomes("def f(:\n    pass\n")
    assert 'File "program.py", line 1' in failed["traceback"]
    assert "^" in failed["traceback"]


def test_leaving_with_zero_is_no_failure_and_lets_the_tests_run() -> None:
    left = "import sys\ndef f():\n    return 1\nsys.exit({})\n"
    assert names(outcomes(left.format(0), "def test_f():\n    assert f() == 1\n")) == [
        ("program.py", "passed"),
        ("test_f", "passed"),
    ]
    assert outcomes(left.format(3))[0]["message"] == "SystemExit: 3"


def test_main_is_run_as_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes("if __name__ == '__main__':\n    print('ran')\n")
    assert capsys.readouterr().out == "ran\n"


@pytest.mark.parametrize(
    "ask", ["input('name? ')", "import sys; sys.stdin.read()", "import sys; sys.stdin.readline()"]
)
def test_asking_for_input_is_refused_in_a_sentence(ask: str) -> None:
    assert outcomes(ask)[0]["message"] == (
        "EOFError: input() has nobody to ask here: write the value into the program or a test"
    )


def test_an_async_test_is_refused_rather_than_passed_unrun() -> None:
    found = outcomes("", "async def test_a():\n    assert False\n")
    assert found[1]["outcome"] == "failed"
    assert "asyncio.run" in found[1]["message"]


def test_an_error_whose_text_fails_is_still_told() -> None:
    [failed] = outcomes(
        "class Bad(Exception):\n    def __str__(self):\n        raise ValueError\nraise Bad\n"
    )
    assert failed["message"] == "Bad: its text cannot be shown"


def test_what_is_told_has_a_limit() -> None:
    [_, failed] = outcomes("def f():\n    return 'x' * 10**6\n", "def test_f():\n    assert f() == ''\n")
    assert len(failed["message"]) <= runner.LONGEST_MESSAGE
    [endless] = outcomes("raise ValueError('y' * 10**6)\n")
    assert len(endless["message"]) <= runner.LONGEST_MESSAGE + 10
    assert len(endless["traceback"]) <= runner.LONGEST_TRACEBACK + 10


def test_a_loop_without_sockets_keeps_the_order_of_times_and_names_a_deadlock() -> None:
    loops = module("blocking_loop")

    done: list[int] = []

    async def late(n: int) -> None:
        await asyncio.sleep(n / 100)
        done.append(n)

    async def both() -> None:
        await asyncio.gather(late(2), late(1))

    with asyncio.Runner(loop_factory=loops.BlockingLoop) as at:
        at.run(both())
    assert done == [1, 2]

    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    with (
        pytest.raises(RuntimeError, match="none can go on"),
        asyncio.Runner(loop_factory=loops.BlockingLoop) as at,
    ):
        at.run(never())


def test_methods_of_test_classes_are_tests() -> None:
    found = outcomes(
        "def add(a, b):\n    return a - b\n",
        "class TestAdd:\n"
        "    def setup_method(self):\n        self.two = 2\n"
        "    def test_zero(self):\n        assert add(0, 0) == 0\n"
        "    def test_add(self):\n        assert add(1, self.two) == 3\n",
    )
    assert names(found)[1:] == [("TestAdd.test_zero", "passed"), ("TestAdd.test_add", "failed")]
    assert "add(1, self.two) is -1" in found[2]["message"]


def test_the_tests_of_a_test_case_run_without_main() -> None:
    found = outcomes(
        "def add(a, b):\n    return a - b\n",
        "import unittest\n"
        "class AddTest(unittest.TestCase):\n"
        "    def setUp(self):\n        self.two = 2\n"
        "    def test_add(self):\n        self.assertEqual(add(1, self.two), 3)\n"
        "    @unittest.skip('later')\n"
        "    def test_more(self):\n        self.fail()\n",
    )
    assert names(found)[1:] == [("AddTest.test_add", "failed"), ("AddTest.test_more", "skipped")]
    assert "-1 != 3" in found[1]["message"]


def test_where_nothing_was_collected_and_nothing_asserted_no_test_is_reported() -> None:
    assert names(outcomes("x = 1\n", "def check_x():\n    assert x == 2\n")) == [("program.py", "passed")]


def test_bare_asserts_are_a_test_of_their_own() -> None:
    assert names(outcomes("x = 1\n", "assert x == 1, 'one'\n"))[1:] == [("tests.py", "passed")]


def test_a_test_is_named_before_it_runs() -> None:
    lines: list[str] = []
    runner.run("x = 1\n", "def test_a():\n    assert x\n", lines.append)
    assert [json.loads(line)["outcome"] for line in lines] == ["passed", "running", "passed"]
