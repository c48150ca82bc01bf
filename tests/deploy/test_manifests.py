"""The manifests of k8s/: they render, are safe to run, and say what the code says."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import kubernetes_validate
import pytest
from pydantic import SecretStr
from sqlalchemy import text

from overproof.cli.results import dashboard
from overproof.core.clock import ManualClock
from overproof.core.states import JobKind
from overproof.results.engine import create_engine
from overproof.results.migrate import migrate
from overproof.runtime.health import STALLED_AFTER_S, HealthHooks, HealthServer
from overproof.runtime.settings import Settings, settings_table, variable_of
from scripts.locks import COMPONENTS
from tests.deploy.manifests import (
    COMBINATIONS,
    FEATURES,
    OVERLAYS,
    ROOT,
    SERVICES,
    WAYS,
    WORKERS,
    Document,
    containers,
    environment,
    everything,
    image_environment,
    main_container,
    of_kind,
    quantity,
    render,
    render_overlay,
    templates,
    values_of,
)

ALL = [
    *(pytest.param(render, c, id="+".join(c)) for c in COMBINATIONS),
    *(pytest.param(render_overlay, name, id=name) for name in OVERLAYS),
]
API = "1.34"
Build = Callable[[Any], list[Document]]
KNOWN = {row.variable for row in settings_table()}
SECRETS = {
    variable_of(name)
    for name, field in Settings.model_fields.items()
    if field.annotation is SecretStr
} | {"OVERPROOF_DATABASE_URL"}
# The longest that a claim's end and the word on the bus take after a job has stopped: a statement
# of the database, and a broker that does not answer.
SETTLING_S = 60.0


def kind_of(service: str) -> JobKind:
    """The kind of job that a worker claims."""
    code = (ROOT / "services" / service / "__main__.py").read_text()
    found = re.search(r'run_worker\("(\w+)", JobKind\.(\w+)\)', code)
    assert found
    assert found[1] == service
    return JobKind[found[2]]


# ---- every combination -------------------------------------------------------------------------


@pytest.mark.parametrize(("build", "what"), ALL)
def test_every_pod_meets_the_restricted_standard(build: Build, what: Any) -> None:
    found = templates(build(what))

    assert len(found) >= 6
    for name, template in found.items():
        spec = template["spec"]
        pod = spec["securityContext"]
        assert pod["runAsNonRoot"] is True, name
        assert pod["runAsUser"] > 0, name
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        assert spec["automountServiceAccountToken"] is False, name
        for volume in spec.get("volumes", []):
            kinds = set(volume) - {"name"}
            assert kinds <= {"emptyDir", "configMap", "secret", "projected"}, name
        for container in containers(template):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False, name
            assert own["capabilities"] == {"drop": ["ALL"]}, name
            assert "hostPort" not in str(container.get("ports")), name
            assert "memory" in container["resources"]["limits"], name


@pytest.mark.parametrize(("build", "what"), ALL)
def test_variables_are_settings_and_none_holds_a_secret(build: Build, what: Any) -> None:
    documents = build(what)

    for name, template in templates(documents).items():
        for container in containers(template):
            if not container["image"].rpartition("/")[2].startswith("overproof-"):
                continue
            names = {each["name"] for each in container.get("env", [])}
            written = environment(container, documents) if "env" in container else {}
            ours = {each for each in {*names, *written} if each.startswith("OVERPROOF_")}
            assert ours <= KNOWN, name
            assert not SECRETS & set(written), name
    for name, each in of_kind(documents, "ConfigMap").items():
        assert not SECRETS & set(each["data"]), name
        for value in each["data"].values():
            assert urlsplit(value).password is None if "://" in value else True, name


@pytest.mark.parametrize(("build", "what"), ALL)
def test_what_is_referred_to_by_name_is_there(build: Build, what: Any) -> None:
    documents = build(what)
    maps = of_kind(documents, "ConfigMap")
    accounts = of_kind(documents, "ServiceAccount")
    priorities = of_kind(documents, "PriorityClass")

    for name, template in templates(documents).items():
        spec = template["spec"]
        named = [each["name"] for each in values_of(spec, "configMapRef")]
        named += [each["name"] for each in values_of(spec, "configMap") if not each.get("optional")]
        assert set(named) <= set(maps), name
        if "serviceAccountName" in spec:
            assert spec["serviceAccountName"] in accounts, name
        if "priorityClassName" in spec:
            assert spec["priorityClassName"] in priorities, name
        volumes = {volume["name"] for volume in spec.get("volumes", [])} | {"data"}
        for container in containers(template):
            assert {m["name"] for m in container["volumeMounts"]} <= volumes, name


@pytest.mark.parametrize(("build", "what"), ALL)
def test_selectors_find_the_pods_that_they_mean(build: Build, what: Any) -> None:
    documents = build(what)
    labels = [t["metadata"]["labels"] for t in templates(documents).values()]

    for document in documents:
        kind, spec = document["kind"], document.get("spec", {})
        if kind in {"Deployment", "StatefulSet"}:
            wanted = spec["selector"]["matchLabels"].items()
            assert wanted <= spec["template"]["metadata"]["labels"].items()
        elif kind in {"Service", "PodDisruptionBudget"}:
            selector = spec["selector"].get("matchLabels", spec["selector"])
            assert any(selector.items() <= each.items() for each in labels), document["metadata"]
        elif kind in {"PodMonitor", "NetworkPolicy"}:
            selector = spec.get("selector", spec.get("podSelector", {}))
            assert any(_selects(selector, each) for each in labels), document["metadata"]


def _selects(selector: Document, labels: Document) -> bool:
    matched = selector.get("matchLabels", {}).items() <= labels.items()
    return matched and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", [])
    )


@pytest.mark.parametrize("way", WAYS)
def test_workers_come_from_one_component_alone(way: str) -> None:
    for features in ((), FEATURES):
        documents = render((*features, way))
        makers = set(of_kind(documents, "ScaledJob" if way == "keda" else "Deployment"))
        others = set(of_kind(documents, "Deployment" if way == "keda" else "ScaledJob"))

        assert set(WORKERS) <= makers
        assert not set(WORKERS) & others
        assert set(of_kind(documents, "PodDisruptionBudget")) == {"aggregator", "dashboard"}


def test_workers_are_made_as_their_templates_say() -> None:
    for combination, documents in everything():
        found = templates(documents)
        for name in WORKERS:
            made = found.get(f"ScaledJob/{name}") or found[f"Deployment/{name}"]
            assert made == found[f"PodTemplate/{name}"], (
                f"{combination}: keda or fixed-workers last"
            )


@pytest.mark.parametrize("way", WAYS)
def test_what_a_component_says_of_workers_reaches_their_pods(way: str) -> None:
    found = templates(render((*FEATURES, way)))
    maker = "ScaledJob" if way == "keda" else "Deployment"

    for name in WORKERS:
        spec = found[f"{maker}/{name}"]["spec"]
        container = spec["containers"][0]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert {"name": "OVERPROOF_DEVICE", "value": "cuda"} in container["env"]
        assert spec["nodeSelector"] == {"overproof/pool": kind_of(name).value}
        assert {"nvidia.com/gpu", "overproof/pool"} == {each["key"] for each in spec["tolerations"]}


# ---- against the code ---------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_ports_are_those_that_processes_listen_on(way: str) -> None:
    documents = render(("ingress", way))
    found = templates(documents)
    default_port = inspect.signature(dashboard).parameters["port"].default

    for name in SERVICES:
        metrics = image_environment(name)["OVERPROOF_METRICS_PORT"]
        for key, template in found.items():
            if key.endswith(f"/{name}"):
                ports = main_container(template)["ports"]
                assert ports == [{"name": "metrics", "containerPort": int(metrics)}]
    [port] = main_container(found["Deployment/dashboard"])["ports"]
    assert port == {"name": "http", "containerPort": default_port}


def test_probes_of_services_ask_for_what_their_server_answers() -> None:
    asked = set()
    for name, template in templates(render(("fixed-workers",))).items():
        if name.rpartition("/")[2] in SERVICES:
            asked |= {each["path"] for each in values_of(template, "httpGet")}
    server = HealthServer(HealthHooks(clock=ManualClock()), bytes, host="127.0.0.1", port=0)

    try:
        answers = {path: _status(f"http://127.0.0.1:{server.port}{path}") for path in asked}
    finally:
        server.close()

    assert set(answers) == {"/live", "/ready"}
    assert 404 not in answers.values()


def _status(url: str) -> int:
    try:
        with urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def test_dashboard_is_probed_below_the_path_that_it_serves() -> None:
    for components, prefix in ((("keda",), ""), (("ingress", "keda"), "/overproof")):
        documents = render(components)
        container = main_container(templates(documents)["Deployment/dashboard"])
        path = environment(container, documents).get("STREAMLIT_SERVER_BASE_URL_PATH", "")

        assert prefix == (f"/{path}" if path else "")
        assert {p["path"] for p in values_of(container, "httpGet")} == {f"{prefix}/_stcore/health"}
    [rule] = of_kind(documents, "Ingress")["dashboard"]["spec"]["rules"]
    assert [each["path"] for each in rule["http"]["paths"]] == [prefix]


def test_autoscaler_asks_the_view_of_each_kind_as_its_reader(tmp_path: Path) -> None:
    documents = render(("keda",))
    engine = create_engine(f"sqlite:///{tmp_path}/results.db")
    migrate(engine)

    for name in WORKERS:
        [trigger] = of_kind(documents, "ScaledJob")[name]["spec"]["triggers"]
        query = trigger["metadata"]["query"]
        with engine.connect() as connection:
            assert connection.execute(text(query)).all() == [(0,)]
        assert f"'{kind_of(name).value}'" in query
        assert trigger["metadata"]["targetQueryValue"] == "1"
        assert trigger["authenticationRef"]["name"] in of_kind(documents, "TriggerAuthentication")
    engine.dispose()
    command = main_container(templates(documents)["Job/migrate"])["command"]
    script = (ROOT / "k8s/components/embedded-infrastructure/first-start.sh").read_text()
    assert command == ["overproof", "migrate", "--reader", "overproof_scaler"]
    assert f"CREATE ROLE {command[-1]} " in script


def test_a_change_of_a_scaled_job_lets_running_jobs_go_on() -> None:
    for name, job in of_kind(render(("keda",)), "ScaledJob").items():
        assert job["spec"]["rollout"] == {"strategy": "gradual"}, name
        assert job["spec"]["jobTargetRef"]["template"]["spec"]["restartPolicy"] == "Never", name
        rules = job["spec"]["jobTargetRef"]["podFailurePolicy"]["rules"]
        assert [rule["action"] for rule in rules] == ["Ignore"], name


def test_workers_give_way_but_not_so_far_that_no_node_is_made_for_them() -> None:
    values = {name: p["value"] for name, p in of_kind(render(("keda",)), "PriorityClass").items()}

    # The cluster autoscaler's cut-off for pods that are worth no node.
    assert -10 <= values["overproof-worker"] < 0 < values["overproof-control"]


def test_pods_are_given_the_time_that_their_jobs_need_to_stop() -> None:
    for _, documents in everything():
        for name, template in templates(documents).items():
            if name.rpartition("/")[2] not in WORKERS:
                continue
            container = main_container(template)
            variables = environment(container, documents)
            grace_s = float(variables["OVERPROOF_STOP_GRACE_S"])
            assert template["spec"]["terminationGracePeriodSeconds"] >= grace_s + SETTLING_S
            # A node that is taken away gives 30 s.
            assert grace_s < 30
            probe = container["livenessProbe"]
            assert probe["periodSeconds"] * probe["failureThreshold"] <= STALLED_AFTER_S


def test_what_workers_keep_fits_where_they_keep_it() -> None:
    for _, documents in everything():
        for name, template in templates(documents).items():
            if name.rpartition("/")[2] not in WORKERS:
                continue
            container = main_container(template)
            variables = environment(container, documents)
            settings = Settings.model_validate(
                {
                    each: variables[variable_of(each)]
                    for each in ("cache_bytes", "child_memory_limit_bytes")
                    if variable_of(each) in variables
                }
            )
            sizes = {v["name"]: v.get("emptyDir", {}) for v in template["spec"]["volumes"]}
            limits = container["resources"]["limits"]
            assert settings.cache_bytes < quantity(sizes["home"]["sizeLimit"])
            assert quantity(sizes["home"]["sizeLimit"]) <= quantity(limits["ephemeral-storage"])
            assert settings.child_memory_limit_bytes < quantity(limits["memory"])
            assert sizes["shared-memory"]["medium"] == "Memory"


def test_all_that_is_written_goes_where_a_volume_is() -> None:
    for _, documents in everything():
        for name, template in templates(documents).items():
            component = name.rpartition("/")[2]
            if component not in COMPONENTS and component != "migrate":
                continue
            folder = image_environment("aggregator" if component == "migrate" else component)
            for container in containers(template):
                mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
                assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
                assert mounts[folder["OVERPROOF_HOME"]]["name"] == "home", name


def test_pods_wait_for_the_schema_and_are_made_of_our_images() -> None:
    for _, documents in everything():
        for name, template in templates(documents).items():
            component = name.rpartition("/")[2]
            if component not in COMPONENTS:
                continue
            [waiting] = template["spec"]["initContainers"]
            images = {
                each["image"].rpartition("/")[2].partition(":")[0] for each in containers(template)
            }
            assert waiting["command"] == ["overproof", "migrate", "--wait"], name
            assert images == {f"overproof-{component}"}, name


def test_secrets_are_named_and_never_made_outside_a_trial() -> None:
    for name, documents in everything():
        made = of_kind(documents, "Secret")
        is_trial = "embedded-infrastructure" in name or name == "dev"
        assert bool(made) == is_trial, name
        for template in templates(documents).values():
            for reference in values_of(template, "secretKeyRef"):
                if is_trial and not reference.get("optional"):
                    assert reference["key"] in made[reference["name"]]["data"], name


def test_nothing_is_let_in_or_out_but_what_the_settings_name() -> None:
    documents = render(("embedded-infrastructure", "network-policies", "keda"))
    policies = of_kind(documents, "NetworkPolicy")
    [settings] = [
        each["data"]
        for name, each in of_kind(documents, "ConfigMap").items()
        if name.startswith("overproof-settings")
    ]
    addresses = re.findall(
        r"[/=](\w+:\d+)", settings["OVERPROOF_BUS_URL"] + settings["OVERPROOF_ARTIFACTS_URL"]
    )
    services = of_kind(documents, "Service")

    assert policies["default-deny"]["spec"] == {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
    }
    [egress] = policies["reach-bus-and-store"]["spec"]["egress"]
    [database] = policies["reach-database"]["spec"]["egress"]
    assert len(addresses) == 2
    for address in addresses:
        host, port = address.split(":")
        assert {"port": int(port), "protocol": "TCP"} in egress["ports"]
        assert services[host]["spec"]["ports"][0]["port"] == int(port)
    assert {"port": services["postgres"]["spec"]["ports"][0]["port"], "protocol": "TCP"} in (
        database["ports"]
    )


def test_all_processes_with_metrics_are_scraped() -> None:
    documents = render(("monitoring", "keda"))
    monitor = of_kind(documents, "PodMonitor")["overproof"]["spec"]

    scraped = {
        name.rpartition("/")[2]
        for name, template in templates(documents).items()
        if _selects(monitor["selector"], template["metadata"]["labels"])
    }

    assert scraped == set(SERVICES)
    assert [each["port"] for each in monitor["podMetricsEndpoints"]] == ["metrics"]


def test_api_server_would_accept_every_object() -> None:
    """By the schemas that Kubernetes publishes, with no field that they do not know."""
    checked = set()
    for combination, documents in everything():
        for document in documents:
            group = document["apiVersion"].partition("/")[0]
            if document["kind"] == "ScaledJob":
                # KEDA's own part is not known here; what it makes of it is.
                job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": document["metadata"]}
                document = {**job, "spec": document["spec"]["jobTargetRef"]}
            elif group in {"keda.sh", "monitoring.coreos.com"}:
                continue
            if (written := json.dumps(document, sort_keys=True)) not in checked:
                checked.add(written)
                where = f"{combination}: {document['kind']} {document['metadata']['name']}"
                try:
                    kubernetes_validate.validate(document, API, strict=True)
                except kubernetes_validate.ValidationError as error:
                    pytest.fail(f"{where}: {error}")
    assert len(checked) > 40
