"""Runs llama.cpp where it lives (.venv-peers): the logits of given sequences, one token at a time.

Reads one JSON object from standard input: {"model": a GGUF file, "threads": n, "out": an .npy file,
"sequences": [{"text", "prompt": ids, "continuation": ids}]}, the continuations all of one length. Writes
the logits that would choose each token of each continuation, [sequences, tokens, vocab]; the
continuation is given, not chosen. Prints a JSON object: what it is and how it cuts each text into tokens.
Knows nothing of the engine that it is compared with.
"""

from __future__ import annotations

import json
import sys

import llama_cpp
import numpy as np


def main() -> int:
    request = json.load(sys.stdin)
    sequences = request["sequences"]
    llama = llama_cpp.Llama(
        request["model"],
        n_ctx=max(len(s["prompt"]) + len(s["continuation"]) for s in sequences) + 1,
        n_threads=request["threads"],
        n_threads_batch=request["threads"],
        verbose=False,
    )
    np.save(request["out"], np.stack([_force(llama, s["prompt"], s["continuation"]) for s in sequences]))
    about = {
        "version": llama_cpp.__version__,
        "system": llama_cpp.llama_print_system_info().decode().strip(),
        "tokens": [llama.tokenize(s["text"].encode(), add_bos=False, special=True) for s in sequences],
    }
    print(json.dumps(about))
    return 0


def _force(llama: llama_cpp.Llama, prompt: list[int], continuation: list[int]) -> np.ndarray:
    """Logits before each token of the continuation: the prompt as a batch, then as in decoding."""
    llama.reset()
    rows = []
    for step in [prompt, *([token] for token in continuation[:-1])]:
        llama.eval(step)
        row = llama_cpp.llama_get_logits_ith(llama.ctx, -1)
        rows.append(np.ctypeslib.as_array(row, shape=(llama.n_vocab(),)).copy())
    return np.stack(rows)


if __name__ == "__main__":
    sys.exit(main())
