"""Opens the artifact store that a URL names: for parents and children alike."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from overproof.artifacts.base import ArtifactStore
from overproof.artifacts.directory import DirectoryStore
from overproof.errors import SettingsError


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


def _path_of(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc or not parts.path.startswith("/"):
        raise SettingsError(f"OVERPROOF_ARTIFACTS_URL: write {url!r} as file:///absolute/folder")
    return Path(unquote(parts.path))
