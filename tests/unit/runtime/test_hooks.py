from __future__ import annotations

import inspect

import pytest

from overproof.runtime.hooks import HookChain, Hooks


class Recorder(Hooks):
    def __init__(self) -> None:
        self.outages: list[str] = []

    def after_outage(self, backend: str) -> None:
        self.outages.append(backend)


class Broken(Hooks):
    def after_outage(self, backend: str) -> None:
        raise RuntimeError("a broken hook")


def test_every_hook_is_passed_on() -> None:
    hooks = {name for name, _ in inspect.getmembers(Hooks, inspect.isfunction)}

    overridden = {name for name in hooks if name in vars(HookChain)}

    assert overridden - {"__init__"} == hooks - {"__init__"}


def test_broken_hook_keeps_no_other_from_being_called(caplog: pytest.LogCaptureFixture) -> None:
    before, after = Recorder(), Recorder()

    HookChain([before, Broken(), after]).after_outage("bus")

    assert (before.outages, after.outages) == (["bus"], ["bus"])
    assert "hook after_outage of Broken failed" in caplog.text
