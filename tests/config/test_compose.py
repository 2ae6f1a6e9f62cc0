"""What docker-compose.yml promises, checked without Docker."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
LASTING = [name for name, service in SERVICES.items() if service["restart"] != "no"]
APPS = ("migrate", "web", "web-2", "celery", "beat")
LEFT_OUT = {
    "DEBUG": "never in production",
    "STATIC_ROOT": "in the image: what collectstatic made there",
    "LOG_JSON": "in the image",
    "READY_FILE": "beat's own, inside its container",
    "MONOLANE_HOME": "in the image: where the volumes are mounted",
    "MONOLANE_GIT_SHA": "in the image, from its build argument",
    "CUDA_VISIBLE_DEVICES": "the driver's: Docker reserves GPUs",
    "XDG_DATA_HOME": "only where the engine is an installed package",
}
"""Variables that the code reads and that no container is given, and why."""


def settings_read() -> set[str]:
    """Every environment variable that the two modules of settings name."""
    web = re.findall(r'env\.\w+\(\s*"([A-Z_]+)"', (ROOT / "config/settings.py").read_text())
    engine = re.findall(r'environ(?:\.get\(|\[)\s*"([A-Z_]+)"', (ROOT / "engine/settings.py").read_text())
    assert len(web) > 25
    assert len(engine) > 6
    return {*web, *engine}


def test_the_whole_product_is_there():
    assert set(LASTING) == {"redis", "postgres", "web", "web-2", "celery", "beat", "worker"}
    assert set(SERVICES) - set(LASTING) == {"migrate", "pull"}


def test_every_setting_that_the_code_reads_is_passed_or_left_out_for_a_reason():
    passed = {name for service in SERVICES.values() for name in service.get("environment", {})}
    assert settings_read() - passed == set(LEFT_OUT) - {"READY_FILE"}


@pytest.mark.parametrize("name", LASTING)
def test_every_service_that_lasts_is_checked_and_started_again(name):
    assert SERVICES[name]["restart"] == "unless-stopped"
    assert SERVICES[name]["healthcheck"]["test"]


@pytest.mark.parametrize("name", list(SERVICES))
def test_no_service_may_gain_privileges(name):
    assert SERVICES[name]["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in SERVICES[name]["security_opt"]
    assert not SERVICES[name].get("privileged")
    assert SERVICES[name]["read_only"]


@pytest.mark.parametrize("name", list(SERVICES))
def test_every_service_has_bounds(name):
    assert SERVICES[name]["pids_limit"]
    assert "mem_limit" in SERVICES[name]


@pytest.mark.parametrize("name", list(SERVICES))
def test_an_init_may_signal_what_it_starts(name):
    """tini stays root: without KILL it cannot signal a server of another uid, and every stop is a kill."""
    changes_uid = {"SETUID", "SETGID"} & set(SERVICES[name].get("cap_add", ()))
    assert not (changes_uid and SERVICES[name]["init"])


def test_redis_refuses_before_the_kernel_kills_it():
    command = SERVICES["redis"]["command"]
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert command[command.index("--maxmemory") + 1].endswith("1gb}")
    assert SERVICES["redis"]["mem_limit"].endswith("2g}")


def test_stores_have_time_to_stop():
    assert SERVICES["postgres"]["stop_grace_period"] == "60s"
    assert SERVICES["redis"]["stop_grace_period"] == "30s"


def test_postgres_is_healthy_once_it_answers_over_tcp():
    assert "--host 127.0.0.1" in SERVICES["postgres"]["healthcheck"]["test"][-1]


@pytest.mark.parametrize("variable", ["SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD", "ALLOWED_HOSTS"])
def test_a_secret_is_demanded_never_assumed(variable):
    uses = re.findall(r"\$\{" + variable + r"\b([^}]*)\}", TEXT)
    assert uses
    assert all(use.startswith(":?") for use in uses)


def test_only_the_page_is_published_and_only_on_loopback():
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert list(published) == ["web", "web-2"]
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_the_proxy_asks_every_web_container():
    asked = re.findall(r"server 127\.0\.0\.1:(\d+)", (ROOT / "deploy/nginx.conf").read_text())
    ports = [SERVICES[name]["ports"][0] for name in ("web", "web-2")]
    assert asked == [re.findall(r":-(\d+)\}", port)[0] for port in ports]
    assert "proxy_pass http://monolane;" in (ROOT / "deploy/monolane_proxy.conf").read_text()


def test_the_worker_meets_redis_and_nothing_else():
    networks = COMPOSE["networks"]
    assert SERVICES["worker"]["networks"] == SERVICES["redis"]["networks"] == ["queue"]
    assert SERVICES["postgres"]["networks"] == ["store"]
    assert SERVICES["pull"]["networks"] == ["outside"]
    assert networks["store"]["internal"] and networks["queue"]["internal"]


def test_the_worker_reserves_gpus_and_is_asked_for_by_its_own_name():
    worker = SERVICES["worker"]
    [device] = worker["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert "--name worker-$$HOSTNAME" in worker["command"][-1]
    assert "'ml:worker:worker-' + os.environ['HOSTNAME']" in worker["healthcheck"]["test"][-1]
    assert "container_name" not in worker  # else there could be no second one


def test_weights_are_written_by_pull_alone():
    written = {name: [v for v in s.get("volumes", ()) if "models" in v] for name, s in SERVICES.items()}
    assert [v for v in written["pull"] if v.startswith("models:")] == ["models:/var/lib/monolane/models"]
    assert all(v.endswith(":ro") for name in SERVICES if name != "pull" for v in written[name])
    assert not any(written[name] for name in APPS)


def test_what_must_survive_lies_on_volumes():
    def mounted(service: str) -> str:
        return " ".join(SERVICES[service]["volumes"])

    assert "/var/lib/postgresql/data" in mounted("postgres")
    assert "/data" in mounted("redis")
    assert "/var/lib/monolane" in mounted("web")
    assert "/var/lib/monolane/models" in mounted("worker")


def test_every_built_image_is_a_target_of_the_dockerfile():
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.M))
    asked = {service["build"]["target"] for service in SERVICES.values() if "build" in service}
    assert asked == {"web", "worker"}
    assert asked <= targets


def test_an_image_knows_the_commit_that_it_was_built_from():
    assert "MONOLANE_GIT_SHA=${GIT_SHA}" in (ROOT / "Dockerfile").read_text()
    for service in SERVICES.values():
        if "build" in service:
            assert service["build"]["args"] == {"GIT_SHA": "${MONOLANE_GIT_SHA:-}"}
            assert service["image"].endswith(":${MONOLANE_GIT_SHA:-latest}")


def test_everything_the_dockerfile_copies_from_the_tree_exists():
    for line in re.findall(r"^COPY (?!--from)(.*)$", (ROOT / "Dockerfile").read_text(), re.M):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source


def test_the_stage_that_builds_kernels_leaves_them_where_the_next_one_copies_them_from():
    """As engine.settings.build_dir: beside the code only where manage.py stands."""
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.M)
    [building] = [stage for stage in stages if "engine.backends.cpu.build" in stage]
    assert "COPY manage.py ./" in building.split("engine.backends.cpu.build")[0]


def test_the_address_of_a_visitor_is_no_strangers_to_choose():
    # daphne's own option takes the first address of X-Forwarded-For, which anybody may write.
    assert "--proxy-headers" not in (ROOT / "Dockerfile").read_text()
    [pool] = COMPOSE["networks"]["outside"]["ipam"]["config"]
    assert SERVICES["web"]["environment"]["TRUSTED_PROXIES"] == "${TRUSTED_PROXIES:-" + pool["subnet"] + "}"
    assert ipaddress.ip_network(re.findall(r"[\d./]{9,}", pool["subnet"])[0]).is_private
    assert SERVICES["web"]["environment"]["API_KEY_REQUIRED"].endswith(":-1}")


def test_beats_health_is_the_age_of_what_it_touches():
    assert SERVICES["beat"]["environment"]["READY_FILE"] in SERVICES["beat"]["healthcheck"]["test"][-1]
    assert "-mmin" in SERVICES["beat"]["healthcheck"]["test"][-1]


@pytest.mark.parametrize("file", [".gitignore", ".dockerignore"])
def test_secrets_and_dumps_stay_out_of_the_repository_and_the_images(file):
    lines = {line.strip("/") for line in (ROOT / file).read_text().splitlines()}
    assert {".env", ".env.*", "*.dump"} <= lines


def test_a_machine_without_a_gpu_needs_no_edit_of_a_tracked_file():
    class Reset(yaml.SafeLoader):
        """Reads compose's own tag."""

    Reset.add_constructor("!reset", lambda *_: None)
    override = yaml.load((ROOT / "docker-compose.cpu.yml").read_text(), Reset)  # noqa: S506
    worker = override["services"]["worker"]
    assert worker["environment"] == {"MONOLANE_BACKEND": "cpu"}
    assert worker["deploy"] is worker["ulimits"] is None


def test_the_proxys_example_passes_what_the_site_needs():
    said = (ROOT / "deploy/monolane_proxy.conf").read_text()
    for header in (
        "Host $http_host",
        "X-Forwarded-Proto $scheme",
        "X-Forwarded-For $proxy_add_x_forwarded_for",
    ):
        assert f"proxy_set_header {header};" in said
    assert "proxy_set_header Upgrade $http_upgrade;" in said
    assert "proxy_buffering off;" in said
    assert "proxy_read_timeout 120s;" in said  # a silent socket is pinged every 20 s


def test_alerts_name_metrics_that_exist():
    from playground import metrics

    known = {family.name for family in metrics.REGISTRY.collect()} | {"up"}
    rules = yaml.safe_load((ROOT / "deploy/alerts.yml").read_text())["groups"][0]["rules"]
    for rule in rules:
        for name in re.findall(r"monolane_\w+", rule["expr"]):
            assert name.removesuffix("_total") in known, name
