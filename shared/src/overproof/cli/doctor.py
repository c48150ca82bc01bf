"""`overproof doctor`: what works here, what does not, and what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from overproof.cli.experiments import SEEN_LATELY_S
from overproof.cli.output import FAILED, JsonOption, print_json, print_table
from overproof.core.clock import SystemClock
from overproof.core.states import JobKind
from overproof.errors import OverproofError, redact

if TYPE_CHECKING:
    from overproof.results.repository import ResultsRepository
    from overproof.runtime.settings import Settings
    from overproof.runtime.wiring import Backends

_GIB = 1 << 30
_LITTLE_DISK_BYTES = 5 * _GIB
_NO_DISK_BYTES = _GIB // 2
_SKEW_S = 5.0

# SQLite's locks do not hold on these.
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "glusterfs"}
    | {"fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "beegfs"}
)


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what was found, what to do."""

    what: str
    level: Level
    found: str
    advice: str = ""


def doctor(as_json: JsonOption = False) -> None:
    """Check back-ends, device, disk, clock and workers; exit code 1 if something fails."""
    findings = list(_findings())
    if as_json:
        print_json(findings)
    else:
        print_table(
            ["", "what", "found", "what to do"],
            [(each.level, each.what, each.found, each.advice) for each in findings],
        )
    if any(each.level is Level.FAIL for each in findings):
        raise typer.Exit(FAILED)


def _findings() -> Iterator[Finding]:
    yield from check_versions()
    yield check_compiler(shutil.which)
    try:
        from overproof.runtime.settings import Settings

        settings = Settings.from_env()
    except OverproofError as error:
        yield Finding("settings", Level.FAIL, str(error), "correct the environment variables")
        return
    yield Finding("settings", Level.OK, f"home {settings.home}")
    yield check_device(settings.device)
    yield check_folder("home", settings.home)
    yield check_folder("cache", settings.cache)
    if settings.database.startswith("sqlite:"):
        yield check_file_system(settings.home, _mounts())
    yield from _check_backends(settings)


# ---- this machine ----------------------------------------------------------------------------


def check_versions() -> Iterator[Finding]:
    """Versions of Python, Overproof and what workers compute with."""
    from importlib.metadata import PackageNotFoundError, version

    yield Finding("python", Level.OK, f"{platform.python_version()} on {platform.machine()}")
    yield Finding("overproof", Level.OK, version("overproof"))
    for package in ("torch", "torchvision", "timm", "scikit-learn"):
        try:
            yield Finding(package, Level.OK, version(package))
        except PackageNotFoundError:
            yield Finding(
                package, Level.WARN, "not installed", "workers need it: install overproof[ml]"
            )


def check_compiler(which: Callable[[str], str | None]) -> Finding:
    """Whether torch can compile kernels for the CPU."""
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        if name and (path := which(name)):
            return Finding("C++ compiler", Level.OK, path)
    return Finding(
        "C++ compiler",
        Level.WARN,
        "none",
        "networks run uncompiled on the CPU, which is slower; install g++",
    )


def check_device(name: str) -> Finding:
    """What jobs compute on.

    Args:
        name: the setting: `auto`, `cpu`, `cuda`, …
    """
    try:
        from overproof.ml.devices import device_facts, pick_device
    except ImportError:
        return Finding("device", Level.WARN, "no torch", "workers need it: install overproof[ml]")
    try:
        facts = device_facts(pick_device(name))
    except OverproofError as error:
        return Finding("device", Level.FAIL, str(error), "correct OVERPROOF_DEVICE")
    found = ", ".join(f"{key} {value}" for key, value in facts.items())
    return Finding("device", Level.OK, f"{found}, {os.cpu_count()} cores")


def check_folder(what: str, folder: Path) -> Finding:
    """Whether files can be written to `folder`, or to where it will be made, and fit there."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        return Finding(what, Level.FAIL, f"{place} is no folder", "choose another place")
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding(
            what, Level.FAIL, f"{place} cannot be written", "change its owner, or choose another"
        )
    free = shutil.disk_usage(place).free
    found = f"{folder}, {free / _GIB:.1f} GiB free"
    if free < _NO_DISK_BYTES:
        return Finding(what, Level.FAIL, found, "free space on that disk")
    if free < _LITTLE_DISK_BYTES:
        return Finding(what, Level.WARN, found, "free space on that disk soon")
    return Finding(what, Level.OK, found)


def check_file_system(home: Path, mounts: str) -> Finding:
    """Whether SQLite's locks hold where the database lies.

    Args:
        home: folder of the database.
        mounts: text of /proc/mounts, empty where there is none.
    """
    place = home.absolute()
    holders = [
        (Path(fields[1].replace("\\040", " ")), fields[2])
        for fields in map(str.split, mounts.splitlines())
        if len(fields) > 2
    ]
    inside = [(point, kind) for point, kind in holders if place.is_relative_to(point)]
    if not inside:
        return Finding("file system", Level.WARN, "unknown", "make sure that it is a local disk")
    _, kind = max(inside, key=lambda holder: len(holder[0].parts))
    if kind in _NETWORK_FILE_SYSTEMS:
        return Finding(
            "file system",
            Level.FAIL,
            f"{kind} under {home}",
            "SQLite loses data there: set OVERPROOF_HOME to a local disk, or use Postgres",
        )
    return Finding("file system", Level.OK, kind)


def _mounts() -> str:
    try:
        return Path("/proc/mounts").read_text()
    except OSError:
        return ""


# ---- back-ends -------------------------------------------------------------------------------


def _check_backends(settings: Settings) -> Iterator[Finding]:
    from overproof.runtime.wiring import Backends

    try:
        backends = Backends.from_settings(settings)
    except OverproofError as error:
        yield _failed("back-ends", error)
        return
    with backends:
        yield _answer("bus", backends.bus.check)
        yield _answer("artifacts", backends.store.check)
        database = _answer("database", backends.repository.check)
        yield database
        if database.level is Level.OK:
            yield check_clock(_database_time(settings), SystemClock().now())
            yield from _check_kinds(backends)


def check_clock(theirs: float, ours: float) -> Finding:
    """Whether this machine and the database agree on the time, both in seconds."""
    skew = abs(theirs - ours)
    found = f"{skew:.1f} s from the database's"
    if skew <= _SKEW_S:
        return Finding("clock", Level.OK, found)
    return Finding("clock", Level.WARN, found, "set it by NTP: times in lists are misleading")


def _database_time(settings: Settings) -> float:
    from sqlalchemy import select

    from overproof.results.engine import Database, create_engine

    engine = create_engine(settings.database)
    try:
        return Database(engine).read(lambda tx: float(tx.execute(select(tx.now)).scalar_one()))
    finally:
        engine.dispose()


def _check_kinds(backends: Backends) -> Iterator[Finding]:
    """Whether work of each kind is let through, and whether somebody does it."""
    repository: ResultsRepository = backends.repository
    alive = [worker.kind for worker in repository.workers(SEEN_LATELY_S)]
    for status in repository.kind_status():
        kind: JobKind = status.kind
        what = f"{kind} jobs"
        found = f"{status.ready} ready, {status.running} running, {alive.count(kind)} workers"
        if status.breaker_open:
            yield Finding(
                what,
                Level.WARN,
                f"stopped after {status.failures_in_a_row} failures in a row; {found}",
                f"look at `overproof status`, then `overproof resume {kind}`",
            )
        elif status.paused:
            yield Finding(
                what, Level.WARN, f"paused; {found}", f"`overproof resume {kind}` goes on"
            )
        elif status.ready and kind not in alive:
            yield Finding(
                what, Level.WARN, found, "start a worker, or do the work with `overproof run`"
            )
        else:
            yield Finding(what, Level.OK, found)


def _answer(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(what, Level.OK, redact(check()))
    except OverproofError as error:
        return _failed(what, error)


def _failed(what: str, error: OverproofError) -> Finding:
    return Finding(what, Level.FAIL, redact(str(error)), "see the message")
