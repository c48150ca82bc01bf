"""Chooses bus, store and database by URL; the only place that does."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from overproof.artifacts.base import ArtifactStore
from overproof.bus.base import Bus
from overproof.bus.memory import MemoryBus
from overproof.errors import SettingsError
from overproof.results.engine import create_engine
from overproof.results.migrate import migrate
from overproof.results.repository import ResultsRepository
from overproof.runtime.plugins import load_plugins
from overproof.runtime.settings import Settings
from overproof.runtime.stores import open_store


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
