"""What the four services have in common: settings, logs, health, signals, exit codes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing

from overproof.core.clock import SystemClock
from overproof.core.states import JobKind
from overproof.errors import OverproofError, SettingsError
from overproof.runtime.attempt import AttemptRunner
from overproof.runtime.executor import Executor, InlineExecutor
from overproof.runtime.health import HealthHooks, HealthServer
from overproof.runtime.hooks import HookChain, Hooks
from overproof.runtime.logs import configure_logging
from overproof.runtime.metrics import MetricsHooks
from overproof.runtime.process import ProcessExecutor
from overproof.runtime.settings import Settings
from overproof.runtime.shutdown import Runnable, StopSignals
from overproof.runtime.wiring import Backends
from overproof.runtime.worker import Worker

_log = logging.getLogger(__name__)

EXIT_STOPPED = 0
EXIT_FAILED = 1
EXIT_SETTINGS = 2

Build = Callable[[Settings, Backends, Hooks], Runnable]


def run_service(name: str, build: Build) -> int:
    """Run what `build` makes until a signal; the exit code of the process.

    0: stopped by a signal, or idle for as long as it may be. 1: a back-end or an error ended it.
    2: the settings cannot be used; standard error says which.
    """
    try:
        settings = Settings.from_env()
        configure_logging(settings, service=name)
        with StopSignals() as signals, ExitStack() as stack:
            hooks = _hooks(name, settings, stack)
            backends = stack.enter_context(Backends.from_settings(settings))
            runnable = build(settings, backends, hooks)
            _log.info("%s started", name)
            signals.run(runnable)
            _log.info("%s stopped", name)
    except SettingsError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return EXIT_SETTINGS
    except OverproofError as error:
        _log.error("%s ended: %s", name, error)
        return EXIT_FAILED
    return EXIT_STOPPED


def run_worker(name: str, kind: JobKind) -> int:
    """Run the worker service of one kind of job; the exit code."""
    return run_service(
        name,
        lambda settings, backends, hooks: Worker(
            (kind,), backends, make_executor(settings, backends), settings=settings, hooks=hooks
        ),
    )


def make_executor(settings: Settings, backends: Backends) -> Executor:
    """The executor that the settings name."""
    child = settings.for_child()
    if settings.executor == "inline":
        runner = AttemptRunner(backends.store, child, clock=SystemClock())
        return InlineExecutor(runner)
    return ProcessExecutor(child)


def _hooks(name: str, settings: Settings, stack: ExitStack) -> Hooks:
    clock = SystemClock()
    metrics = MetricsHooks(name, clock=clock)
    health = HealthHooks(clock=clock, file=settings.health_file)
    if settings.metrics_port is not None:
        server = HealthServer(
            health, metrics.exposition, host=settings.metrics_host, port=settings.metrics_port
        )
        stack.enter_context(closing(server))
        _log.info("health and metrics on port %d", server.port)
    return HookChain([metrics, health])
