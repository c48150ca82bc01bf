"""What the documents say is true: commands run, names exist, tables match the code."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import torch

from overproof.cli.app import app
from overproof.core.spec import ExperimentSpec
from overproof.experiments.planner import plan
from overproof.runtime.metrics import ALL
from overproof.runtime.settings import settings_table
from scripts.docs import DOCS, PAGES
from tests.ml.sources import files_of, some_arrays, write_folder

ROOT = Path(__file__).resolve().parents[2]
BASES = [ROOT, ROOT / "shared/src/overproof"]
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))
# Folders that the README names and that no checkout has: they lie in OVERPROOF_HOME.
OF_A_HOME = {"artifacts/", "cache/"}

# Stands where the README's commands name examples/quickstart.yaml: the same form, seconds of work.
TINY_SPEC = """
name: quickstart
datasets: {name: digits, subset_per_class: 10, test_subset_per_class: 2}
methods: [random]
images_per_class: [1]
networks: [{name: convnet, params: {width: 4, depth: 2}}]
protocol: {name: dc, params: {epochs: 2}}
attacks: [{name: fgsm, epsilons: [8/255]}]
seeds: [0]
"""


def blocks(document: Path, language: str) -> list[str]:
    """Contents of the fenced blocks of a language."""
    pattern = rf"^```{language}\n(.*?)^```$"
    return re.findall(pattern, document.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands(document: Path, program: str) -> list[list[str]]:
    """The arguments of every `$ PROGRAM …` in the document's console blocks, in order."""
    lines = [line for block in blocks(document, "console") for line in block.splitlines()]
    return [
        shlex.split(line)[2:]
        for line in lines
        if line.startswith("$ ") and line.split()[1] == program
    ]


def paths_named_in(document: Path) -> set[str]:
    """Targets of links, and what stands in backticks and looks like a path of the checkout."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = {link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link}
    ticked = re.findall(r"`([\w.-]+(?:/[\w.-]+)*/?)`", text)
    return links | {path for path in ticked if "/" in path} - OF_A_HOME


# ---- commands ----------------------------------------------------------------------------------


@dataclass
class Reader:
    """Somebody who types the README's commands, in a folder laid out as the README assumes."""

    folder: Path
    ids: dict[str, str] = field(default_factory=dict)

    def type(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        """Run `overproof ARGUMENTS`; ids are those that earlier commands printed."""
        done = subprocess.run(
            ["overproof", *map(self.meant, arguments)],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        for found in re.findall(r"\b(?:exp|job)-[0-9a-f]{16,}\b", done.stdout):
            self.ids[found[:3]] = found
        return done

    def meant(self, argument: str) -> str:
        """The real id for one that the README makes up, everything else as it is."""
        is_id = re.fullmatch(r"(?:exp|job)-[0-9a-f]+", argument)
        return self.ids[argument[:3]] if is_id else argument

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if "OVERPROOF" not in name}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        # One child, so that torch is imported once.
        own = {"OVERPROOF_HOME": str(self.folder / "home"), "OVERPROOF_LOCAL_WORKERS": "1"}
        return kept | {"PATH": path} | own


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "quickstart.yaml").write_text(TINY_SPEC)
    write_folder(tmp_path / "photographs", files_of(some_arrays()))
    images = torch.randn(10, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.save({"data": [[images, torch.arange(10)]]}, tmp_path / "res_DC_digits.pt")
    return Reader(tmp_path)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_command_of_the_readme_that_ends_works(reader: Reader) -> None:
    typed = [arguments for arguments in commands(README, "overproof") if arguments != ["dashboard"]]

    for arguments in typed:
        done = reader.type(arguments)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr

    assert len(typed) > 15
    assert (reader.folder / "report.html").stat().st_size > 0


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.dashboard
def test_dashboard_of_the_readme_answers(reader: Reader) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert ["dashboard"] in commands(README, "overproof")

    with subprocess.Popen(
        ["overproof", "dashboard", f"--port={port}", f"--app={ROOT / 'dashboard' / 'app.py'}"],
        cwd=reader.folder,
        env=reader.environment(),
    ) as served:
        try:
            while not answers(f"http://127.0.0.1:{port}/_stcore/health"):
                assert served.poll() is None
                time.sleep(0.2)
        finally:
            served.terminate()


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except URLError:
        return False


def test_readme_shows_every_command_that_a_first_user_needs() -> None:
    shown = {arguments[0] for arguments in commands(README, "overproof")}
    known = {
        command.name or command.callback.__name__
        for command in app.registered_commands
        if command.callback
    }
    groups = {group.name for group in app.registered_groups}

    assert known <= shown
    assert shown <= known | groups


@pytest.mark.parametrize("document", [README, CONTRIBUTING], ids=lambda path: path.name)
def test_targets_of_make_that_are_named_exist(document: Path) -> None:
    targets = set(
        re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    )

    named = set(re.findall(r"(?:\$ |`(?:\w+=\S+ )?)make ([a-z0-9-]+)", document.read_text()))

    assert named
    assert named <= targets


def test_modules_that_are_run_exist() -> None:
    modules = [arguments[1] for arguments in commands(README, "python")]

    assert len(modules) == 4
    assert [name for name in modules if find_spec(f"{name}.__main__") is None] == []


# ---- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document", [README, CONTRIBUTING, ROOT / "ARCHITECTURE.md"], ids=lambda path: path.name
)
def test_paths_that_are_named_exist(document: Path) -> None:
    paths = paths_named_in(document)

    assert paths
    missing = [path for path in paths if not any((base / path).exists() for base in BASES)]
    assert missing == []


def test_readmes_of_parts_link_to_what_exists() -> None:
    readmes = [*ROOT.glob("services/*/README.md"), ROOT / "shared/README.md"]
    readmes.append(ROOT / "dashboard/README.md")

    for readme in readmes:
        links = re.findall(r"\]\(([^)#]+)\)", readme.read_text())
        assert [link for link in links if not (readme.parent / link).exists()] == [], readme
        assert readme.read_text().startswith("# ")


def test_tree_of_the_architecture_names_what_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    [tree] = re.findall(r"^## The tree\n\n```\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)

    paths = list(tree_paths(tree))

    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_tree_of_the_architecture_names_every_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = (ROOT / "shared/src/overproof").glob("*/__init__.py")

    assert [
        path.parent.name for path in packages if f"\n    {path.parent.name}/ " not in text
    ] == []


def tree_paths(tree: str) -> Iterator[str]:
    """Paths of an indented list of folders and files, a name and a description a line."""
    above: list[tuple[int, str]] = []
    for line in tree.splitlines():
        indent = len(line) - len(line.lstrip())
        above = [each for each in above if each[0] < indent]
        above.append((indent, line.split()[0]))
        yield "".join(name for _, name in above)


@pytest.mark.parametrize(
    "document", [README, ROOT / "dashboard/README.md"], ids=["README.md", "dashboard"]
)
def test_settings_that_are_named_exist(document: Path) -> None:
    named = set(re.findall(r"OVERPROOF_[A-Z0-9_]+", document.read_text()))

    assert named
    assert named <= {row.variable for row in settings_table()}


# ---- tables and examples -----------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_tables_are_what_the_code_says(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), "run make docs"


def test_tables_hold_every_setting_and_metric_once() -> None:
    settings = re.findall(r"^\| `(OVERPROOF_\w+)` ", (DOCS / "settings.md").read_text(), flags=re.M)
    metrics = re.findall(r"^\| `(overproof_\w+)` ", (DOCS / "metrics.md").read_text(), flags=re.M)

    assert settings == [row.variable for row in settings_table()]
    assert metrics == [metric.name for metric in ALL]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_can_be_planned(path: Path) -> None:
    def some_version(name: str) -> str:
        return "0" * 64

    assert plan(ExperimentSpec.read(path), some_version).units


def test_spec_that_the_readme_explains_is_the_quickstart() -> None:
    [explained] = blocks(README, "yaml")

    assert ExperimentSpec.parse(explained) == ExperimentSpec.read(
        ROOT / "examples" / "quickstart.yaml"
    )
