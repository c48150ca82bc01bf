"""Settings: read once from the environment, then passed on; nothing else reads it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from overproof.core.faults import faults_of
from overproof.core.retry import RetryPolicy
from overproof.errors import SettingsError, redact

PREFIX = "OVERPROOF_"
_GIB = 1 << 30

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0)]


def _split(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part for each in value.split(",") if (part := each.strip()))
    return value


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]


def _default_home() -> Path:
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "overproof"


def usable_cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _default_local_workers() -> int:
    return min(4, usable_cores())


class ChildSettings(BaseModel):
    """What a child process needs: the store, its folders and its device; no database, no bus."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    artifacts: str
    s3_access_key: SecretStr
    s3_secret_key: SecretStr
    cache_dir: Path
    cache_bytes: int
    device: str
    threads: int
    memory_limit_bytes: int
    checkpoint_every_s: float
    checkpoint_every_steps: int | None
    store_patience_s: float
    preload: Names
    plugins: Names
    log_level: str

    def revealed(self) -> dict[str, Any]:
        """Plain JSON with the secrets in it: for the private pipe to the child alone."""
        return self.model_dump(mode="json") | {
            "s3_access_key": self.s3_access_key.get_secret_value(),
            "s3_secret_key": self.s3_secret_key.get_secret_value(),
        }


class Settings(BaseSettings):
    """All settings of all processes; each is an environment variable `OVERPROOF_<NAME>`.

    The descriptions below are the documentation: see `settings_table`.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="ignore", populate_by_name=True, env_ignore_empty=True
    )

    home: Path = Field(
        default_factory=_default_home,
        description="Folder of the embedded back-ends and of the cache; on a local disk.",
    )
    bus_url: str = Field("memory:", description="`memory:` or `kafka://host:port[,host:port]`.")
    artifacts_url: str = Field(
        "",
        description="`file:///folder` or `s3://bucket?endpoint=host:port`; "
        "`artifacts` in the home folder when empty.",
    )
    database_url: str = Field(
        "",
        description="`sqlite:///file` or `postgresql+psycopg2://user@host/name`; "
        "`results.db` in the home folder when empty.",
    )

    kafka_password: SecretStr = Field(
        SecretStr(""), description="Password of the Kafka user that the bus URL names."
    )
    s3_access_key: SecretStr = Field(
        SecretStr(""),
        validation_alias=AliasChoices("OVERPROOF_S3_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
        description="Access key of the S3 server; `AWS_ACCESS_KEY_ID` serves too.",
    )
    s3_secret_key: SecretStr = Field(
        SecretStr(""),
        validation_alias=AliasChoices("OVERPROOF_S3_SECRET_KEY", "AWS_SECRET_ACCESS_KEY"),
        description="Secret key of the S3 server; `AWS_SECRET_ACCESS_KEY` serves too.",
    )

    executor: Literal["process", "inline"] = Field(
        "process",
        description="Jobs run in a warm child process; `inline` runs them in a thread, to debug.",
    )
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = Field(
        "auto", description="`cpu`, `cuda`, `cuda:1`, …; `auto` takes CUDA where there is one."
    )
    threads: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="CPU threads of a job; all cores when empty, a fair share in embedded mode.",
    )
    local_workers: Annotated[int, Field(ge=1, le=256)] = Field(
        default_factory=_default_local_workers,
        description="Jobs at once in embedded mode; as many as there are cores, at most 4.",
    )
    time_limit_s: Seconds | None = Field(
        None, description="An attempt that takes longer is stopped and counts as failed."
    )
    stop_grace_s: Seconds = Field(
        25.0, description="How long a job that is asked to stop may take to checkpoint."
    )
    checkpoint_every_s: Seconds = Field(300.0, description="How often jobs save their state.")
    checkpoint_every_steps: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Jobs save their state after so many steps as well; by time when empty."
    )
    cache_dir: Path | None = Field(
        None, description="Folder of fetched artifacts; `cache` in the home folder when empty."
    )
    cache_bytes: Bytes = Field(
        20 * _GIB, description="How much the cache may hold before the least used is removed."
    )
    child_memory_limit_bytes: Bytes = Field(
        8 * _GIB, description="A warm child larger than this after a job is replaced."
    )
    preload: Names = Field(
        ("torch",), description="Modules that a child imports before its first job, by commas."
    )
    plugins: Names = Field(
        (),
        description="`module:function` or paths of manifests (`.yaml`, docs/import.md), by commas, "
        "which register plug-ins at start. They run code: set it only to what you trust.",
    )

    lease_ttl_s: Seconds = Field(
        60.0, description="A worker that is silent for so long loses its job."
    )
    renew_s: Seconds | None = Field(
        None,
        description="How often a worker renews its claim and writes progress; a third of the "
        "lease when empty.",
    )
    sweep_s: Seconds = Field(
        5.0, description="How often an idle worker looks for work without being told."
    )
    aggregate_s: Seconds = Field(10.0, description="How often the aggregator looks by itself.")
    idle_exit_s: Seconds | None = Field(
        None, description="A worker without work for so long ends; never when empty."
    )
    store_patience_s: Seconds = Field(
        900.0, description="How long a job waits for an artifact store that is down."
    )
    max_attempts: Annotated[int, Field(ge=1, le=100)] = Field(
        3, description="Attempts at a job before it has FAILED."
    )
    retry_base_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        30.0, description="Seconds before the second attempt; each later wait is four times longer."
    )
    breaker_limit: Annotated[int, Field(ge=1)] = Field(
        10, description="So many FAILED jobs of a kind in a row stop that kind until `resume`."
    )

    metrics_host: str = Field(
        "0.0.0.0",  # probes and scrapes come from outside the container; off unless a port is set
        description="Address of the endpoints /live, /ready and /metrics.",
    )
    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        None, description="Their port; 0 takes a free one, no endpoints when empty."
    )
    health_file: Path | None = Field(
        None, description="A file touched on every turn of the main loop."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="The least important lines that are logged."
    )
    log_json: bool = Field(False, description="Logs as one JSON object a line.")

    @classmethod
    def from_env(cls) -> Self:
        """Read the environment.

        Raises:
            SettingsError: variables with values that cannot be used; all of them are listed.
        """
        try:
            return cls()
        except ValidationError as error:
            raise SettingsError(_message(error)) from None

    @property
    def artifacts(self) -> str:
        """URL of the artifact store, the embedded default filled in."""
        return self.artifacts_url or (self.home.absolute() / "artifacts").as_uri()

    @property
    def database(self) -> str:
        """URL of the database, the embedded default filled in."""
        if self.database_url:
            return self.database_url
        return f"sqlite:///{self.home.absolute()}/results.db"

    @property
    def cache(self) -> Path:
        """Folder of fetched artifacts."""
        return self.cache_dir or self.home.absolute() / "cache"

    @property
    def retry(self) -> RetryPolicy:
        """When failed jobs are tried again."""
        return RetryPolicy(max_attempts=self.max_attempts, base_s=self.retry_base_s)

    def for_child(self) -> ChildSettings:
        """What a child of this process is told."""
        return ChildSettings(
            artifacts=self.artifacts,
            s3_access_key=self.s3_access_key,
            s3_secret_key=self.s3_secret_key,
            cache_dir=self.cache,
            cache_bytes=self.cache_bytes,
            device=self.device,
            threads=self.threads or usable_cores(),
            memory_limit_bytes=self.child_memory_limit_bytes,
            checkpoint_every_s=self.checkpoint_every_s,
            checkpoint_every_steps=self.checkpoint_every_steps,
            store_patience_s=self.store_patience_s,
            preload=self.preload,
            plugins=self.plugins,
            log_level=self.log_level,
        )

    def secrets(self) -> tuple[str, ...]:
        """Values that must never be written anywhere."""
        held = [self.kafka_password, self.s3_access_key, self.s3_secret_key]
        values = [secret.get_secret_value() for secret in held]
        with suppress(ValueError):
            # As it is written in the URL and as it is sent.
            password = urlsplit(self.database_url).password or ""
            values += [password, unquote(password)]
        return tuple(value for value in values if value)


@dataclass(frozen=True)
class SettingRow:
    """One setting, for the documentation."""

    variable: str
    default: str
    help: str


def settings_table() -> list[SettingRow]:
    """Every setting in the order of the model."""
    shown = {"home": "~/.local/share/overproof", "local_workers": "cores, at most 4"}
    return [
        SettingRow(
            variable=variable_of(name),
            default=shown.get(name, _shown(field.default)),
            help=field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]


def variable_of(name: str) -> str:
    """The environment variable of the setting `name`."""
    return PREFIX + name.upper()


def _shown(value: Any) -> str:
    if value is None or value == () or isinstance(value, SecretStr):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def _message(error: ValidationError) -> str:
    lines = []
    for fault, line in zip(error.errors(), faults_of(error), strict=True):
        name = str(fault["loc"][0]) if fault["loc"] else ""
        _, _, what = line.partition(": ")
        variable = name if name.isupper() else variable_of(name)
        lines.append(f"\n  - {variable}: {redact(what)}")
    count = f"{len(lines)} setting{'s' if len(lines) != 1 else ''}"
    return f"{count} cannot be used; correct the environment:{''.join(lines)}"
