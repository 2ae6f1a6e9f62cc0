"""The picture of a shared page for link previews: a road at night, drawn from the page's own figures.

1200 x 630 pixels, the size that link previews are made for. The fonts are the site's; what they cannot
spell (they hold Latin only) is drawn as a dot.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from django.contrib.staticfiles import finders
from django.core.exceptions import ImproperlyConfigured
from PIL import Image, ImageDraw, ImageFont

from playground.exhibit import Exhibit

SIZE = (1200, 630)
_EDGE = 64
_INK, _DIM, _ASPHALT, _KERB, _PAINT = "#eceef1", "#a5adb9", "#131519", "#242830", "#ffc531"
_CODE_LINES = 6
_CODE_COLUMNS = 66
_PALETTE = 64
"""Colours in the file: few enough for a small one, enough for smooth letters."""

_LOGO = ((6.5, 24.0), (6.5, 11.2), (7.1, 9.2), (8.9, 8.1), (10.9, 8.2), (12.4, 9.5), (16.0, 15.2),
         (19.6, 9.5), (21.1, 8.2), (23.1, 8.1), (24.9, 9.2), (25.5, 11.2), (25.5, 17.0))  # fmt: skip
"""The logo's stroke in the units of its 32 x 32 picture."""

Draw = ImageDraw.ImageDraw
Font = ImageFont.FreeTypeFont


def generation_card(prompt: str, lane: Exhibit) -> bytes:
    """A PNG: the prompt's first lines, the speed, the model and what it ran on."""
    image, draw = _blank()
    figures = lane.figures
    _brand(image, draw, f"{figures.tokens:,} tokens · first one after {_seconds(figures.ttft_ms)}")
    _code(draw, prompt, top=132)
    _lane_of_pace(draw, lane.pace, top=392, height=56)
    figure = _number(figures.tok_s)
    draw.text((_EDGE, 462), figure, font=_sans(96, 650), fill=_PAINT)
    width = draw.textlength(figure, font=_sans(96, 650))
    draw.text((_EDGE + width + 18, 512), "tok/s", font=_sans(36), fill=_DIM)
    _right(draw, 478, lane.name, _sans(34, 600), _INK)
    _right(draw, 526, lane.hardware, _sans(28), _DIM)
    return _png(image)


def race_card(prompt: str, lanes: Sequence[Exhibit]) -> bytes:
    """A PNG: the prompt's first line, and each lane as long as it took."""
    image, draw = _blank()
    _brand(image, draw, f"A race of {len(lanes)}")
    _code(draw, prompt, top=128, lines=2)
    longest = max(lane.figures.total_ms for lane in lanes) or 1.0
    pitch = 118
    top = 590 - pitch * len(lanes)
    for place, lane in enumerate(sorted(lanes, key=lambda one: one.figures.total_ms)):
        share = lane.figures.total_ms / longest
        _race_lane(draw, lane, share, top + place * pitch, first=place == 0)
    return _png(image)


def _race_lane(draw: Draw, lane: Exhibit, share: float, top: int, *, first: bool) -> None:
    draw.text((_EDGE, top), _spell(lane.name), font=_sans(30, 600), fill=_INK)
    told = f"{_number(lane.figures.tok_s)} tok/s · {_seconds(lane.figures.total_ms)}"
    _right(draw, top, told, _sans(30, 600 if first else 400), _PAINT if first else _INK)
    road = (_EDGE, top + 46, SIZE[0] - _EDGE, top + 74)
    draw.rectangle(road, fill=_KERB)
    end = road[0] + max(12, round((road[2] - road[0]) * share))
    fill = _PAINT if first else _DIM
    if lane.pacer:  # dashed, as the middle of a road: no engine drove there
        for x in range(road[0], end, 32):
            draw.rectangle((x, road[1] + 9, min(x + 18, end), road[3] - 9), fill=fill)
    else:
        draw.rectangle((road[0], road[1], end, road[3]), fill=fill)


def _blank() -> tuple[Image.Image, Draw]:
    image = Image.new("RGB", SIZE, _ASPHALT)
    return image, ImageDraw.Draw(image)


def _brand(image: Image.Image, draw: Draw, told: str) -> None:
    """The logo, the name, and a line at the right."""
    logo = _logo(60)
    image.paste(logo, (_EDGE - 9, 30), logo)
    draw.text((_EDGE + 60, 42), "Monolane", font=_sans(32, 600), fill=_INK)
    _right(draw, 46, told, _sans(28), _DIM)
    draw.line((0, 112, SIZE[0], 112), fill=_KERB, width=2)


def _logo(side: int) -> Image.Image:
    """static/img/logo.svg without its ground; drawn large and made small, for soft edges."""
    scale = side * 4 / 32
    large = Image.new("RGBA", (side * 4, side * 4))
    pen = ImageDraw.Draw(large)
    points = [(x * scale, y * scale) for x, y in _LOGO]
    pen.line(points, fill=_PAINT, width=round(3.4 * scale), joint="curve")
    for (x, y), radius in ((points[0], 1.7), (points[-1], 1.7), ((25.5 * scale, 23.6 * scale), 2.1)):
        reach = radius * scale
        pen.ellipse((x - reach, y - reach, x + reach, y + reach), fill=_PAINT)
    return large.resize((side, side), Image.Resampling.LANCZOS)


def _code(draw: Draw, text: str, *, top: int, lines: int = _CODE_LINES) -> None:
    """The first lines of `text`, the last one fading where there is more."""
    shown = [line for line in text.expandtabs(4).strip("\n").splitlines() if line.strip()] or [""]
    for number, line in enumerate(shown[:lines]):
        cut = line if len(line) <= _CODE_COLUMNS else line[: _CODE_COLUMNS - 1] + "…"
        last = number == lines - 1 and len(shown) > lines
        spot = (_EDGE, top + number * 41)
        draw.text(spot, _spell(cut), font=_mono(27), fill=_DIM if last else _INK)


def _lane_of_pace(draw: Draw, pace: Sequence[float], *, top: int, height: int) -> None:
    """tok/s over the decode as dashes, over a line that is the road."""
    draw.line((_EDGE, top + height, SIZE[0] - _EDGE, top + height), fill=_KERB, width=3)
    if not pace:
        return
    pitch = (SIZE[0] - 2 * _EDGE) / len(pace)
    width = max(2, math.floor(min(pitch, 14) * 0.72))
    peak = max(*pace, 1.0)
    for number, tok_s in enumerate(pace):
        x = _EDGE + round(number * min(pitch, 14))
        bar = max(2, round(tok_s / peak * (height - 4)))
        draw.rectangle((x, top + height - bar, x + width - 1, top + height), fill=_PAINT)


def _right(draw: Draw, top: int, text: str, font: Font, fill: str) -> None:
    """Text that ends at the right edge, cut where it would run into what stands at the left."""
    said = _spell(text)
    while draw.textlength(said, font=font) > 620:
        said = said[:-2].rstrip() + "…"
    draw.text((SIZE[0] - _EDGE - draw.textlength(said, font=font), top), said, font=font, fill=fill)


def _spell(text: str) -> str:
    """`text` with a dot for every character that the fonts do not have."""
    return "".join(one if one.isascii() or one in "×·–…" or "\xa1" <= one <= "\xff" else "·" for one in text)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _seconds(ms: float) -> str:
    if ms < 1000:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.2f} s" if ms < 60_000 else f"{ms / 60_000:.1f} min"


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.quantize(_PALETTE, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()


@cache
def _sans(size: int, weight: int = 400) -> Font:
    font = ImageFont.truetype(_font_file("plex-sans.woff2"), size)
    font.set_variation_by_axes([weight])
    return font


@cache
def _mono(size: int) -> Font:
    return ImageFont.truetype(_font_file("plex-mono.woff2"), size)


def _font_file(name: str) -> Path:
    """Raises ImproperlyConfigured if the front end has not been built."""
    found = finders.find(f"fonts/{name}")
    if not isinstance(found, str):
        raise ImproperlyConfigured(
            f"the font {name} is missing: build the front end (npm ci && npm run build)"
        )
    return Path(found)
