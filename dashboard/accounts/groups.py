"""Three groups of rights, each with those of the one before: view, run, manage.

Made once, when the database is; an administrator who changes one, or deletes its permissions, has the last
word.
"""

from __future__ import annotations

from django.contrib.auth.models import Group, Permission
from django.db import DEFAULT_DB_ALIAS

VIEW = (
    "view_sweep",
    "view_sweeprun",
    "view_measurement",
    "view_configuration",
    "view_regression",
    "view_auditentry",
)
RUN = ("can_run_sweep", "can_handle_regression")
MANAGE = ("add_sweep", "change_sweep", "delete_sweep", "delete_sweeprun", "change_configuration")
GROUPS = {
    "Benchmarks: view": VIEW,
    "Benchmarks: run": VIEW + RUN,
    "Benchmarks: manage": VIEW + RUN + MANAGE,
}


def ensure(*, using: str = DEFAULT_DB_ALIAS) -> None:
    """Makes the groups that are missing; those that exist stay as they are."""
    known = set(Group.objects.using(using).filter(name__in=GROUPS).values_list("name", flat=True))
    for name, codenames in GROUPS.items():
        if name in known:
            continue
        group = Group.objects.using(using).create(name=name)
        group.permissions.set(
            Permission.objects.using(using).filter(
                content_type__app_label="dashboard", codename__in=codenames
            )
        )
