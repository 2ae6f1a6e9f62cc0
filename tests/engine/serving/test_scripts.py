from pathlib import Path

import pytest
import redis

from engine.serving import scripts

FILES = sorted(path.stem for path in Path(scripts.__file__).parent.glob("*.lua"))


@pytest.mark.parametrize("name", FILES)
def test_redis_compiles_every_script(name: str, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as connection:
        source = scripts.compose(Path(scripts.__file__).parent, name, {"GROUP": "workers"})
        assert connection.script_load(source)


def test_constants_come_first_and_includes_once(tmp_path: Path) -> None:
    (tmp_path / "one.lua").write_text("--#include two\n--#include three\nreturn three()\n")
    (tmp_path / "two.lua").write_text("--#include three\nlocal two = 2\n")
    (tmp_path / "three.lua").write_text("local function three() return NAME end\n")

    source = scripts.compose(tmp_path, "one", {"NAME": 'it\'s "so"', "ALL": ("a", "b"), "SCORE": 4e15})

    assert source == (
        'local NAME = "it\'s \\"so\\""\nlocal ALL = {"a", "b"}\nlocal SCORE = 4000000000000000.0\n'
        "local function three() return NAME end\nlocal two = 2\nreturn three()\n"
    )
