"""The results in words."""

from __future__ import annotations

from typing import Any


def report(results: dict[str, Any]) -> str:
    lines = []
    for name, speed in results["speed"].items():
        lines.append(
            f"{name:<9} {speed['client_tok_s']['median']:>9,.1f} tok/s at the client,"
            f" {speed['decode_tok_s']['median']:,.1f} by the worker ({speed['tokens']} tokens)"
        )
    for row in results["first_token"]:
        lines.append(
            f"first token of {row['prompt_tokens']:>5} tokens: cold {row['cold_ms']['median']:.1f} ms, warm"
            f" {row['warm_ms']['median']:.1f} ms ({row['cached_tokens']} kept); cold: "
            + ", ".join(f"{part} {ms:.1f}" for part, ms in row["cold_parts_ms"].items())
        )
        if "turn_ms" in row:
            lines.append(f"{'':<12} {row['turn_tokens']:>5} more tokens: {row['turn_ms']['median']:.1f} ms")
    lines.append(
        f"/v1/completions: {results['http']['overhead_ms']['median']:.1f} ms over prefill and decode"
    )
    recovery = results["recovery"]
    lines.append(
        f"silence after SIGKILL: {recovery['second_worker_s']:.2f} s with a second worker,"
        f" {recovery['restart_s']:.2f} s until a restart (median of {recovery['restarts_s']['n']})"
    )
    return "\n".join(lines)
