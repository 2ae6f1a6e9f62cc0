"""Whether a model's weights fit into this machine's memory, before anything is loaded.

Linux hands out more memory than there is: who fills it is ended without a word.
"""

from __future__ import annotations

from functools import partial

from engine.errors import DoesNotFit
from engine.measuring.roofline import weight_bytes
from engine.models.config import ModelConfig
from engine.models.storage import Storage
from engine.processor import allowed_memory_bytes, available_memory_bytes

_SMALLER = {
    Storage.F16: "the backend cpu",
    Storage.Q8_0: "a GGUF file in Q8_0 on cpu",
    Storage.Q4_K: "a GGUF file in Q4_K_M on cpu",
}
"""Ways to hold most models, the largest first."""


def require_memory(config: ModelConfig, need: int, backend: str) -> None:
    """Raises DoesNotFit if the weights take `need` bytes and this process may not take so many now."""
    whole, free = allowed_memory_bytes(), available_memory_bytes()
    if whole is None or free is None or need <= free:
        return
    raise DoesNotFit(
        f"{config.name} takes {need / 1e9:.1f} GB of weights on {backend}, and of {whole / 1e9:.1f} GB of"
        f" memory {free / 1e9:.1f} GB are free: {_remedy(config, need, whole)}",
        even_alone=need > whole,
    )


def _remedy(config: ModelConfig, need: int, whole: int) -> str:
    if need <= whole:
        return "end what has taken the rest"
    for storage, what in _SMALLER.items():
        size = weight_bytes(config, partial(_always, storage))
        if size < min(need, whole):
            return f"{what} would fit (about {size / 1e9:.1f} GB)"
    return f"it takes a machine with {need / 1e9:.0f} GB or more"


def _always(storage: Storage, _name: str) -> Storage:
    return storage
