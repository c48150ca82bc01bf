from __future__ import annotations

from pathlib import Path

import pytest

from overproof.errors import SettingsError
from overproof.runtime.settings import Settings, settings_table, variable_of


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in settings_table():
        monkeypatch.delenv(row.variable, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_defaults_are_the_embedded_back_ends_in_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OVERPROOF_HOME", str(tmp_path))

    settings = Settings.from_env()

    assert settings.bus_url == "memory:"
    assert settings.artifacts == f"file://{tmp_path}/artifacts"
    assert settings.database == f"sqlite:///{tmp_path}/results.db"
    assert settings.cache == tmp_path / "cache"


def test_home_is_the_users_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    assert Settings.from_env().home == tmp_path / "overproof"


def test_every_fault_is_listed_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERPROOF_LEASE_TTL_S", "-1")
    monkeypatch.setenv("OVERPROOF_DEVICE", "toaster")
    monkeypatch.setenv("OVERPROOF_MAX_ATTEMPTS", "many")

    with pytest.raises(SettingsError) as caught:
        Settings.from_env()

    message = str(caught.value)
    assert message.startswith("3 settings cannot be used")
    for name in ("LEASE_TTL_S", "DEVICE", "MAX_ATTEMPTS"):
        assert f"OVERPROOF_{name}: " in message


def test_lists_are_written_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERPROOF_PLUGINS", "one:register, two:register,")

    assert Settings.from_env().plugins == ("one:register", "two:register")


def test_empty_variables_count_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERPROOF_TIME_LIMIT_S", "")

    assert Settings.from_env().time_limit_s is None


def test_credentials_of_s3_may_come_from_the_usual_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "usual")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "usual-secret")
    monkeypatch.setenv("OVERPROOF_S3_ACCESS_KEY", "own")

    settings = Settings.from_env()

    assert settings.s3_access_key.get_secret_value() == "own"
    assert settings.s3_secret_key.get_secret_value() == "usual-secret"


def test_secrets_hide_and_are_known_to_the_redactor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERPROOF_KAFKA_PASSWORD", "kafka-secret")
    monkeypatch.setenv("OVERPROOF_S3_SECRET_KEY", "s3-secret")
    monkeypatch.setenv("OVERPROOF_DATABASE_URL", "postgresql+psycopg2://u:p%40ss-word@host/db")

    settings = Settings.from_env()

    assert set(settings.secrets()) == {"kafka-secret", "s3-secret", "p%40ss-word", "p@ss-word"}
    assert "secret" not in repr(settings.kafka_password) + repr(settings.s3_secret_key)


def test_child_is_told_nothing_of_bus_and_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERPROOF_DATABASE_URL", "postgresql+psycopg2://u:hunter2@host/db")
    monkeypatch.setenv("OVERPROOF_KAFKA_PASSWORD", "hunter2")

    told = Settings.from_env().for_child().revealed()

    assert "hunter2" not in str(told)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().device = "cpu"  # type: ignore[misc]


def test_retry_policy_follows_the_settings() -> None:
    retry = Settings(max_attempts=5, retry_base_s=1.0).retry

    assert (retry.max_attempts, retry.delay_s(2)) == (5, 4.0)


def test_table_has_every_setting_with_a_help_text() -> None:
    table = settings_table()

    assert [row.variable for row in table] == [variable_of(name) for name in Settings.model_fields]
    assert all(row.help.endswith(".") for row in table)
    by_name = {row.variable: row.default for row in table}
    assert by_name["OVERPROOF_LEASE_TTL_S"] == "60.0"
    assert by_name["OVERPROOF_LOG_JSON"] == "false"
    assert by_name["OVERPROOF_PRELOAD"] == "torch"
    assert by_name["OVERPROOF_KAFKA_PASSWORD"] == ""
