from __future__ import annotations

from pathlib import Path

import pytest

from overproof.artifacts.directory import DirectoryStore
from overproof.bus.memory import MemoryBus
from overproof.errors import SettingsError
from overproof.runtime.settings import Settings
from overproof.runtime.stores import open_store
from overproof.runtime.wiring import Backends, open_bus


def test_embedded_back_ends_are_ready_to_use(tmp_path: Path) -> None:
    with Backends.from_settings(Settings(home=tmp_path / "new")) as backends:
        assert isinstance(backends.bus, MemoryBus)
        assert isinstance(backends.store, DirectoryStore)
        assert backends.repository.jobs() == []
        assert "schema" in backends.repository.check()


def test_opening_twice_finds_what_was_there(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    with Backends.from_settings(settings) as backends:
        backends.store.put_once("a/key", b"value")

    with Backends.from_settings(settings) as backends:
        assert backends.store.read("a/key") == b"value"


def test_folder_with_odd_characters_is_found_again(tmp_path: Path) -> None:
    home = tmp_path / "50% of #1 ünit"
    with Backends.from_settings(Settings(home=home)) as backends:
        backends.store.put_once("a/key", b"value")

    assert (home / "artifacts" / "a" / "key").read_bytes() == b"value"


@pytest.mark.parametrize(
    ("field", "url"),
    [
        ("bus_url", "rabbit://host"),
        ("bus_url", "kafka:"),
        ("artifacts_url", "gopher://host"),
        ("artifacts_url", "file://relative"),
        ("artifacts_url", "s3://bucket"),
        ("database_url", "oracle://host/db"),
    ],
)
def test_url_that_names_nothing_known_says_so(tmp_path: Path, field: str, url: str) -> None:
    with pytest.raises(SettingsError):
        Backends.from_settings(Settings(home=tmp_path).model_copy(update={field: url}))


def test_servers_are_chosen_by_url_without_being_reached() -> None:
    settings = Settings(
        bus_url="kafka://127.0.0.1:1", artifacts_url="s3://bucket?endpoint=127.0.0.1:1&secure=false"
    )

    assert type(open_bus(settings)).__name__ == "KafkaBus"
    assert type(open_store(settings.for_child())).__name__ == "S3Store"
