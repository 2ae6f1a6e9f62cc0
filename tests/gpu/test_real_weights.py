"""SmolLM2-135M, the file that users run, on the GPU: its text is the FP32 reference's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.backends.base import Job
from engine.backends.cuda.backend import CudaBackend
from engine.errors import CheckpointError
from engine.measuring.verification import verify
from engine.models.catalogue import Model, open_model

PROMPTS = (
    "def fibonacci(n):",
    "The capital of France is",
    "import numpy as np\n\n\ndef softmax(x):\n",
    "SELECT name, COUNT(*) FROM orders",
    "#include <stdio.h>\n\nint main(void) {\n",
)
NEW_TOKENS = 48
LOGIT_ERROR = 5e-3


@pytest.fixture(scope="module")
def model() -> Model:
    try:
        return open_model("smollm2-135m")
    except CheckpointError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def backend(model: Model) -> Iterator[CudaBackend]:
    opened = CudaBackend(model, {})
    yield opened
    opened.close()


@pytest.mark.parametrize("text", PROMPTS)
def test_greedy_tokens_are_those_of_the_reference(model: Model, backend: CudaBackend, text: str) -> None:
    assert model.tokenizer is not None
    prompt = model.tokenizer.encode(text)
    launch = backend.launch(Job(tuple(prompt), NEW_TOKENS))
    ids: list[int] = []
    while launch.outcome is None:
        ids += [token.id for token in launch.poll(1.0)]
    ids += [token.id for token in launch.poll(0)]
    launch.close()
    assert len(ids) == NEW_TOKENS
    verified = verify(backend, model, prompt, ids)
    print(f"{text!r}: {verified}")
    assert verified.against == "reference (NumPy, FP32)"
    assert verified.passed
    assert verified.logit_rel_err is not None and verified.logit_rel_err < LOGIT_ERROR
