"""Rows that no command makes: a finished sweep with a failed point, an account. Run by `manage.py shell`."""

from django.contrib.auth.models import Group, User

from dashboard.models import Sweep, SweepRun, Trigger
from dashboard.sweeps import lifecycle, services

user = User.objects.create_user("ada", password="a password of ada's")
user.groups.add(Group.objects.get(name="Benchmarks: run"))
MATRIX = {"model": ["random:tiny-llama"], "backend": ["numpy"], "context": [16], "tokens": [8]}
sweep = Sweep.objects.create(name="made-up", matrix={**MATRIX, "context": [1 << 20]}, repeats=5)
Sweep.objects.create(name="tiny", matrix=MATRIX, repeats=5, description="ends in seconds")
run = services.start_sweep(sweep=sweep, trigger=Trigger.SHELL)
lifecycle.begin_run(run_id=run.pk)
point = lifecycle.next_point(run_id=run.pk)
assert point is not None
lifecycle.fail_point(point=point, code="bad_request", message="A made-up failure.", worker="w")
lifecycle.finish_run(run_id=run.pk)
SweepRun.objects.filter(pk=run.pk).update(who=user)
