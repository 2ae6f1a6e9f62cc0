"""How long the dashboard's pages take when it holds 100,000 measurements.

    DATABASE_URL=sqlite:///var/many.sqlite3 python -m tools.measure_dashboard fill [--measurements 100000]
    DATABASE_URL=sqlite:///var/many.sqlite3 python -m tools.measure_dashboard pages [--repeats 100]

`fill` writes made-up measurements into an empty database and refuses any other. `pages` asks each page
through Django's own handler (everything but the network), signed in as somebody who may see all of it, made
for this and removed after; it refuses a database that `fill` did not write. It prints the median, the 95th
percentile and the number of queries, and fails if a page's p95 is MUST_MS or more.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from typing import TYPE_CHECKING, Any

from engine.measuring.statistics import median, quantile, samples_needed

if TYPE_CHECKING:
    from django.test import Client

MUST_MS = 300.0


def fill(count: int) -> None:
    from django.core.management import CommandError, call_command

    call_command("migrate", verbosity=0)
    try:
        call_command("seed_demo", measurements=count)
    except CommandError as error:
        raise SystemExit(f"measure_dashboard: {error}") from error


def pages(repeats: int) -> int:
    from django.test import Client

    refuse_what_is_not_made_up()
    client = Client(HTTP_HOST="localhost", HTTP_ACCEPT_ENCODING="gzip")
    operator = _operator()
    try:
        client.force_login(operator)
        return _time_pages(client, repeats)
    finally:
        client.logout()
        operator.delete()


def refuse_what_is_not_made_up() -> None:
    """Raises SystemExit unless the database holds what `fill` writes, and no other measurement."""
    from django.db import DatabaseError

    from dashboard.demo_data import HARDWARE
    from dashboard.models import Configuration, Measurement, Trace

    try:
        real = Configuration.objects.exclude(hardware__in=HARDWARE).exists()
        if not real and Measurement.objects.exists() and Trace.objects.exists():
            return
    except DatabaseError as error:
        raise SystemExit(
            f"measure_dashboard: the database cannot be read ({error}); `fill` it first"
        ) from error
    what = "measurements that were not made up" if real else "no made-up measurements"
    raise SystemExit(f"measure_dashboard: the database holds {what}; `fill` an empty one and name that")


def _time_pages(client: Client, repeats: int) -> int:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    slow = 0
    print(f"{connection.vendor}, {_count():,} measurements, {repeats} times each")
    for name, address in addresses().items():
        with CaptureQueriesContext(connection) as captured:
            size = _ask(client, address)[1]
        queries = len(captured)
        times = [_ask(client, address)[0] for _ in range(repeats)]
        p95 = quantile(times, 0.95) or 0.0  # the parser asks for enough repeats
        slow += p95 >= MUST_MS
        verdict = "" if p95 < MUST_MS else "  TOO SLOW"
        print(
            f"{name:<34} p50 {median(times):6.1f} ms  p95 {p95:6.1f} ms  {queries:3d} queries"
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


def _operator() -> Any:
    from django.contrib.auth.models import User

    return User.objects.create_superuser(f"measure-{secrets.token_hex(8)}")


def addresses() -> dict[str, str]:
    """Every page, and the answers that read most, by what they are called."""
    from dashboard.models import Configuration, Measurement, Regression, SweepRun, Trace

    configurations = list(Configuration.objects.values_list("pk", flat=True)[:6])
    some = "&".join(f"configuration={pk}" for pk in configurations)
    runs = "&".join(f"run={pk}" for pk in Measurement.objects.order_by("pk").values_list("pk", flat=True)[:6])
    last = Trace.objects.select_related("measurement__configuration").latest("pk").measurement
    return {
        "overview": "/dashboard/",
        "overview, one model": f"/dashboard/?model={last.configuration.model}",
        "runs": "/dashboard/runs/",
        "runs, filtered and sorted": "/dashboard/runs/?model=made-up-1b&context=256&sort=-tok_s",
        "runs, last page": "/dashboard/runs/?page=100000",
        "failed points": "/dashboard/runs/?failed=1",
        "one run": last.get_absolute_url(),
        "its trace": f"/dashboard/runs/{last.pk}/trace.json",
        "history, nothing chosen": "/dashboard/history/",
        "history, six configurations": f"/dashboard/history/?{some}",
        "history, six, MBU": f"/dashboard/history/?{some}&metric=mbu_measured",
        "history, six, TTFT by commit": f"/dashboard/history/?{some}&metric=ttft_ms&axis=commit",
        "compare six runs": f"/dashboard/compare/?{runs}",
        "regressions": "/dashboard/regressions/",
        "regressions, every standing": "/dashboard/regressions/?show=all",
        "regressions, closed": "/dashboard/regressions/?show=closed",
        "one regression": Regression.objects.latest("pk").get_absolute_url(),
        "roofline": "/dashboard/roofline/",
        "sweeps": "/dashboard/sweeps/",
        "run of a sweep": SweepRun.objects.latest("pk").get_absolute_url(),
        "audit log": "/dashboard/audit/",
        "audit log, one person": "/dashboard/audit/?by=made-up",
        "API: runs": "/api/runs?limit=200",
        "API: a series": f"/api/series?configuration={configurations[0]}&limit=2000",
        "API: a comparison": f"/api/comparisons?{runs}",
        "API: configurations": "/api/configurations",
        "badge": f"/api/badge.svg?configuration={configurations[0]}",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="The dashboard's pages with 100,000 measurements.")
    parser.add_argument(
        "what",
        choices=("fill", "pages"),
        help="fill the empty database of DATABASE_URL, or time the pages of one that was filled",
    )
    parser.add_argument(
        "--measurements",
        type=int,
        default=100_000,
        metavar="N",
        help="how many `fill` makes up (default: %(default)s)",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=100,
        metavar="N",
        help="how often `pages` asks for each (default: %(default)s)",
    )
    arguments = parser.parse_args()
    if arguments.repeats < samples_needed(0.95):
        parser.error(
            f"--repeats is {arguments.repeats}; a 95th percentile needs {samples_needed(0.95)} or more"
        )
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
