"""The command line: up, down, status, env, and stop, start, restart of one server."""

import argparse
import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from . import compose, native, places
from .native import SERVERS, Server
from .processes import (
    Process,
    ServerError,
    choose_free_ports,
    end,
    is_alive,
    is_free,
    spawn,
    wait_until,
)

DESCRIPTION = """\
Starts and stops the real servers that the tests talk to, each on a free loopback port.

For each server: a URL given in its environment variable is used as it is; else a working
Docker engine runs it from docker-compose.yml; else it is installed and run as a process.

  up              start what does not run yet; print the variables for the tests
  down            stop what `up` started, and delete its data
  status          one line for each server
  env             print the variables; for a shell: eval "$(scripts/servers env)"
  stop NAME       stop one server, keep its data and its port
  start NAME      start it again
  restart NAME    both
  run COMMAND     run a command with the variables set; afterwards stop what did not run before
"""


@dataclass(frozen=True)
class Record:
    """What is remembered of a server that was started here; kept in .servers/<name>.json."""

    engine: Literal["native", "compose"]
    ports: dict[str, int]
    process: Process | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; 1 when a server is missing."""
    parser = argparse.ArgumentParser(
        prog="scripts/servers",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("up", "down", "status", "env"):
        commands.add_parser(name)
    for name in ("stop", "start", "restart"):
        commands.add_parser(name).add_argument("name", choices=[s.name for s in SERVERS])
    commands.add_parser("run").add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    places.DATA.mkdir(exist_ok=True)
    try:
        if options.command == "run":
            return run(options.words)
        return not execute(options.command, getattr(options, "name", None))
    except ServerError as error:
        say(str(error))
        return 1


def execute(command: str, name: str | None) -> bool:
    """Carries out one of the commands that end at once."""
    if command == "status":
        return status()
    if command == "env":
        sys.stdout.write(exports())
        return True
    with exclusively():
        if name is not None:
            server = next(server for server in SERVERS if server.name == name)
            return {"stop": stop, "start": start, "restart": restart}[command](server)
        if command == "down":
            return down()
        is_complete = up()
    sys.stdout.write(exports())
    return is_complete


def exclusively() -> AbstractContextManager[None]:
    """Of two callers at once, the second waits and finds all done."""
    return places.locked(places.DATA / "lock")


def up() -> bool:
    """Starts every server that is neither given nor running, all at the same time.

    Returns:
        False when one of them cannot be had.
    """
    places.LOGS.mkdir(parents=True, exist_ok=True)
    missing = [s for s in SERVERS if not is_given(s) and not is_running(s, load(s))]
    new_ports = choose_free_ports()
    records = [with_free_ports(server, new_ports) for server in missing]
    with ThreadPoolExecutor(max_workers=len(SERVERS)) as pool:
        started = list(pool.map(try_launch, missing, records))
    write_exports()
    return all(started)


def down(servers: Sequence[Server] = SERVERS) -> bool:
    """Stops what was started here and deletes its data; ports are kept for the next `up`."""
    for server in servers:
        record = load(server)
        if record is None:
            continue
        if record.engine == "compose":
            compose.remove(compose_service(server))
        elif record.process:
            end(record.process, stop_signal=server.stop_signal)
        shutil.rmtree(folder_of(server), ignore_errors=True)
        save(server, dataclasses.replace(record, process=None))
    write_exports()
    return True


def run(command: Sequence[str]) -> int:
    """Runs a command beside the servers, then stops those that did not run before.

    Without a server the tests that need it skip, saying so; where CI is set that would
    hide a fault, so the command is not run.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # runs `finally` below
    with exclusively():
        idle = [server for server in SERVERS if not is_running(server, load(server))]
    try:
        with exclusively():
            is_complete = up()
        if not is_complete and os.environ.get("CI"):
            return 1
        signal.signal(signal.SIGINT, lambda *_: None)  # the command gets it too, and ends
        return subprocess.run(command, env={**os.environ, **variables()}, check=False).returncode
    finally:
        with exclusively():
            down(idle)


def status() -> bool:
    """Prints name, state, how it runs, and URL; true when all are there."""
    complete = True
    for server in SERVERS:
        record = load(server)
        if is_given(server):
            state, detail, url = "given", "-", os.environ[server.variable]
        elif record is not None and is_running(server, record):
            pid = f" pid {record.process.pid}" if record.process else ""
            state, detail, url = (
                "running",
                f"{record.engine}{pid}",
                server.url(record.ports["main"]),
            )
        else:
            state, detail, url, complete = "stopped", "-", "-", False
        sys.stdout.write(f"{server.name:<10} {state:<8} {detail:<18} {url}\n")
    return complete


def stop(server: Server) -> bool:
    """Stops one server that was started here, and keeps its data."""
    record = owned(server)
    if record.engine == "compose":
        compose.stop(compose_service(server))
    elif record.process:
        end(record.process, stop_signal=server.stop_signal)
    return True


def start(server: Server) -> bool:
    """Starts one server again, with the data and port that it had."""
    record = owned(server)
    if not is_running(server, record):
        launch(server, record)
    return True


def restart(server: Server) -> bool:
    """Stops and starts one server."""
    return stop(server) and start(server)


def try_launch(server: Server, record: Record) -> bool:
    """Launches, or says in one line why it could not be."""
    try:
        launch(server, record)
    except ServerError as error:
        say(f"{server.name}: {error}")
        return False
    return True


def launch(server: Server, record: Record) -> None:
    """Starts a server on the record's ports and returns once it serves."""
    if server.compose_service and compose.is_available():
        try:
            compose.start(server.compose_service, record.ports["main"])
        except ServerError as error:
            say(f"{server.name}: {error}; running it without Docker")
        else:
            save(server, dataclasses.replace(record, engine="compose", process=None))
            return
    folder = folder_of(server)
    folder.mkdir(parents=True, exist_ok=True)
    plan = server.prepare(folder, record.ports)
    log = places.LOGS / f"{server.name}.log"
    process = spawn(
        plan.command,
        log=log,
        folder=folder,
        environment=places.environment(**plan.environment),
        user=plan.user,
    )
    save(server, dataclasses.replace(record, engine="native", process=process))
    wait_until(lambda: server.is_ready(record.ports) or not is_alive(process), timeout_s=90)
    if not is_alive(process) or not server.is_ready(record.ports):
        end(process, stop_signal=server.stop_signal)
        raise ServerError(f"does not serve; its last words are in {log}")
    say(f"{server.name}: serving on port {record.ports['main']}")


def is_given(server: Server) -> bool:
    """Whether the environment names a server that is not the one started here."""
    url, record = os.environ.get(server.variable), load(server)
    return bool(url) and (record is None or url != server.url(record.ports["main"]))


def is_running(server: Server, record: Record | None) -> bool:
    """Whether the server started here runs."""
    if record is None:
        return False
    if record.engine == "compose":
        return compose.is_running(compose_service(server))
    return is_alive(record.process)


def with_free_ports(server: Server, new_ports: Iterator[int]) -> Record:
    """The remembered ports while nobody took them, else new ones."""
    record = load(server)
    if record and all(is_free(port) for port in record.ports.values()):
        return record
    return Record("native", {name: next(new_ports) for name in server.port_names})


def owned(server: Server) -> Record:
    """The record of a server that this command may stop and start."""
    record = load(server)
    if record is None:
        raise ServerError(f"{server.name} was not started here: run scripts/servers up")
    return record


def variables() -> dict[str, str]:
    """The environment that names the running servers to the tests."""
    values: dict[str, str] = {}
    for server in SERVERS:
        record = load(server)
        if is_given(server):
            values[server.variable] = os.environ[server.variable]
        elif record is not None and is_running(server, record):
            values[server.variable] = server.url(record.ports["main"])
    if native.MinIO.variable in values or native.SeaweedFS.variable in values:
        values["AWS_ACCESS_KEY_ID"], values["AWS_SECRET_ACCESS_KEY"] = native.s3_credentials()
    return values


def exports() -> str:
    """The variables as lines for a shell."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables().items())


def write_exports() -> None:
    """Keeps the lines in .servers/env as well, for `source`."""
    (places.DATA / "env").write_text(exports())


def compose_service(server: Server) -> str:
    """The server's name in docker-compose.yml."""
    if server.compose_service is None:
        raise ServerError(f"{server.name} is not part of docker-compose.yml")
    return server.compose_service


def folder_of(server: Server) -> Path:
    """The server's data folder; outside a checkout that its unprivileged user cannot enter."""
    base = places.DATA
    if os.geteuid() == 0 and not places.reachable_by_others(base / "any"):
        base = places.OPEN_DATA / places.checkout_id()
    return base / server.name


def load(server: Server) -> Record | None:
    """What is remembered of the server, if it was ever started here."""
    try:
        content = json.loads((places.DATA / f"{server.name}.json").read_text())
    except FileNotFoundError:
        return None
    process = content.pop("process")
    return Record(**content, process=Process(**process) if process else None)


def save(server: Server, record: Record) -> None:
    """Remembers a server; the file changes as a whole."""
    file = places.DATA / f"{server.name}.json"
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(dataclasses.asdict(record)))
    draft.replace(file)


def say(line: str) -> None:
    """One line for the person at the terminal; stdout is for the shell."""
    sys.stderr.write(f"servers: {line}\n")
