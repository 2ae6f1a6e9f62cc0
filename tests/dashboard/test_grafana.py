"""The board in deploy/grafana.json asks for figures that are exported, with labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dashboard.models import Trigger
from dashboard.prometheus import exposition
from dashboard.sweeps import services
from tests.dashboard import factories

pytestmark = pytest.mark.django_db
BOARD = Path(__file__).resolve().parents[2] / "deploy/grafana.json"


def exported() -> dict[str, set[str]]:
    """The labels of each figure, by its name."""
    factories.stored()
    services.start_sweep(sweep=factories.sweep(), trigger=Trigger.SHELL)
    families = text_string_to_metric_families(exposition().decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def test_every_query_names_figures_and_labels_that_are_exported() -> None:
    known = exported()
    targets = [target for panel in json.loads(BOARD.read_text())["panels"] for target in panel["targets"]]
    assert len(targets) == 6
    for target in targets:
        (name,) = re.findall(r"monolane_\w+", target["expr"])
        asked = set(re.findall(r"(\w+)=~", target["expr"])) | set(
            re.findall(r"{{(\w+)}}", target["legendFormat"])
        )
        assert asked <= known[name], name
