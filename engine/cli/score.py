"""`score`: how likely a model finds a text, token by token."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Any

from engine.cli.options import Commands, UsageError, add_model_flags, backend_of, command, model_of, read_text
from engine.cli.terminal import ProgressBar, print_json, table
from engine.measuring.scoring import log_likelihoods
from engine.models.prompt import Prompt

WINDOW = 512
"""Default tokens in one pass: what its logits take in memory is window x vocabulary x 4 bytes."""


@dataclass(frozen=True)
class Score:
    """Natural logarithms. `log_likelihoods` has one entry a scored token, the first token has none."""

    name: str
    tokens: tuple[int, ...]
    log_likelihoods: tuple[float, ...]
    text_bytes: int

    @property
    def total(self) -> float:
        return math.fsum(self.log_likelihoods)

    @property
    def perplexity(self) -> float:
        return math.exp(-self.total / len(self.log_likelihoods))

    @property
    def bits_per_byte(self) -> float:
        return -self.total / math.log(2.0) / self.text_bytes

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": self.name,
            "tokens": len(self.tokens),
            "scored": len(self.log_likelihoods),
            "log_likelihood": self.total,
            "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte,
            "ids": list(self.tokens),
            "log_likelihoods": list(self.log_likelihoods),
        }


def add(commands: Commands) -> None:
    parser = command(
        commands, "score", "log-likelihood and perplexity of text files, token by token with --json", run
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="UTF-8 text; - is standard input")
    parser.add_argument(
        "--window", type=int, default=None, metavar="N",
        help=f"tokens that one pass sees (default: {WINDOW}, or the model's context if that is less)",
    )  # fmt: skip
    parser.add_argument(
        "--stride", type=int, default=None, metavar="N",
        help="new tokens in each pass; the rest of the window is their context (default: half the window)",
    )  # fmt: skip
    add_model_flags(parser)


def run(args: argparse.Namespace) -> int:
    texts = [(name, read_text(name)) for name in args.files]
    model = model_of(args)
    if model.tokenizer is None:
        raise UsageError(f"{args.model} has no tokenizer, so it cannot read text; score a model that has one")
    window, stride = _window(args, model.config.context)
    scores = []
    with backend_of(args, model) as backend, ProgressBar("score") as bar:
        for name, text in texts:
            tokens = model.tokenizer.encode_prompt(Prompt(text=text))
            if len(tokens) < 2:
                raise UsageError(f"{name} has {len(tokens)} tokens; a score takes at least 2")
            bar.label = name
            found = log_likelihoods(backend, tokens, window, stride, bar)
            scores.append(Score(name, tuple(tokens), tuple(found), len(text.encode())))
    if args.json:
        print_json([score.to_dict() for score in scores])
        return 0
    rows = [
        [s.name, str(len(s.tokens)), f"{s.total:.3f}", f"{s.perplexity:.4f}", f"{s.bits_per_byte:.4f}"]
        for s in scores
    ]
    print(table(["file", "tokens", "log-likelihood", "perplexity", "bits a byte"], rows))
    return 0


def _window(args: argparse.Namespace, context: int) -> tuple[int, int]:
    window = min(WINDOW, context) if args.window is None else args.window
    if not 2 <= window <= context:
        raise UsageError(f"--window is {window}; this model takes 2 to {context}")
    stride = max(1, window // 2) if args.stride is None else args.stride
    if not 1 <= stride < window:
        raise UsageError(f"--stride is {stride}; it must be 1 to {window - 1}, less than the window")
    return window, stride
