"""Services as pods run them: process 1, an unknown user, read-only files, a limit of memory.

A namespace of processes and mounts stands in for the container: no image and no kubelet, but the
entry points of the Dockerfiles with the variables of the manifests.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from overproof.core.spec import JobSpec
from overproof.core.states import JobState
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends
from tests.deploy.manifests import (
    ROOT,
    SERVICES,
    entry_point,
    environment,
    image_environment,
    main_container,
    quantity,
    render_overlay,
    templates,
)
from tests.services.test_entry_points import get, submit
from tests.worker.tasks import a_probe, register

TIMEOUT_S = 90.0

# The folder stays writable, everything else becomes read-only.
_CONFINE = 'mount --bind "$1" "$1" && mount -o remount,bind,ro / && shift && exec "$@"'
# It may read what root may, since the interpreter may lie in somebody's home; write it may not.
_READ_ONLY = "-all,+dac_read_search"


class Pod:
    """The process of a component, confined.

    Args:
        name: of the component.
        folder: for its home and its log.
        user: a number that no user of this machine has.
        variables: instead of those of the manifests.
    """

    def __init__(self, name: str, folder: Path, user: int, **variables: str) -> None:
        documents = render_overlay("dev")
        template = templates(documents)[f"Deployment/{name}"]
        self.grace_s = float(template["spec"]["terminationGracePeriodSeconds"])
        self.port = _free_port()
        self._log = folder / f"{name}.log"
        home = folder / "home"
        told = image_environment(name) | environment(main_container(template), documents)
        inside = told["OVERPROOF_HOME"]
        told = {each: value.replace(inside, str(home)) for each, value in told.items()}
        # Back-ends in the one folder instead of those of the cluster.
        own = {"OVERPROOF_BUS_URL": "memory:", "OVERPROOF_ARTIFACTS_URL": ""}
        own |= {"OVERPROOF_METRICS_PORT": str(self.port), "PYTHONPATH": os.pathsep.join(sys.path)}
        entry = entry_point(name)
        start = {"python": [sys.executable], "overproof": [sys.executable, "-m", "overproof"]}
        command = [*start[entry[0]], *entry[1:]]
        # Of each process; a container's limit holds for all of its processes together.
        memory = int(quantity(main_container(template)["resources"]["limits"]["memory"]))
        if name == "dashboard":
            command.append(f"--port={self.port}")
        with self._log.open("wb") as log:
            self._parent = subprocess.Popen(
                [
                    *("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"),
                    *("sh", "-c", _CONFINE, "sh", home),
                    *("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"),
                    *("--no-new-privs", f"--inh-caps={_READ_ONLY}", f"--ambient-caps={_READ_ONLY}"),
                    *(f"--bounding-set={_READ_ONLY}", "prlimit", f"--data={memory}"),
                    *command,
                ],
                cwd=ROOT,
                env={**told, **own, **variables, "PATH": os.environ["PATH"]},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        """What it has written so far."""
        return self._log.read_text()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Return once `condition` holds."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert self._parent.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.1)

    def answers(self, path: str) -> bool:
        """Whether it answers an HTTP request, and well."""
        try:
            return get(str(self.port), path)[0] == 200
        except OSError:
            return False

    def stop(self) -> int:
        """Send what a kubelet sends; the exit code."""
        os.kill(self._process_1(), signal.SIGTERM)
        return self._parent.wait(self.grace_s)

    def kill(self) -> None:
        """End it without a word; harmless once it has ended."""
        # Not by its parent alone: a process that changes its user outlives that.
        if self._parent.poll() is None:
            for child in self._children():
                os.kill(child, signal.SIGKILL)
            self._parent.kill()
        self._parent.wait()

    def _process_1(self) -> int:
        [child] = self._children()
        return child

    def _children(self) -> list[int]:
        parent = self._parent.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        return [int(child) for child in children.split()]


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("setpriv")):
        pytest.skip("namespaces need root, unshare and setpriv")
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False).returncode:
        pytest.skip("this machine permits no namespaces of its own")
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o1777)
    user = random.randrange(100_000, 1_000_000)
    started: list[Pod] = []

    def start(name: str, **variables: str) -> Pod:
        started.append(Pod(name, tmp_path, user, **variables))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def shared_backends(home: Path) -> Iterator[Backends]:
    """The back-ends of the folder, for a test that runs as root beside a pod that does not."""
    with Backends.from_settings(Settings(home=home, preload=())) as backends:
        backends.store.put_once("probe/made", b"the folder")
        for path in [*home.rglob("*"), home]:
            path.chmod(0o777 if path.is_dir() else 0o666)
        yield backends


@pytest.mark.parametrize("name", SERVICES)
def test_service_is_well_as_process_1_of_a_confined_pod(pod: Callable[..., Pod], name: str) -> None:
    service = pod(name, OVERPROOF_PRELOAD="none")

    service.wait_for(lambda: service.answers("/ready"))
    live = service.answers("/live")
    code = service.stop()

    assert live
    assert code == 0, service.log
    assert "Traceback" not in service.log
    assert "Read-only" not in service.log


def test_signal_that_comes_while_process_1_still_starts_is_not_lost(
    pod: Callable[..., Pod],
) -> None:
    service = pod("aggregator")

    service.wait_for(lambda: "health and metrics on port" in service.log)

    assert service.stop() == 0, service.log


@pytest.mark.dashboard
def test_dashboard_is_served_by_process_1_of_a_confined_pod(pod: Callable[..., Pod]) -> None:
    pages = pod("dashboard")

    pages.wait_for(lambda: pages.answers("/_stcore/health"))
    code = pages.stop()

    assert code == 0, pages.log
    assert "Traceback" not in pages.log
    assert "Read-only" not in pages.log


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_drained_pod_loses_neither_work_nor_a_retry(
    pod: Callable[..., Pod], tmp_path: Path
) -> None:
    register()
    unit = a_probe(behaviour="slow", steps=200)
    job_id = JobSpec.of((unit,)).job_id
    settings = {
        "OVERPROOF_PLUGINS": "tests.worker.tasks:register",
        "OVERPROOF_PRELOAD": "none",
        "OVERPROOF_RENEW_S": "0.1",
    }
    with shared_backends(tmp_path / "home") as backends:
        submit(backends, unit)

        first = pod("distiller", **settings)
        first.wait_for(lambda: backends.repository.job(job_id).progress is not None)
        code = first.stop()
        released = backends.repository.job(job_id)
        second = pod("distiller", **settings)
        second.wait_for(lambda: backends.repository.job(job_id).state.is_terminal)

        assert code == 0
        assert (released.state, released.attempt) == (JobState.READY, 0), first.log
        assert backends.repository.job(job_id).state is JobState.SUCCEEDED, second.log
        assert backends.repository.attempts(job_id)[1].facts["resumed_at"] > 0
