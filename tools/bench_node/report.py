"""The tables of a run: speeds against what must be reached, and where a token's time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.cli.terminal import table
from engine.measuring.measurement import Measurement
from engine.sampling import SamplingParams
from tools.bench_exchange.command import report as exchange_report
from tools.bench_exchange.measure import ExchangeTime
from tools.bench_node.correctness import Check

MUST = {
    ("laneformer-2b", 2): 1650.0,
    ("laneformer-2b", 4): 2800.0,
    ("laneformer-2b", 8): 4000.0,
    ("laneformer-2b-plain", 4): 2100.0,
    ("laneformer-2b-plain", 8): 3000.0,
}
"""Tokens a second that this project set out to reach on so many H200, at a context of MUST_CONTEXT."""
MUST_CONTEXT, MUST_DEVICE = 256, "H200"


def report(
    measured: Sequence[Measurement],
    checks: Sequence[Check],
    exchanges: Sequence[ExchangeTime],
    not_run: Mapping[str, str],
) -> str:
    """All tables, the speeds last."""
    parts = []
    if checks:
        parts.append(_checks(checks))
    if exchanges:
        parts.append(exchange_report(exchanges))
    parts += [_phases(rows) for rows in _by_model(measured)]
    if not_run:
        parts.append("\n".join(["not run:", *(f"  {what}: {why}" for what, why in not_run.items())]))
    if measured:
        parts.append(_speeds(measured))
    return "\n\n".join(parts)


def floor(measured: Measurement) -> float | None:
    """Tokens a second if the devices did nothing but read a token's bytes as fast as they were seen to."""
    gbs = sum(device.measured_gbs for device in measured.devices)
    return gbs * 1e9 / measured.model.bytes_per_token.total if gbs else None


def wait_peer_share(measured: Measurement) -> float:
    """The share of a token that an SM waits for another device, on average; of the profiled run."""
    spent = sum(t.work + t.wait_local + t.wait_peer for t in measured.phases_us.values())
    return sum(t.wait_peer for t in measured.phases_us.values()) / spent if spent else 0.0


def must(measured: Measurement) -> float | None:
    there = all(MUST_DEVICE in device.name for device in measured.devices)
    greedy = measured.settings.sampling == SamplingParams()
    if not there or not greedy or measured.settings.context != MUST_CONTEXT:
        return None
    return MUST.get((measured.model.name, len(measured.devices)))


def _by_model(measured: Sequence[Measurement]) -> list[list[Measurement]]:
    """Rows of one model at one context, by number of devices."""

    def kind(m: Measurement) -> tuple[str, int, SamplingParams]:
        return m.model.name, m.settings.context, m.settings.sampling

    kinds = dict.fromkeys(map(kind, measured))
    found = [[m for m in measured if kind(m) == one] for one in kinds]
    return [sorted(rows, key=lambda m: len(m.devices)) for rows in found]


def _checks(checks: Sequence[Check]) -> str:
    rows = [[c.what, str(c.devices), "yes" if c.right else "NO", c.found] for c in checks]
    return table(["model", "devices", "right", "found"], rows)


def _phases(rows: Sequence[Measurement]) -> str:
    """Microseconds of a token by phase, each as work + wait here + wait for another device."""
    first = rows[0]
    names = [n for n, t in first.phases_us.items() if any(m.phases_us[n].work for m in rows) or t.work]
    cells = [[name, *(_times(m, name) for m in rows)] for name in names]
    cells.append(["wait for peers", *(f"{wait_peer_share(m):.2%}" for m in rows)])
    title = f"{first.model.name}, context {first.settings.context}: us a token, work + wait + wait for peers"
    return "\n".join([title, table(["phase", *(f"x{len(m.devices)}" for m in rows)], cells)])


def _times(m: Measurement, name: str) -> str:
    t = m.phases_us[name]
    return f"{t.work:.1f} + {t.wait_local:.1f} + {t.wait_peer:.1f}"


def _speeds(measured: Sequence[Measurement]) -> str:
    rows = [_speed(m) for rows in _by_model(measured) for m in rows]
    header = [
        "model", "devices", "delay", "context", "tokens", "tok/s", "95 %", "must", "floor", "MBU read",
        "MBU stated", "wait peer", "prefill tok/s", "TTFT ms", "right",
    ]  # fmt: skip
    return table(header, rows)


def _speed(m: Measurement) -> list[str]:
    wanted, limit = must(m), floor(m)
    low, high = m.decode.ci95
    drawn = "" if m.settings.sampling == SamplingParams() else ", drawn"
    return [
        m.model.name + drawn,
        str(len(m.devices)),
        str(m.settings.delay),
        str(m.settings.context),
        str(m.settings.tokens),
        f"{m.decode.median:,.0f}",
        f"{low:,.0f} to {high:,.0f}",
        "-" if wanted is None else f"{wanted:,.0f}",
        "-" if limit is None else f"{limit:,.0f}",
        "-" if m.mbu.measured is None else f"{m.mbu.measured:.1%}",
        "-" if m.mbu.datasheet is None else f"{m.mbu.datasheet:.1%}",
        f"{wait_peer_share(m):.2%}",
        f"{m.prefill.tok_s:,.0f}",
        f"{m.ttft_ms.p50:.2f}",
        "yes" if m.verified.passed else "NO",
    ]
