"""How long the dashboard's pages take when it holds 100,000 measurements.

    DATABASE_URL=sqlite:////tmp/many.sqlite3 python -m tools.measure_dashboard fill [--measurements 100000]
    DATABASE_URL=sqlite:////tmp/many.sqlite3 python -m tools.measure_dashboard pages [--repeats 40]

`fill` writes made-up measurements into an empty database and refuses any other. `pages` asks each page
through Django's own handler (everything but the network) and prints the median, the 95th percentile and the
number of queries; it fails if a page's p95 is MUST_MS or more.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.measurement import Measurement as Result

if TYPE_CHECKING:
    from dashboard.models import Configuration

MUST_MS = 300.0
BATCH = 500
FIRST_DAY = datetime(2025, 1, 1, tzinfo=UTC)
HARDWARE = ("made-up device A", "made-up device B", "2 x made-up device A", "made-up CPU")
MODELS = ("made-up-2b", "made-up-1b", "made-up-135m")
CONTEXTS = (32, 128, 256, 1024, 4096)


def fill(count: int) -> None:
    from django.core.management import call_command

    from dashboard.models import Configuration, Measurement

    call_command("migrate", verbosity=0)
    if Measurement.objects.exists():
        raise SystemExit("measure_dashboard: the database holds measurements; give it an empty one")
    keys = [(h, m, c) for h in HARDWARE for m in MODELS for c in CONTEXTS]
    configurations = Configuration.objects.bulk_create(
        Configuration(
            model=m, backend="made-up", hardware=h, devices=1, parallelism="none", context=c, tokens=64,
            sampling="greedy",
        )
        for h, m, c in keys
    )  # fmt: skip
    each = -(-count // len(configurations))
    for number, configuration in enumerate(configurations):
        _fill_one(configuration, min(each, count - number * each), np.random.default_rng(number))
        print(f"\r{min(count, (number + 1) * each):,} of {count:,}", end="", flush=True)
    print()


def _fill_one(configuration: Configuration, count: int, rng: np.random.Generator) -> None:
    from dashboard.models import Measurement, Spread

    rows = list(_rows(configuration, count, rng))
    for at in range(0, len(rows), BATCH):
        stored = Measurement.objects.bulk_create([row for row, _ in rows[at : at + BATCH]])
        Spread.objects.bulk_create(
            Spread(measurement=row, **spread)
            for row, (_, spread) in zip(stored, rows[at : at + BATCH], strict=True)
        )


def _rows(
    configuration: Configuration, count: int, rng: np.random.Generator
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A history with two steps and noise of half a percent; three runs a commit."""
    from dashboard.ingest import columns_of
    from dashboard.models import Measurement

    base = 200.0 + 20.0 * (configuration.pk % 40)
    for index in range(count):
        level = base * (1.0 + 0.08 * (index > count // 3) - 0.05 * (index > 2 * count // 3))
        speed = float(level * rng.normal(1.0, 0.005))
        created = FIRST_DAY + timedelta(hours=6 * index, minutes=configuration.pk)
        commit = hashlib.sha256(f"{index // 3}".encode()).hexdigest()[:40]
        document = _document(configuration, speed, created, commit, rng)
        columns = columns_of(Result.from_dict(document))
        digest = hashlib.sha256(f"{configuration.pk} {index}".encode()).hexdigest()
        spread = {
            "ttft_low": columns["ttft_ms"] * 0.99, "ttft_high": columns["ttft_ms"] * 1.02, "ttft_n": 5,
            "prefill_low": 990.0, "prefill_high": 1010.0,
            "itl_p50_low": columns["itl_p50"] * 0.995, "itl_p50_high": columns["itl_p50"] * 1.005,
            "itl_n": 315,
        }  # fmt: skip
        yield (
            Measurement(
                configuration=configuration, digest=digest, source="made up", document=document, **columns
            ),
            spread,
        )


def _document(
    configuration: Configuration, speed: float, created: datetime, sha: str, rng: np.random.Generator
) -> dict[str, Any]:
    gaps = np.round(rng.gamma(400.0, 1e6 / speed / 400.0, (5, 63)), 2)
    samples = [round(float(s), 3) for s in speed * rng.normal(1.0, 0.004, 5)]
    middle = float(np.median(samples))
    phases = ("qkv", "attention", "attn_out", "gate_up", "down", "head")
    ttft = float(rng.normal(12.0, 0.2))
    return {
        "schema": 1, "created": created.isoformat(), "git_sha": sha,
        "model": {
            "name": configuration.model, "params": 10**9,
            "bytes_per_token": {"weights": 2 * 10**9, "kv": 10**7},
        },
        "backend": configuration.backend,
        "devices": [{"name": configuration.hardware, "datasheet_gbs": 4800.0, "measured_gbs": 4500.0}],
        "settings": {"context": configuration.context, "tokens": 64, "repeats": 5},
        "decode": {
            "tok_s": {"median": middle, "ci95": [min(samples), max(samples)], "samples": samples},
            "itl_us": {
                "p50": float(np.median(gaps)), "p90": float(np.quantile(gaps, 0.9)), "p99": None, "n": 315
            },
        },
        "prefill": {"tok_s": 1000.0, "tokens": configuration.context},
        "ttft_ms": {"p50": ttft, "n": 5},
        "mbu": {"datasheet": 0.4, "measured": 0.45},
        "phases_us": {p: {"work": 1e5 / speed, "wait_local": 2e4 / speed, "wait_peer": 0.0} for p in phases},
        "verified": {"against": "nothing: made up", "tokens_equal": True, "logit_rel_err": None},
        "environment": {"python": "3.11", "gpus": [{"name": configuration.hardware, "driver": "1"}]},
        "samples": {"ttft_ms": [ttft] * 5, "prefill_tok_s": [1000.0] * 5, "itl_us": gaps.tolist()},
    }  # fmt: skip


def pages(repeats: int) -> int:
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    client = Client(HTTP_HOST="localhost")
    slow = 0
    print(f"{connection.vendor}, {_count():,} measurements, {repeats} times each")
    for name, address in _addresses().items():
        with CaptureQueriesContext(connection) as captured:
            size = _ask(client, address)[1]
        times = sorted(_ask(client, address)[0] for _ in range(repeats))
        p95 = times[min(repeats - 1, int(0.95 * repeats))]
        slow += p95 >= MUST_MS
        verdict = "" if p95 < MUST_MS else "  TOO SLOW"
        print(
            f"{name:<34} p50 {times[repeats // 2]:6.1f} ms  p95 {p95:6.1f} ms  {len(captured):3d} queries"
            f"  {size / 1000:7.1f} kB{verdict}"
        )
    return int(slow > 0)


def _ask(client: Any, address: str) -> tuple[float, int]:
    start = time.perf_counter()
    response = client.get(address)
    body = len(response.content)
    took = (time.perf_counter() - start) * 1000.0
    if response.status_code != 200:
        raise SystemExit(f"measure_dashboard: {address} answered {response.status_code}")
    return took, body


def _count() -> int:
    from dashboard.models import Measurement

    return Measurement.objects.count()


def _addresses() -> dict[str, str]:
    from dashboard.models import Configuration, Measurement

    chosen = "&".join(f"configuration={pk}" for pk in Configuration.objects.values_list("pk", flat=True)[:6])
    keys = list(Measurement.objects.order_by("pk").values_list("pk", flat=True)[:6])
    last = Measurement.objects.order_by("-pk").values_list("pk", flat=True)[0]
    return {
        "overview": "/dashboard/",
        "overview, one model": f"/dashboard/?model={MODELS[0]}",
        "runs": "/dashboard/runs/",
        "runs, filtered": f"/dashboard/runs/?model={MODELS[1]}&context=256&sort=-tok_s",
        "runs, last page": "/dashboard/runs/?page=2000",
        "one run": f"/dashboard/runs/{last}/",
        "history, nothing chosen": "/dashboard/history/",
        "history, six configurations": f"/dashboard/history/?{chosen}",
        "history, six, MBU": f"/dashboard/history/?{chosen}&metric=mbu_measured",
        "history, six, TTFT by commit": f"/dashboard/history/?{chosen}&metric=ttft_ms&axis=commit",
        "compare six runs": "/dashboard/compare/?" + "&".join(f"run={key}" for key in keys),
        "sweeps": "/dashboard/sweeps/",
        "roofline": "/dashboard/roofline/",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="The dashboard's pages with 100,000 measurements.")
    parser.add_argument("what", choices=("fill", "pages"))
    parser.add_argument("--measurements", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=40)
    arguments = parser.parse_args()
    if not os.environ.get("DATABASE_URL"):
        raise SystemExit("measure_dashboard: set DATABASE_URL to a database made for this")
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    if arguments.what == "pages":
        return pages(arguments.repeats)
    fill(arguments.measurements)
    return 0


if __name__ == "__main__":
    sys.exit(main())
