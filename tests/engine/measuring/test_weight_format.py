from __future__ import annotations

from engine.measuring.weight_format import weight_format
from engine.models.storage import Storage
from tests.engine.scripted import ScriptedBackend, tiny_model

MODEL = tiny_model()


class Keeping(ScriptedBackend):
    """Keeps matrices of MLPs in one way, the others in FP16."""

    mlp = Storage.Q4_1

    def storage(self, name: str) -> Storage | None:
        return self.mlp if ".w_" in name else Storage.F16


def test_weights_are_called_what_most_of_them_are_kept_as() -> None:
    assert weight_format(Keeping(MODEL.config), MODEL) == "q4_1"


def test_weights_in_16_bits_are_called_what_the_checkpoint_holds() -> None:
    backend = Keeping(MODEL.config)
    backend.mlp = Storage.F16
    assert weight_format(backend, MODEL) == MODEL.weights.native
