"""Calls commands as a person does, and checks the exit code."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from overproof.cli.app import app

SPEC = """
name: tiny
datasets: digits
methods: [random]
images_per_class: [1]
networks: [{name: convnet, params: {width: 8, depth: 2}}]
protocol: {name: dc, params: {epochs: 3}}
attacks: [{name: pgd, params: {steps: 20}, epsilons: [8/255]}]
seeds: [0, 1]
"""

NOBODY_LISTENS = "postgresql+psycopg2://user:secret@127.0.0.1:1/results"


def call(*arguments: object, code: int = 0) -> Result:
    """The result of `overproof ARGUMENTS`, which must end with `code`."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def read_json(*arguments: object) -> Any:
    """What `overproof ARGUMENTS --json` prints."""
    return json.loads(call(*arguments, "--json").stdout)
