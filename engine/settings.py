"""Settings of the engine: the one place in `engine` that reads the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from engine.errors import ConfigError
from engine.kv_cache import CacheFormat

COMMIT = re.compile(r"[0-9a-f]{7,64}")
MOST_ROWS = 8
"""How many requests share a launch at most."""
_REPOSITORY = Path(__file__).resolve().parents[1]


def home() -> Path:
    """Where everything that is made at run time lives.

    MONOLANE_HOME, else `var/` beside the code in a checkout, else `monolane/` in the user's data folder
    (XDG Base Directory Specification).
    """
    given = os.environ.get("MONOLANE_HOME", "")
    if given:
        return Path(given).expanduser().resolve()
    if _in_checkout():
        return _REPOSITORY / "var"
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "monolane"


def build_dir() -> Path:
    """Where compiled kernels lie: `kernels/build/` in a checkout, `build/` under home() elsewhere."""
    return _REPOSITORY / "kernels" / "build" if _in_checkout() else home() / "build"


def _in_checkout() -> bool:
    """An installed package lies among other packages, where nothing may be written."""
    return (_REPOSITORY / "manage.py").exists()


def models_dir() -> Path:
    """Where pulled checkpoints live. Not created here."""
    return home() / "models"


def weights_dir() -> Path:
    """Where decoded weights are kept for the next start. Not created here."""
    return home() / "weights"


def weights_cache_bytes() -> int:
    """How much decoded weights may take on disk: MONOLANE_WEIGHTS_CACHE_MIB, 0 for nothing.

    Raises ConfigError.
    """
    given = os.environ.get("MONOLANE_WEIGHTS_CACHE_MIB") or "8192"
    if not given.isdecimal():
        raise ConfigError(
            f"MONOLANE_WEIGHTS_CACHE_MIB is {given!r}; it must be a whole number of MiB, 0 to keep nothing"
        )
    return int(given) << 20


def hub_endpoint() -> str:
    """The server of models: HF_ENDPOINT, else the Hugging Face Hub. Raises ConfigError."""
    given = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    if not given.startswith(("https://", "http://")):
        raise ConfigError(f"HF_ENDPOINT is {given!r}; it must start with https:// or http://")
    return given


def hub_token() -> str:
    """What the server of models knows its user by: HF_TOKEN, "" if unset."""
    return os.environ.get("HF_TOKEN", "").strip()


def default_model() -> str:
    """The model that commands use when none is named: MONOLANE_MODEL."""
    return os.environ.get("MONOLANE_MODEL") or "smollm2-135m"


def more_models() -> list[str]:
    """What a worker serves beside the default model: MONOLANE_MODELS, separated by commas."""
    return [name.strip() for name in os.environ.get("MONOLANE_MODELS", "").split(",") if name.strip()]


def resident_bytes() -> int | None:
    """What the weights of a worker's models may take of memory together: MONOLANE_RESIDENT_MIB.

    None where it is not set. Raises ConfigError.
    """
    given = os.environ.get("MONOLANE_RESIDENT_MIB", "")
    if given and not given.isdecimal():
        raise ConfigError(f"MONOLANE_RESIDENT_MIB is {given!r}; it must be a whole number of MiB")
    return int(given) << 20 if given else None


def default_backend() -> str:
    """The backend that commands use when none is named: MONOLANE_BACKEND."""
    return os.environ.get("MONOLANE_BACKEND") or "auto"


def default_devices() -> int:
    """How many devices commands use when none are named: MONOLANE_DEVICES. Raises ConfigError."""
    given = os.environ.get("MONOLANE_DEVICES") or "1"
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(f"MONOLANE_DEVICES is {given!r}; it must be a whole number, at least 1")
    return int(given)


def rows() -> int:
    """How many requests a worker takes at once, where its backend can: MONOLANE_ROWS. Raises ConfigError."""
    given = os.environ.get("MONOLANE_ROWS") or "1"
    if not given.isdecimal() or not 1 <= int(given) <= MOST_ROWS:
        raise ConfigError(f"MONOLANE_ROWS is {given!r}; it must be a whole number from 1 to {MOST_ROWS}")
    return int(given)


def cache_format() -> CacheFormat | None:
    """How keys and values are kept: MONOLANE_CACHE, fp16 or fp8. None where it is not set.

    Raises ConfigError.
    """
    given = os.environ.get("MONOLANE_CACHE", "")
    if given and given not in tuple(CacheFormat):
        raise ConfigError(f"MONOLANE_CACHE is {given!r}; it must be {' or '.join(CacheFormat)}")
    return CacheFormat(given) if given else None


def fewer_devices() -> bool:
    """Whether a worker makes do with fewer devices: MONOLANE_FEWER_DEVICES, 0 or 1. Raises ConfigError."""
    return _switch("MONOLANE_FEWER_DEVICES")


def without_results() -> bool:
    """Whether the dashboard begins without the committed measurements: MONOLANE_WITHOUT_RESULTS, 0 or 1.

    Raises ConfigError.
    """
    return _switch("MONOLANE_WITHOUT_RESULTS")


def _switch(name: str) -> bool:
    given = os.environ.get(name) or "0"
    if given not in ("0", "1"):
        raise ConfigError(f"{name} is {given!r}; it must be 0 or 1")
    return given == "1"


def pinned() -> list[Path]:
    """Files whose text a worker keeps read for everybody: MONOLANE_PIN, separated as in PATH."""
    return [Path(name) for name in os.environ.get("MONOLANE_PIN", "").split(os.pathsep) if name]


def keeps_prefixes() -> bool:
    """Whether a worker goes on from kept prompts after a restart: MONOLANE_KEEP_PREFIXES, 0 or 1.

    Raises ConfigError.
    """
    return _switch("MONOLANE_KEEP_PREFIXES")


def prefixes_dir() -> Path:
    """Where a worker writes down whose prompts it has kept. Not created here."""
    return home() / "prefixes"


def git_sha() -> str:
    """The commit of this code as it is told, in place of a repository: MONOLANE_GIT_SHA, "" if unset.

    Raises ConfigError if it is no commit's name.
    """
    given = os.environ.get("MONOLANE_GIT_SHA", "")
    if given and not COMMIT.fullmatch(given):
        raise ConfigError(f"MONOLANE_GIT_SHA is {given!r}; a commit is 7 to 64 hexadecimal digits")
    return given


def redis_url() -> str:
    """The Redis server that workers and web processes share: REDIS_URL.

    Where none is named it is the embedded server of this installation, on a socket under home() that only
    its owner can open.
    """
    return os.environ.get("REDIS_URL") or f"unix://{home() / 'redis.sock'}"


def visible_gpus(ordinals: Sequence[int]) -> str:
    """CUDA_VISIBLE_DEVICES for a program that is to see only these of the GPUs that this process sees."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = given.split(",") if given else []
    return ",".join(names[n].strip() if names else str(n) for n in ordinals)


def child_environment(**changes: str) -> dict[str, str]:
    """This process's environment with `changes`, for a program that the engine starts."""
    return {**os.environ, **changes}
