"""Compares greedy decoding with llama.cpp on the same GGUF file.

    python -m tools.check_peers [--model smollm2-135m] [--out FILE]

The reference (FP32) continues each prompt greedily; llama.cpp is given the same tokens, one at a time, and
says at each what it would have chosen. Giving it our tokens keeps both on one sequence, so that a near tie
early on does not hide everything after it. llama.cpp keeps the file's 4-bit weights and quantises activations
to 8 bits, which moves logits a little: it may choose otherwise only where our two largest logits lie within
0.5 of each other. Anything else is a disagreement, and so is another cut of the prompt into tokens.

Exits 1 on a disagreement, 2 if the comparison cannot be made. The result is written with its environment to
benchmarks/checks/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import CheckpointError, EngineError
from engine.measuring.bandwidth import usable_cores
from engine.measuring.environment import capture
from engine.models.catalogue import Model, open_model
from engine.models.tokenizer import Tokenizer
from engine.reference import Reference
from tools.peers import make_peers
from tools.setup import ROOT, SetupError

PROMPTS = (
    "def fibonacci(n):",
    "The capital of France is",
    "import numpy as np\n\n\ndef softmax(x):\n",
    "Once upon a time, in a village by the sea, there lived",
    "<|im_start|>user\nWhat is a mutex?<|im_end|>\n<|im_start|>assistant\n",
    "SELECT name, COUNT(*) FROM orders",
    "#include <stdio.h>\n\nint main(void) {\n",
    "The three laws of thermodynamics are:",
)
NEW_TOKENS = 48
PEER_TIMEOUT_S = 600.0
NEAR_TIE = 0.5
"""Logits: how close our two largest must be for llama.cpp to be allowed another choice."""

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Sequence:
    """A prompt and our greedy continuation, with the logits that chose it, [len(continuation), vocab]."""

    text: str
    prompt: list[int]
    continuation: list[int]
    logits: Array


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt's outcome. `margins` are our gaps between the two largest logits where the peer differs."""

    prompt: str
    tokens_alike: bool
    tokens: int
    equal: int
    near_ties: int
    disagreements: int
    margins: tuple[float, ...]
    logit_rms_difference: float
    logit_max_difference: float

    @property
    def agrees(self) -> bool:
        return self.tokens_alike and self.disagreements == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compares greedy decoding with llama.cpp on the same GGUF file."
    )
    parser.add_argument(
        "--model", default="smollm2-135m", help="a preset that is a GGUF file, or such a file"
    )
    parser.add_argument("--out", type=Path, help="where to write the result (benchmarks/checks/ by default)")
    arguments = parser.parse_args()
    try:
        model = open_model(arguments.model)
        result = check(model)
    except (EngineError, SetupError) as error:
        print(f"check_peers: {error}", file=sys.stderr)
        return 2
    print_table(result["prompts"])
    out = arguments.out or ROOT / "benchmarks" / "checks" / f"llama_cpp-{model.config.name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{'agrees' if result['agrees'] else 'DISAGREES'}; written to {out}")
    return 0 if result["agrees"] else 1


def check(model: Model) -> dict[str, Any]:
    """Runs the comparison; the result as JSON values. Raises CheckpointError if the model is no GGUF file."""
    if model.tokenizer is None or not model.source.endswith(".gguf"):
        raise CheckpointError(f"{model.config.name} is not a GGUF file: llama.cpp cannot read it")
    reference = Reference(model.weights)
    ours = [greedy(reference, model.tokenizer, text) for text in PROMPTS]
    peer, theirs = ask_llama_cpp(model.source, ours)
    compared = [
        compare(sequence, logits, tokens)
        for sequence, logits, tokens in zip(ours, theirs, peer.pop("tokens"), strict=True)
    ]
    return {
        "check": "greedy decoding against llama.cpp on the same file, our tokens given to both",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": {"name": model.config.name, "digest": model.digest},
        "peer": {"name": "llama.cpp", **peer},
        "rule": {"new_tokens": NEW_TOKENS, "near_tie": NEAR_TIE},
        "agrees": all(c.agrees for c in compared),
        "prompts": [asdict(c) for c in compared],
        "environment": capture(model=model),
    }


def greedy(reference: Reference, tokenizer: Tokenizer, text: str) -> Sequence:
    prompt = tokenizer.encode(text, special=True)
    cache = reference.new_cache(len(prompt) + NEW_TOKENS)
    rows = [reference.forward(prompt, cache, scored_from=len(prompt) - 1)[0]]
    continuation = [int(np.argmax(rows[-1]))]
    while len(continuation) < NEW_TOKENS:
        rows.append(reference.forward(continuation[-1:], cache)[0])
        continuation.append(int(np.argmax(rows[-1])))
    return Sequence(text, prompt, continuation, np.stack(rows))


def ask_llama_cpp(model_file: str, sequences: list[Sequence]) -> tuple[dict[str, Any], Array]:
    """What llama.cpp says of itself, and its logits, [sequences, tokens, vocab]."""
    python = make_peers()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "logits.npy"
        request = {
            "model": model_file,
            "threads": usable_cores(),
            "sequences": [
                {"text": s.text, "prompt": s.prompt, "continuation": s.continuation} for s in sequences
            ],
            "out": str(out),
        }
        try:
            done = subprocess.run(
                [python, ROOT / "tools" / "peer_llama_cpp.py"],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                timeout=PEER_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CheckpointError(
                f"llama.cpp has not ended within {PEER_TIMEOUT_S:g} s: see what else this machine does"
            ) from error
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise CheckpointError(f"llama.cpp could not run {model_file}: {reason}")
        return json.loads(done.stdout), np.load(out)


def compare(ours: Sequence, theirs: Array, their_tokens: list[int]) -> Comparison:
    """Where llama.cpp would have chosen another token, and how close a call it was for us."""
    differs = np.argmax(theirs, axis=1) != np.array(ours.continuation)
    two_best = np.partition(ours.logits, -2, axis=1)[:, -2:]
    margins = (two_best[:, 1] - two_best[:, 0])[differs]
    near_ties = int(np.count_nonzero(margins <= NEAR_TIE))
    difference = np.abs(ours.logits - theirs)
    return Comparison(
        prompt=ours.text,
        tokens_alike=their_tokens == ours.prompt,
        tokens=len(ours.continuation),
        equal=int(np.count_nonzero(~differs)),
        near_ties=near_ties,
        disagreements=len(margins) - near_ties,
        margins=tuple(round(float(m), 4) for m in margins),
        logit_rms_difference=round(float(np.sqrt(np.mean(difference.astype(np.float64) ** 2))), 4),
        logit_max_difference=round(float(difference.max()), 4),
    )


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'prompt':<28} {'cut':>5} {'equal':>6} {'ties':>5} {'wrong':>6} {'rms':>7} {'max':>7}")
    for row in rows:
        name = row["prompt"].replace("\n", " ")[:27]
        cut = "same" if row["tokens_alike"] else "OTHER"
        print(
            f"{name:<28} {cut:>5} {row['equal']:>6} {row['near_ties']:>5} {row['disagreements']:>6}"
            f" {row['logit_rms_difference']:>7.3f} {row['logit_max_difference']:>7.3f}"
        )


if __name__ == "__main__":
    sys.exit(main())
