from __future__ import annotations

import pytest

from overproof.errors import SettingsError
from overproof.runtime.plugins import load_plugins

calls: list[str] = []


def register() -> None:
    calls.append("registered")


def test_function_is_called_once_however_often_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "a_plugin", __import__("sys").modules[__name__])

    load_plugins(["a_plugin:register"])
    load_plugins(["a_plugin:register"])

    assert calls == ["registered"]


@pytest.mark.parametrize("entry", ["no.such.module:register", "json:no_such_function", "json", ""])
def test_entry_that_cannot_be_imported_is_named(entry: str) -> None:
    with pytest.raises(SettingsError, match="OVERPROOF_PLUGINS") as caught:
        load_plugins([entry])

    assert repr(entry) in str(caught.value)
