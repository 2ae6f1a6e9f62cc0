"""Times llama.cpp where it lives (.venv-peers), once for each line of standard input.

First argument: a GGUF file; second: threads. A line is a JSON object {"prompt": ids, "tokens": n}; the
answer is {"prefill_s", "decode_s", "decode_cpu_s"}: the prompt as one batch, then n - 1 greedy steps of one
token, by the clock and as the processor's time. Knows nothing of the engine that it is compared with.
"""

from __future__ import annotations

import json
import sys
import time

import llama_cpp
import numpy as np

CONTEXT = 2048


def main() -> int:
    model, threads = sys.argv[1], int(sys.argv[2])
    llama = llama_cpp.Llama(model, n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, verbose=False)
    about = {"version": llama_cpp.__version__, "system": llama_cpp.llama_print_system_info().decode().strip()}
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(_time(llama, request["prompt"], request["tokens"])), flush=True)
    return 0


def _time(llama: llama_cpp.Llama, prompt: list[int], tokens: int) -> dict[str, float]:
    llama.reset()
    start = time.perf_counter()
    llama.eval(prompt)
    token = _best(llama)
    first, cpu = time.perf_counter(), time.process_time()
    for _ in range(tokens - 1):
        llama.eval([token])
        token = _best(llama)
    return {
        "prefill_s": first - start,
        "decode_s": time.perf_counter() - first,
        "decode_cpu_s": time.process_time() - cpu,
    }


def _best(llama: llama_cpp.Llama) -> int:
    logits = llama_cpp.llama_get_logits_ith(llama.ctx, -1)
    return int(np.argmax(np.ctypeslib.as_array(logits, shape=(llama.n_vocab(),))))


if __name__ == "__main__":
    sys.exit(main())
