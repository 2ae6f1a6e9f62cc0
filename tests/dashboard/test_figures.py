"""How figures are written."""

from __future__ import annotations

import pytest

from dashboard.templatetags import figures


@pytest.mark.parametrize(
    ("filter_", "value", "text"),
    [
        ("speed", 3144.75, "3,145"),
        ("speed", 165.44, "165.4"),
        ("speed", 26.8312, "26.83"),
        ("percent", 0.877, "87.7 %"),
        ("percent", None, "unknown"),
        ("change", -0.0312, "−3.1 %"),
        ("change", 0.05, "+5.0 %"),
        ("micros", None, "n too small"),
        ("micros", 12.34, "12.3 µs"),
        ("micros", 412.6, "413 µs"),
        ("micros", 1234.0, "1.23 ms"),
        ("micros", 48_512.0, "48.5 ms"),
        ("millis", 0.513, "0.51 ms"),
        ("millis", 3776.2, "3,776 ms"),
        ("millis", 12_345.0, "12.3 s"),
        ("plain_us", -1787.9, "−1,788"),
        ("gbs", 0.0, "unknown"),
        ("gbs", 4350.0, "4,350.0 GB/s"),
        ("params", 2_320_069_632, "2.32 B"),
        ("params", 134_515_008, "134.5 M"),
        ("params", 999, "999"),
        ("megabytes", 269_030_000, "269.03 MB"),
        ("duration", None, "unknown"),
        ("duration", 27.4, "27 s"),
        ("duration", 600, "10 min"),
        ("duration", 9000, "2.5 h"),
        ("commit", "0123456789abcdef", "012345678"),
        ("commit", "0123456789abcdef-dirty", "012345678-dirty"),
        ("commit", "", "unknown"),
    ],
)
def test_figure_is_written_for_a_reader(filter_: str, value: object, text: str) -> None:
    assert getattr(figures, filter_)(value).replace("\N{NO-BREAK SPACE}", " ") == text
