"""The default of what a peer measures, where 0018 was applied before it had one.

To Django nothing changes: the state after 0018 has the default. The table is altered all the same, which
leaves one that has it as it is.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations
from django.db.models import NOT_PROVIDED


def set_default(apps: Any, schema_editor: Any) -> None:
    peer = apps.get_model("dashboard", "Peer")
    wanted = peer._meta.get_field("measures")
    without = wanted.clone()
    without.db_default = NOT_PROVIDED
    without.set_attributes_from_name(wanted.name)
    without.model = peer
    schema_editor.alter_field(peer, without, wanted)


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0018_peers_may_measure_prompts")]
    operations = [migrations.RunPython(set_default, migrations.RunPython.noop)]
