from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import call, read_json


@pytest.mark.parametrize(
    "kind",
    ["distillation", "attacks", "models", "datasets", "metrics", "protocols", "tasks"],
)
def test_every_plugin_can_be_listed_and_shown(home: Path, kind: str) -> None:
    listed = read_json("plugins", "list", kind)

    assert listed
    for info in listed:
        assert read_json("plugins", "show", kind, info["name"]) == info
        assert info["summary"] in call("plugins", "show", kind, info["name"]).stdout


def test_shown_parameters_have_bounds_and_defaults(home: Path) -> None:
    params = {
        param["name"]: param for param in read_json("plugins", "show", "attacks", "pgd")["params"]
    }

    assert params["steps"] == {
        "name": "steps",
        "type": "integer, at least 1, at most 100000",
        "default": 10,
        "required": False,
    }


def test_list_takes_a_pattern(home: Path) -> None:
    assert [i["name"] for i in read_json("plugins", "list", "attacks", "--pattern", "bim*")] == [
        "bim-linf"
    ]
