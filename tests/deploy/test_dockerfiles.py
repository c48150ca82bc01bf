"""The Dockerfiles: unprivileged, pinned, from the locks, and of what they claim to be."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from overproof.runtime.settings import settings_table
from scripts.images import ENGINES, FOLDERS, build_command, read_image
from scripts.locks import BUILD, BUILT_PER_MACHINE, COMPONENTS, LOCKS, ROOT, build_requirements
from scripts.testservers.installing import MINIO_VERSION
from tests.deploy.manifests import SERVICES, WORKERS, image_environment

CACHES = ("HOME", "TMPDIR", "OVERPROOF_HOME")


@dataclass(frozen=True)
class Step:
    """One instruction: its name and what follows, on one line."""

    name: str
    rest: str


def stages(name: str) -> list[list[Step]]:
    """The instructions of a Dockerfile, one list a stage; before the first FROM is the first."""
    text = (ROOT / FOLDERS[name] / "Dockerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    found: list[list[Step]] = [[]]
    for line in filter(None, map(str.strip, text.splitlines())):
        step = Step(*line.split(maxsplit=1))
        if step.name == "FROM":
            found.append([])
        found[-1].append(step)
    return found


def the(stage: list[Step], name: str) -> str:
    """What follows the only instruction of that name."""
    [step] = [step for step in stage if step.name == name]
    return step.rest


@pytest.mark.parametrize("name", FOLDERS)
def test_every_base_is_an_argument_with_its_digest(name: str) -> None:
    image = read_image(name)
    pattern = r"\$\{(\w+)_IMAGE\}\$\{\1_DIGEST:\+@\$\{\1_DIGEST\}\}( AS \w+)?"

    bases = [step.rest for stage in stages(name) for step in stage if step.name == "FROM"]

    assert len(bases) == 2
    for base in bases:
        found = re.fullmatch(pattern, base)
        assert found, base
        assert image.arguments[f"{found[1]}_DIGEST"] == ""
        assert re.search(r":[\w.-]+$", image.arguments[f"{found[1]}_IMAGE"])


@pytest.mark.parametrize("name", FOLDERS)
def test_a_container_is_unprivileged_and_starts_without_a_shell(name: str) -> None:
    *_, last = stages(name)

    user, group = the(last, "USER").split(":")
    check = the(last, "HEALTHCHECK").partition("CMD ")[2]
    order = [step.name for step in last]

    assert int(user) > 0
    assert int(group) > 0
    assert json.loads(the(last, "ENTRYPOINT"))
    assert json.loads(check)
    assert the(last, "STOPSIGNAL") == "SIGTERM"
    assert "COPY" not in order[order.index("USER") :]


@pytest.mark.parametrize("name", FOLDERS)
def test_nothing_is_taken_from_an_address(name: str) -> None:
    steps = [step for stage in stages(name) for step in stage]

    assert [step for step in steps if step.name == "ADD"] == []
    assert [step for step in steps if step.name == "RUN" and "://" in step.rest] == []
    for step in steps:
        if step.name == "COPY" and not step.rest.startswith("--from"):
            for source in step.rest.split()[:-1]:
                assert (ROOT / source).exists(), source


@pytest.mark.parametrize("name", FOLDERS)
def test_labels_say_what_it_is_and_what_it_was_built_from(name: str) -> None:
    *_, last = stages(name)

    labels = dict(re.findall(r'([\w.-]+)="([^"]*)"', the(last, "LABEL")))

    assert labels["org.opencontainers.image.title"] == f"overproof-{name}"
    assert {"description", "licenses", "version", "base.name", "base.digest"} <= {
        label.removeprefix("org.opencontainers.image.") for label in labels
    }


@pytest.mark.parametrize("name", COMPONENTS)
def test_packages_come_from_the_lock_of_the_component_by_hash(name: str) -> None:
    _, build, last = stages(name)
    commands = " && ".join(step.rest for step in build if step.name == "RUN")
    installs = [each.strip() for each in commands.split("&&") if " install " in each]

    assert f"uv pip install --require-hashes --no-deps -r locks/{name}.txt" in installs
    assert "pip install --require-hashes -r locks/build.txt" in installs
    with_torch = [each for each in installs if "locks/torch.txt" in each]
    assert bool(with_torch) == (name in WORKERS)
    loose = {each for each in installs if "--require-hashes" not in each} - set(with_torch)
    assert loose == {"uv pip install --no-deps dist/*.whl"}
    assert not any("pip " in step.rest for step in last if step.name == "RUN")


def test_what_images_are_built_with_is_locked() -> None:
    text = BUILD.read_text()
    blocks = [b for b in re.split(r"^(?=\S)", text, flags=re.MULTILINE) if b and b[0] != "#"]
    pinned = {block.partition(" ")[0] for block in blocks}

    assert all("--hash=sha256:" in block for block in blocks)
    for requirement in build_requirements():
        name, _, version = requirement.partition("==")
        assert any(pin.startswith(f"{name}=={version}") for pin in pinned), "run make lock"


def test_only_the_attacker_has_the_oracle() -> None:
    has = {
        name: bool(re.search(r"^torchattacks==", (LOCKS / f"{name}.txt").read_text(), re.MULTILINE))
        for name in COMPONENTS
    }

    assert {name for name, found in has.items() if found} == {"attacker"}
    assert all(
        not BUILT_PER_MACHINE.match(line)
        for name in COMPONENTS
        for line in (LOCKS / f"{name}.txt").read_text().splitlines()
    )


@pytest.mark.parametrize("name", SERVICES)
def test_entry_point_is_the_service_and_only_its_code_is_copied(name: str) -> None:
    *_, last = stages(name)
    copied = [step.rest for step in last if step.name == "COPY"]

    assert json.loads(the(last, "ENTRYPOINT")) == ["python", "-m", f"services.{name}"]
    assert copied == [
        "--from=build /opt/overproof /opt/overproof",
        f"services/{name} /app/services/{name}",
    ]


@pytest.mark.parametrize("name", COMPONENTS)
def test_whatever_is_written_goes_below_one_folder(name: str) -> None:
    *_, last = stages(name)
    variables = image_environment(name)
    known = {row.variable for row in settings_table()}

    [folder] = {variables[each] for each in CACHES}
    ours = {each for each in variables if each.startswith("OVERPROOF_")}

    assert f"install --directory --mode 1777 {folder}" in the(last, "RUN")
    assert ours <= known
    if "OVERPROOF_METRICS_PORT" in variables:
        port = variables["OVERPROOF_METRICS_PORT"]
        assert the(last, "EXPOSE") == port
        assert f":{port}/live" in the(last, "HEALTHCHECK")


def test_dockerfiles_of_workers_differ_in_nothing_but_the_name() -> None:
    def shape(name: str) -> str:
        text = (ROOT / FOLDERS[name] / "Dockerfile").read_text()
        return re.sub(r"(image.description=).*", r"\1", text).replace(name, "NAME")

    assert len({shape(name) for name in WORKERS}) == 1


def test_minio_is_the_version_that_the_tests_run_beside() -> None:
    text = (ROOT / FOLDERS["minio"] / "Dockerfile").read_text()

    assert set(re.findall(r"^ARG MINIO_VERSION=(.*)$", text, flags=re.MULTILINE)) == {MINIO_VERSION}


def test_context_of_a_build_holds_what_is_copied_and_no_secret() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = {line.removeprefix("!") for line in lines if line.startswith("!")}

    for name in FOLDERS:
        for stage in stages(name):
            for step in stage:
                if step.name == "COPY" and not step.rest.startswith("--from"):
                    assert {Path(each).parts[0] for each in step.rest.split()[:-1]} <= let_in
    assert next(line for line in lines if not line.startswith("#")) == "*"
    assert not {".env", ".git", "."} & let_in


def test_an_image_is_built_with_the_digests_that_were_found() -> None:
    image = read_image("trainer")
    environment = {"TORCH_BACKEND": "cu128", "TAG": "1.2.3", "REGISTRY": "registry/team/"}

    command = build_command("docker", image, {"PYTHON_IMAGE": "sha256:ab"}, environment)

    assert command[:2] == ["docker", "build"]
    assert "--tag=registry/team/overproof-trainer:1.2.3-cu128" in command
    assert "--file=services/trainer/Dockerfile" in command
    assert "--build-arg=PYTHON_DIGEST=sha256:ab" in command
    assert "--build-arg=TORCH_BACKEND=cu128" in command
    assert "--build-arg=VERSION=1.2.3" in command


@pytest.mark.parametrize("engine", ENGINES)
def test_health_check_is_kept_by_every_engine(engine: str) -> None:
    command = build_command(engine, read_image("aggregator"), {}, {})

    assert ("--format=docker" in command) == (engine != "docker")
