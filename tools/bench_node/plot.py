"""Speed against the number of devices as an SVG: ours, the floor, and what others published."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.measuring.measurement import Measurement
from engine.measuring.roofline import PUBLISHED
from tools.bench_node.report import floor

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 440, 70, 56, 34, 200
LINE = 16
WHOLE, SLICED, LIMIT, OTHERS, INK, FAINT = "#0f766e", "#7c3aed", "#6b7280", "#b45309", "#1f2937", "#e5e7eb"


class Plot:
    """Places in the picture: devices to the right, tokens a second upwards."""

    def __init__(self, most_devices: int, most_tok_s: float) -> None:
        self._devices, self._tok_s = most_devices, most_tok_s
        self.parts: list[str] = []
        self._names: list[tuple[float, float, str, str]] = []

    def x(self, devices: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (devices - 0.5) / (self._devices - 0.5 + 0.25)

    def y(self, tok_s: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * tok_s / self._tok_s

    def text(self, x: float, y: float, words: str, colour: str = INK, anchor: str = "start") -> None:
        at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
        self.parts.append(f"<text {at}>{words}</text>")

    def line(self, points: Sequence[tuple[float, float]], colour: str, dashes: str = "") -> None:
        places = " ".join(f"{self.x(g):.1f},{self.y(s):.1f}" for g, s in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.parts.append(
            f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>'
        )

    def dot(self, devices: float, tok_s: float, colour: str) -> None:
        at = f'cx="{self.x(devices):.1f}" cy="{self.y(tok_s):.1f}"'
        self.parts.append(f'<circle {at} r="4" fill="{colour}"/>')

    def diamond(self, devices: float, tok_s: float, colour: str) -> None:
        x, y = self.x(devices), self.y(tok_s)
        corners = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in ((0, -6), (6, 0), (0, 6), (-6, 0)))
        self.parts.append(f'<polygon points="{corners}" fill="{colour}"/>')

    def axes(self, counts: Sequence[int]) -> None:
        step = tick_step(self._tok_s)
        for tok_s in range(0, int(self._tok_s) + 1, step):
            y = self.y(tok_s)
            self.parts.append(
                f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>'
            )
            self.text(LEFT - 8, y + 4, f"{tok_s:,}", LIMIT, "end")
        for count in counts:
            self.text(self.x(count), HEIGHT - BOTTOM + 20, str(count), LIMIT, "middle")

    def name(self, devices: float, tok_s: float, words: str, colour: str) -> None:
        """Words beside a point; those that would lie on each other are moved apart."""
        self._names.append((self.x(devices) + 12, self.y(tok_s) + 4, words, colour))

    def _place_names(self) -> None:
        lowest: dict[float, float] = {}
        for x, y, words, colour in sorted(self._names):
            lowest[x] = max(y, lowest.get(x, 0.0) + LINE)
            self.text(x, lowest[x], words, colour)
        self._names.clear()

    def svg(self, title: str, below: str) -> str:
        self._place_names()
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
            f' font-size="13" role="img" aria-label="{title}">'
        )
        ground = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
        heading = f'<text x="{LEFT}" y="20" fill="{INK}">{title}</text>'
        middle = (LEFT + WIDTH - RIGHT) / 2
        foot = f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle" fill="{LIMIT}">{below}</text>'
        return "\n".join([head, ground, heading, foot, *self.parts, "</svg>", ""])


def tick_step(most: float) -> int:
    """The largest of 1, 2, 5, 10, 20, 50 ... that divides 0 to `most` into four parts or more; at least 1."""
    power = 10 ** max(0, math.floor(math.log10(max(most, 1) / 4)))
    return max((step * power for step in (1, 2, 5) if most / (step * power) >= 4), default=1)


def draw(measured: Sequence[Measurement], base: str) -> str:
    """Of model `base` and its plain shape, at the shortest context. Raises ValueError if there is none."""
    context = min((m.settings.context for m in measured if m.model.name == base), default=None)
    if context is None:
        raise ValueError(f"no measurement of {base} to draw")
    series = {name: _series(measured, name, context) for name in (base, f"{base}-plain")}
    limits = [(len(m.devices), limit) for m in series[base] if (limit := floor(m)) is not None]
    hardware = series[base][0].devices[0].name
    published = [p for p in PUBLISHED if p.model == base]
    speeds = [s for _, s in limits] + [m.decode.ci95[1] for rows in series.values() for m in rows]
    counts = sorted(
        {len(m.devices) for rows in series.values() for m in rows} | {p.devices for p in published}
    )
    plot = Plot(counts[-1], 1.08 * max([*speeds, *(p.tok_s for p in published)]))
    plot.axes(counts)
    plot.line(limits, LIMIT, "5 4")
    if limits:
        plot.name(*limits[-1], f"memory alone: {limits[-1][1]:,.0f}", LIMIT)
    for rows, colour in zip(series.values(), (WHOLE, SLICED), strict=True):
        _draw_series(plot, rows, colour)
    for row in published:
        plot.diamond(row.devices, row.tok_s, OTHERS)
        plot.name(row.devices, row.tok_s, f"{row.who}, {row.hardware}: {row.tok_s:,.0f}", OTHERS)
    title = f"Tokens a second of one request, {base} in FP16, context {context}"
    return plot.svg(
        title, f"{hardware}, number of devices; diamonds are published by others, not measured here"
    )


def _series(measured: Sequence[Measurement], name: str, context: int) -> list[Measurement]:
    rows = [m for m in measured if m.model.name == name and m.settings.context == context]
    return sorted(rows, key=lambda m: len(m.devices))


def _draw_series(plot: Plot, rows: Sequence[Measurement], colour: str) -> None:
    if not rows:
        return
    points = [(len(m.devices), m.decode.median) for m in rows]
    plot.line(points, colour)
    for devices, tok_s in points:
        plot.dot(devices, tok_s, colour)
    how = "lanes, delayed" if rows[-1].settings.lanes > 1 else "plain, slices"
    plot.name(*points[-1], f"{how}: {points[-1][1]:,.0f}", colour)
