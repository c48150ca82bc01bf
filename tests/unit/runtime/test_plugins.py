from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    "entry", ["no.such.module:register", "json:no_such", "json", "", "./mine.py:register"]
)
def test_entry_that_cannot_be_imported_is_named(entry: str) -> None:
    with pytest.raises(SettingsError, match="OVERPROOF_PLUGINS") as caught:
        load_plugins([entry])

    assert repr(entry) in str(caught.value)


def test_manifest_with_faults_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("models: 3")

    with pytest.raises(SettingsError, match=r"OVERPROOF_PLUGINS: .*mine\.yaml has 1 fault"):
        load_plugins([str(tmp_path / "mine.yaml")])


def test_manifest_with_an_impossible_date_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("models: 2020-99-99")

    with pytest.raises(SettingsError, match=r"mine\.yaml has 1 fault"):
        load_plugins([str(tmp_path / "mine.yaml")])


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_model_of_a_manifest_is_trained_and_attacked(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "def flat(width, classes, pixels):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(pixels * pixels, width), nn.ReLU(), "
        "nn.Linear(width, classes))\n"
    )
    (tmp_path / "mine.yaml").write_text(
        "models: [{name: flat, target: 'nets:flat', params: {width: 8}, "
        "arguments: {classes: classes, pixels: height}}]"
    )
    (tmp_path / "spec.yaml").write_text(
        "{name: mine, datasets: {name: digits, subset_per_class: 5}, whole_set: true, "
        "networks: {name: flat, params: {width: 16}}, protocol: {name: dc, params: {epochs: 2}}, "
        "attacks: [{name: fgsm, epsilons: [8/255]}]}"
    )
    own = {
        "OVERPROOF_HOME": str(tmp_path / "home"),
        "OVERPROOF_PLUGINS": str(tmp_path / "mine.yaml"),
        "OVERPROOF_LOCAL_WORKERS": "1",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }

    done = subprocess.run(
        [sys.executable, "-m", "overproof", "run", str(tmp_path / "spec.yaml"), "--json"],
        env=os.environ | own,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)
    assert row["network"] == "flat[width=16]"
    assert 0 <= row["robust"] <= row["clean"] <= 1
