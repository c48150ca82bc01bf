import re
import subprocess
from pathlib import Path

import pytest

from scripts.locks import BUILT_PER_MACHINE, COMPONENTS, LOCKS, ROOT, inputs_hash

WITHOUT_TORCH = ["aggregator", "dashboard"]
NEEDS_TORCH = {"torch", "torchvision", "timm", "torchattacks", "triton"}


def _pinned(component: str) -> set[str]:
    lock = (LOCKS / f"{component}.txt").read_text()
    return set(re.findall(r"^([a-z0-9-]+)==", lock, flags=re.MULTILINE))


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_lock_is_made_from_the_requirements_of_today(component: str) -> None:
    lock = (LOCKS / f"{component}.txt").read_text()

    made_from = re.search(r"^# inputs: sha256:([0-9a-f]{64})$", lock, flags=re.MULTILINE)

    assert made_from, "no header: run make lock"
    assert made_from[1] == inputs_hash(component), "requirements changed: run make lock"


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_pin_has_a_hash_and_none_is_built_per_machine(component: str) -> None:
    lock = (LOCKS / f"{component}.txt").read_text()

    blocks = [b for b in re.split(r"^(?=\S)", lock, flags=re.MULTILINE) if b and b[0] != "#"]

    assert blocks
    assert [block for block in blocks if "--hash=sha256:" not in block] == []
    assert [block for block in blocks if BUILT_PER_MACHINE.match(block)] == []


@pytest.mark.parametrize("component", WITHOUT_TORCH)
def test_aggregator_and_dashboard_do_without_torch(component: str) -> None:
    pinned = _pinned(component)

    assert "sqlalchemy" in pinned
    assert pinned & NEEDS_TORCH == set()


def test_torch_is_pinned_exactly_in_one_place() -> None:
    pins = (LOCKS / "torch.txt").read_text().splitlines()[1:]

    assert [re.sub(r"[0-9.]+$", "", pin) for pin in pins] == ["torch==", "torchvision=="]


@pytest.mark.parametrize("lock", sorted(LOCKS.iterdir()), ids=lambda lock: lock.name)
def test_a_lock_holds_no_address_and_no_local_path(lock: Path) -> None:
    content = lock.read_text()

    assert re.findall(r"://|file:|^-e|^--(?:index|extra|find).*", content, flags=re.MULTILINE) == []


def test_no_committed_file_names_a_package_index() -> None:
    # Spelled in two halves, so that this file does not name them itself.
    hosts = [
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("download.pytorch", "org"),
        ("repo.maven.apache", "org"),
        ("repo1.maven", "org"),
        ("proxy.golang", "org"),
        ("registry.npmjs", "org"),
        ("deb.debian", "org"),
    ]
    pattern = "|".join(re.escape(".".join(host)) for host in hosts)

    found = subprocess.run(
        ["git", "grep", "--line-number", "--extended-regexp", "-I", pattern],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.returncode == 1, found.stdout + found.stderr
