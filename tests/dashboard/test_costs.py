"""However much is stored, a page asks the database the same number of questions."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboard import demo_data
from dashboard.models import Configuration
from tools.measure_dashboard import addresses

pytestmark = pytest.mark.django_db
MOST = 14


def questions(client: Client) -> dict[str, int]:
    """The number of queries of each page, by its name."""
    found = {}
    for name, address in addresses().items():
        with CaptureQueriesContext(connection) as captured:
            assert client.get(address, headers={"Accept-Encoding": "gzip"}).status_code == 200, name
        found[name] = len(captured)
    return found


@pytest.mark.slow
def test_no_page_asks_more_questions_of_a_larger_database(client: Client) -> None:
    client.force_login(User.objects.create_superuser("boss"))
    list(demo_data.fill(120))
    few = questions(client)
    for configuration in Configuration.objects.all():
        demo_data.add_history(configuration, 5, first=2)
    demo_data.add_sweeps(30)
    many = questions(client)
    assert many == few
    assert max(many.values()) <= MOST
