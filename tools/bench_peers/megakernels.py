"""The driver of Megakernels (Hazy Research): its own model, schedule and generator, random BF16 weights.

    python -m tools.bench_peers.megakernels SHAPE --repository FOLDER --module FOLDER --work FOLDER

What is timed is what its generate.py times: `MK_Generator.generate`, a step being the embedding, one launch
of the megakernel and the choice of the token, here by the host's clock between two synchronisations. Before
it is timed the megakernel's logits are compared with those of its own PyTorch model after the same tokens.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tools.bench_peers.peer import Facts, Shape, serve

_LEAST_COSINE = 0.98
"""Of logits: BF16 alone costs about 0.5 %."""
_CONTEXT = 16384
"""Positions that its cache holds, as in its generate.py."""
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def write_checkpoint(folder: Path, shape: Shape) -> None:
    """A Hugging Face folder with random weights, norms of one."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "hidden_size": shape.hidden, "intermediate_size": shape.ffn, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "vocab_size": shape.vocab, "tie_word_embeddings": shape.tied_head, "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.theta, "rope_scaling": _LLAMA3, "max_position_embeddings": 131072,
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    h, q, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = {"model.embed_tokens": (shape.vocab, h), "model.norm": (h,)}
    for i in range(shape.layers):
        layer = f"model.layers.{i}."
        sizes |= {
            layer + "self_attn.q_proj": (q, h), layer + "self_attn.k_proj": (kv, h),
            layer + "self_attn.v_proj": (kv, h), layer + "self_attn.o_proj": (h, q),
            layer + "mlp.gate_proj": (shape.ffn, h), layer + "mlp.up_proj": (shape.ffn, h),
            layer + "mlp.down_proj": (h, shape.ffn), layer + "input_layernorm": (h,),
            layer + "post_attention_layernorm": (h,),
        }  # fmt: skip
    made = torch.Generator("cuda").manual_seed(0)

    def tensor(size: tuple[int, ...]) -> torch.Tensor:
        if len(size) == 1:
            return torch.ones(size, dtype=torch.bfloat16)
        empty = torch.empty(size, dtype=torch.bfloat16, device="cuda")
        return empty.normal_(0.0, 0.02, generator=made).cpu()

    tensors = {f"{name}.weight": tensor(size) for name, size in sizes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


class Megakernel:
    """Its generator after a prompt of `context` tokens."""

    def __init__(self, shape: Shape, module: Path, folder: Path) -> None:
        # Imported here, as they come from the repository on sys.path.
        from megakernels.demos.latency.mk import LatencyMK_Interpreter  # type: ignore[import-not-found]
        from megakernels.demos.latency.scheduler import (  # type: ignore[import-not-found]
            LatencyScheduleBuilder,
        )
        from megakernels.generators import MK_Generator  # type: ignore[import-not-found]
        from megakernels.llama import LlamaForCausalLM  # type: ignore[import-not-found]
        from megakernels.model_types import BatchState, ExtraModelConfig  # type: ignore[import-not-found]
        from megakernels.scheduler import (  # type: ignore[import-not-found]
            assign_to_sms,
            tensorize_instructions,
        )

        self._shape, self._state = shape, BatchState
        extra = ExtraModelConfig(interleave_rope=True, max_len_override=_CONTEXT, max_batch_size=1)
        self._model = LlamaForCausalLM.from_pretrained(
            str(folder), device="cuda:0", extra_config=extra, dtype=torch.bfloat16
        )
        drawn = torch.Generator().manual_seed(1)
        self._prompt = torch.randint(0, shape.vocab, (1, shape.context), generator=drawn).to("cuda:0")
        self._tokens = torch.zeros(1, shape.tokens, device="cuda:0", dtype=torch.long)
        self._tokens[:, 0] = self._prefill()
        self._schedule = LatencyScheduleBuilder.build(self._model)
        tensorize_instructions(self._schedule.globs, assign_to_sms("rr", schedule=self._schedule))
        self._generator = MK_Generator(self._model, LatencyMK_Interpreter(module), self._schedule)

    def _prefill(self) -> Any:
        positions = torch.arange(self._shape.context, device="cuda:0")
        return self._model(self._state(input_ids=self._prompt, position_ids=positions)).output_ids[:, -1]

    def cosine(self) -> float:
        """Between the logits of one megakernel step and of the PyTorch model after the same tokens."""
        context, globs = self._shape.context, self._schedule.globs
        token = self._tokens[:, :1]
        position = torch.tensor([[context]], device="cuda:0")
        hidden = self._model.model(
            self._state(input_ids=token, position_ids=position, seq_len=context + 1)
        ).hidden_states
        head = self._model.lm_head
        expected = head.lm_head(head.input_norm(hidden)).view(-1).float()
        self._generator.run(token, pos_id=context)
        return float(torch.cosine_similarity(expected, globs.logits.view(-1).float(), dim=0))

    def speeds(self, repeats: int) -> list[float]:
        steps = self._shape.tokens - 1
        found = []
        with torch.inference_mode():
            for _ in range(repeats):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                self._generator.generate(self._tokens, self._shape.context, steps)
                torch.cuda.synchronize()
                found.append(steps / (time.perf_counter() - begin))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", type=lambda text: Shape(**json.loads(text)))
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--module", type=Path, required=True, help="the folder that mk_llama was built in")
    parser.add_argument("--work", type=Path, required=True)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU here")
    ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)  # the module calls it without linking it
    sys.path.insert(0, str(args.repository))
    folder = args.work / f"megakernels-{args.shape.model}"
    with torch.inference_mode():
        write_checkpoint(folder, args.shape)
        engine = Megakernel(args.shape, args.module, folder)
        cosine = engine.cosine()
    if not cosine >= _LEAST_COSINE:
        raise SystemExit(f"its logits have a cosine of {cosine:.4f} with those of its own PyTorch model")
    engine.speeds(5)
    more = {
        "dtype": "bfloat16",
        "tokens": args.shape.tokens - 1,
        "check": f"cosine {cosine:.4f} of logits with its own PyTorch model",
        "timed": "host's clock around MK_Generator.generate",
    }
    serve(Facts("Megakernels (BF16)", torch.cuda.get_device_name(), more), engine.speeds)


if __name__ == "__main__":
    main()
