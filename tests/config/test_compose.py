"""What docker-compose.yml promises, checked without Docker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
LASTING = [name for name, service in SERVICES.items() if service["restart"] != "no"]


def test_the_whole_product_is_there():
    assert set(LASTING) == {"redis", "postgres", "web", "celery", "beat", "worker"}
    assert set(SERVICES) - set(LASTING) == {"migrate", "pull"}


@pytest.mark.parametrize("name", LASTING)
def test_every_service_that_lasts_is_checked_and_started_again(name):
    assert SERVICES[name]["restart"] == "unless-stopped"
    assert SERVICES[name]["healthcheck"]["test"]


@pytest.mark.parametrize("name", list(SERVICES))
def test_no_service_may_gain_privileges(name):
    assert SERVICES[name]["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in SERVICES[name]["security_opt"]
    assert not SERVICES[name].get("privileged")


@pytest.mark.parametrize("variable", ["SECRET_KEY", "POSTGRES_PASSWORD", "ALLOWED_HOSTS"])
def test_a_secret_is_demanded_never_assumed(variable):
    uses = re.findall(r"\$\{" + variable + r"\b([^}]*)\}", TEXT)
    assert uses
    assert all(use.startswith(":?") for use in uses)


def test_only_the_page_is_published_and_only_on_loopback():
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert list(published) == ["web"]
    assert all(port.startswith("127.0.0.1:") for port in published["web"])


def test_the_worker_reserves_gpus_and_keeps_its_name():
    worker = SERVICES["worker"]
    [device] = worker["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    name = worker["command"][worker["command"].index("--name") + 1]
    assert f"ml:worker:{name}" in worker["healthcheck"]["test"][-1]


def test_what_must_survive_lies_on_volumes():
    def mounted(service: str) -> str:
        return " ".join(SERVICES[service]["volumes"])

    assert "/var/lib/postgresql/data" in mounted("postgres")
    assert "/data" in mounted("redis")
    assert "/var/lib/monolane" in mounted("web")
    assert "/var/lib/monolane" in mounted("worker")


def test_every_built_image_is_a_target_of_the_dockerfile():
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.M))
    asked = {service["build"]["target"] for service in SERVICES.values() if "build" in service}
    assert asked == {"web", "worker"}
    assert asked <= targets


def test_everything_the_dockerfile_copies_from_the_tree_exists():
    for line in re.findall(r"^COPY (?!--from)(.*)$", (ROOT / "Dockerfile").read_text(), re.M):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source


def test_the_address_of_a_visitor_is_no_strangers_to_choose():
    # daphne's own option takes the first address of X-Forwarded-For, which anybody may write.
    assert "--proxy-headers" not in (ROOT / "Dockerfile").read_text()
    assert "172.16.0.0/12" in SERVICES["web"]["environment"]["TRUSTED_PROXIES"]
    assert SERVICES["web"]["environment"]["API_KEY_REQUIRED"].endswith(":-1}")
