"""docker-compose.yml: every part is there, starts in order, and is a variable with a default."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from overproof.runtime.settings import Settings, settings_table
from scripts.images import read_image
from scripts.locks import COMPONENTS, ROOT
from scripts.testservers.compose import PORT_VARIABLES
from scripts.testservers.installing import KAFKA_VERSION
from tests.deploy.manifests import SERVICES, WORKERS, image_environment

COMPOSE = ROOT / "docker-compose.yml"
GPU = ROOT / "compose.gpu.yaml"
VARIABLE = re.compile(r"\$\{(\w+):-([^{}]*)\}")
# What ends by itself, and so has no health.
JOBS = {"s3-bucket", "migrate"}
# Their images were withdrawn.
FORBIDDEN = ("bitnami/", "minio/")


def defaults() -> dict[str, str]:
    """Variable → the default that docker-compose.yml gives it."""
    found: dict[str, str] = {}
    for name, default in VARIABLE.findall(COMPOSE.read_text()):
        assert found.setdefault(name, default) == default, f"{name} has two defaults"
    return found


@cache
def services() -> dict[str, Any]:
    """The services with all defaults filled in."""
    text = VARIABLE.sub(lambda found: found[2], COMPOSE.read_text()).replace("$$", "$")
    return dict(yaml.safe_load(text)["services"])


def test_every_variable_stands_in_the_example_with_its_default() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    example = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))

    assert example == defaults()
    assert "${" not in VARIABLE.sub("", COMPOSE.read_text())


def test_every_component_runs_beside_its_servers() -> None:
    servers = {"kafka", "s3", "s3-bucket", "postgres", "prometheus", "grafana", "migrate"}

    assert set(services()) == servers | set(COMPONENTS)


def test_images_are_variables_and_come_from_their_makers() -> None:
    for name, service in services().items():
        image = service["image"]
        assert not any(each in image for each in FORBIDDEN), image
        if name in COMPONENTS:
            assert image == read_image(name).tag({})
            dockerfile = service["build"]["dockerfile"]
            assert ROOT / dockerfile == read_image(name).dockerfile
        else:
            assert image in defaults().values() or name == "migrate"
            assert re.fullmatch(r"(?:[\w.-]+\.\w+/.+|overproof-\w+):[\w.-]+", image), image


def test_start_has_an_order_without_a_cycle_and_waits_for_the_right_thing() -> None:
    needs = {name: service.get("depends_on", {}) for name, service in services().items()}

    order = list(
        TopologicalSorter({name: set(each) for name, each in needs.items()}).static_order()
    )

    assert set(order) == set(services())
    for name, each in needs.items():
        for needed, how in each.items():
            expected = "service_completed_successfully" if needed in JOBS else "service_healthy"
            assert how["condition"] == expected, f"{name} needs {needed}"
    for name in SERVICES:
        assert order.index("migrate") < order.index(name)
        assert order.index("s3-bucket") < order.index(name)


def test_everything_that_stays_has_a_health_check() -> None:
    for name, service in services().items():
        if name not in {*JOBS, *COMPONENTS}:
            assert service["healthcheck"]["test"][0] == "CMD", name
        assert ("restart" in service) == (name not in JOBS), name


def test_our_containers_are_told_settings_that_exist_and_servers_that_are_there() -> None:
    known = {row.variable for row in settings_table()}

    for name in {*COMPONENTS, "migrate"}:
        environment = services()[name]["environment"]
        assert set(environment) <= known, name
        settings = Settings.model_validate(
            {each.removeprefix("OVERPROOF_").lower(): value for each, value in environment.items()}
        )
        hosts = [urlsplit(settings.bus_url).netloc, settings.artifacts_url.split("endpoint=")[1]]
        hosts.append(urlsplit(settings.database_url).netloc.rpartition("@")[2])
        for host in hosts:
            assert host.partition(":")[0] in services()


def test_our_containers_are_unprivileged_and_write_to_one_folder() -> None:
    for name in {*COMPONENTS, "migrate"}:
        service = services()[name]
        folder = image_environment("aggregator" if name == "migrate" else name)["OVERPROOF_HOME"]
        written = [each.split(":")[0] for each in service.get("tmpfs", [])]
        written += [each.split(":")[1] for each in service.get("volumes", [])]
        assert service["read_only"] is True
        assert service["init"] is True
        assert service["cap_drop"] == ["ALL"]
        assert written == [folder]


def test_ports_are_open_on_this_machine_alone() -> None:
    ports = [port for service in services().values() for port in service.get("ports", [])]

    assert len(ports) == 6
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_prometheus_asks_every_service_for_its_metrics() -> None:
    text = (ROOT / "infrastructure/prometheus/prometheus.yml").read_text()
    [scrape] = yaml.safe_load(text)["scrape_configs"]
    [found] = scrape["dns_sd_configs"]

    assert set(found["names"]) == set(SERVICES)
    assert {str(found["port"])} == {
        image_environment(name)["OVERPROOF_METRICS_PORT"] for name in SERVICES
    }


def test_gpus_are_for_workers() -> None:
    overridden = yaml.safe_load(GPU.read_text())["services"]

    assert set(overridden) == set(WORKERS)
    for each in overridden.values():
        assert each["environment"] == {"OVERPROOF_DEVICE": "cuda"}
        [device] = each["deploy"]["resources"]["reservations"]["devices"]
        assert device["capabilities"] == ["gpu"]


def test_test_servers_find_what_they_need_in_it() -> None:
    assert set(PORT_VARIABLES.values()) <= set(defaults())
    assert set(PORT_VARIABLES) <= set(services())
    assert defaults()["OVERPROOF_KAFKA_IMAGE"].endswith(f":{KAFKA_VERSION}")


@pytest.mark.parametrize("files", [[COMPOSE], [COMPOSE, GPU]], ids=["cpu", "gpu"])
def test_docker_reads_it(files: list[Path]) -> None:
    command = ["docker", "compose"]
    if (
        not shutil.which("docker")
        or subprocess.run([*command, "version"], capture_output=True, check=False).returncode
    ):
        pytest.skip("docker compose is not installed")

    options = [f"--file={file}" for file in files]
    done = subprocess.run(
        [*command, *options, "config", "--quiet"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
