"""Chooses implementations by URL; the only place that does."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from overproof.artifacts.base import ArtifactStore
from overproof.artifacts.directory import DirectoryStore
from overproof.bus.base import Bus
from overproof.bus.memory import MemoryBus
from overproof.catalog.attacks import ATTACKS
from overproof.catalog.datasets import DATASETS
from overproof.catalog.distillation import DISTILLATION
from overproof.catalog.metrics import METRICS
from overproof.catalog.models import MODELS
from overproof.catalog.protocols import PROTOCOLS
from overproof.catalog.tasks import TASKS
from overproof.errors import SettingsError
from overproof.results.engine import create_engine
from overproof.results.migrate import migrate
from overproof.results.repository import ResultsRepository
from overproof.runtime.settings import Settings

REGISTRIES = (ATTACKS, DATASETS, DISTILLATION, METRICS, MODELS, PROTOCOLS, TASKS)


@dataclass(frozen=True)
class Backends:
    """Bus, artifact store and database of one process. A context manager that closes them."""

    bus: Bus
    store: ArtifactStore
    repository: ResultsRepository

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Build what the URLs name; nothing is sent to a server yet.

        An embedded database is made and migrated on the spot; a server's is migrated by the
        command `overproof migrate`, once for all processes.

        Raises:
            SettingsError: a URL that cannot be used, or a package that it needs is missing.
            DatabaseUnavailable: the embedded database cannot be opened.
        """
        load_plugins(settings.plugins)
        engine = create_engine(settings.database)
        if engine.dialect.name == "sqlite":
            migrate(engine, settings.retry)
        repository = ResultsRepository(
            engine, retry=settings.retry, breaker_limit=settings.breaker_limit
        )
        return cls(bus=open_bus(settings), store=open_store(settings), repository=repository)

    def close(self) -> None:
        """Free all connections. Calling it twice is harmless."""
        self.bus.close()
        self.repository.close()

    def __enter__(self) -> Self:
        """The back-ends themselves."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close them."""
        self.close()


class StoreSettings(Protocol):
    """What is needed to open the store."""

    @property
    def artifacts(self) -> str:
        """URL of the store."""
        ...

    @property
    def s3_access_key(self) -> SecretStr:
        """For an S3 store."""
        ...

    @property
    def s3_secret_key(self) -> SecretStr:
        """For an S3 store."""
        ...


def open_store(settings: StoreSettings) -> ArtifactStore:
    """The artifact store that the settings name.

    Raises:
        SettingsError: the URL cannot be used, or `minio` is not installed.
    """
    url = settings.artifacts
    scheme = urlsplit(url).scheme
    if scheme == "file":
        return DirectoryStore(_path_of(url))
    if scheme == "s3":
        try:
            from overproof.artifacts.s3 import S3Store
        except ImportError as error:
            raise SettingsError(f"{url} needs a package: {error}; install overproof[s3]") from None
        return S3Store.from_url(
            url,
            access_key=settings.s3_access_key.get_secret_value(),
            secret_key=settings.s3_secret_key.get_secret_value(),
        )
    raise SettingsError(
        f"OVERPROOF_ARTIFACTS_URL: {url!r} is neither file:///folder nor "
        "s3://bucket?endpoint=host:port"
    )


def open_bus(settings: Settings) -> Bus:
    """The bus that the settings name.

    Raises:
        SettingsError: the URL cannot be used, or `kafka-python` is not installed.
    """
    url = settings.bus_url
    scheme = urlsplit(url).scheme
    if scheme == "memory":
        return MemoryBus()
    if scheme == "kafka":
        try:
            from overproof.bus.kafka import KafkaBus
        except ImportError as error:
            raise SettingsError(
                f"{url} needs a package: {error}; install overproof[kafka]"
            ) from None
        return KafkaBus.from_url(url, password=settings.kafka_password.get_secret_value())
    raise SettingsError(f"OVERPROOF_BUS_URL: {url!r} is neither memory: nor kafka://host:port")


def load_plugins(plugins: Sequence[str]) -> None:
    """Register the plug-ins of installed packages and those of `plugins` (`module:function`).

    Each function is called without arguments and adds to the registries. All of it happens once
    in a process, however often this is called.

    Raises:
        SettingsError: an entry of `plugins` that cannot be imported.
    """
    _register_entry_points()
    for entry in plugins:
        _register(entry)


@cache
def _register_entry_points() -> None:
    for registry in REGISTRIES:
        registry.add_entry_points()


@cache
def _register(entry: str) -> None:
    module, _, function = entry.partition(":")
    try:
        register = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"OVERPROOF_PLUGINS: {entry!r} cannot be imported: {error}; write module:function"
        ) from error
    register()


def _path_of(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc or not parts.path.startswith("/"):
        raise SettingsError(f"OVERPROOF_ARTIFACTS_URL: write {url!r} as file:///absolute/folder")
    return Path(unquote(parts.path))
