"""Pins the dependencies of every component in locks/, with hashes and without addresses.

torch and the packages that it brings for accelerators stay out of these files, since their
builds differ by machine: locks/torch.txt pins their versions in one place, and an image
installs them with `uv pip install --torch-backend`.
"""

import argparse
import hashlib
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "locks"
COMPONENTS = {
    "distiller": "services/distiller",
    "trainer": "services/trainer",
    "attacker": "services/attacker",
    "aggregator": "services/aggregator",
    "dashboard": "dashboard",
}
TORCH = LOCKS / "torch.txt"
# What an image is built with: uv, and what makes a wheel of the library.
BUILD = LOCKS / "build.txt"
# By name or by prefix.
BUILT_PER_MACHINE = re.compile(r"(torch|torchvision|triton|pytorch-triton|nvidia-.*|cuda-.*)==")
PINNED_ONCE = re.compile(r"(torch|torchvision)==")


def inputs_hash(component: str) -> str:
    """What a lock was made from: SHA-256 of every requirement that leads to it.

    Args:
        component: a key of `COMPONENTS`.

    Returns:
        64 hex digits; the same until a dependency, an extra or an override changes.
    """
    folders = [ROOT / COMPONENTS[component], ROOT / "shared"]
    projects = [_toml(folder / "pyproject.toml")["project"] for folder in folders]
    keys = ("requires-python", "dependencies", "optional-dependencies")
    inputs = [{key: project.get(key) for key in keys} for project in projects]
    overrides = _toml(ROOT / "pyproject.toml")["tool"]["uv"]["override-dependencies"]
    return hashlib.sha256(json.dumps([inputs, overrides], sort_keys=True).encode()).hexdigest()


def build_requirements() -> list[str]:
    """What `BUILD` pins: the uv of scripts/setup and the library's build system."""
    version = re.search(r"^UV_VERSION=(\S+)$", (ROOT / "scripts/setup").read_text(), re.MULTILINE)
    assert version
    return [f"uv=={version[1]}", *_toml(ROOT / "shared/pyproject.toml")["build-system"]["requires"]]


def main() -> None:
    """Writes every lock; a pin that still fits stays, unless all are to be upgraded."""
    parser = argparse.ArgumentParser(description="Pin the dependencies of every component.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    options = ["--upgrade"] if parser.parse_args().upgrade else []
    pins = [
        block.partition(" ")[0] + "\n"
        for block in _compile("shared", TORCH, ["--extra", "ml", *options])
        if PINNED_ONCE.match(block)
    ]
    TORCH.write_text("# Written by `make lock`; install with --torch-backend.\n" + "".join(pins))
    for component, folder in COMPONENTS.items():
        lock = LOCKS / f"{component}.txt"
        blocks = _compile(folder, lock, ["--constraints", str(TORCH), *options])
        header = f"# Written by `make lock`.\n# inputs: sha256:{inputs_hash(component)}\n"
        lock.write_text(header + "".join(b for b in blocks if not BUILT_PER_MACHINE.match(b)))
    requirements = "".join(f"{each}\n" for each in build_requirements())
    blocks = _compile_from("-", BUILD, options, requirements)
    BUILD.write_text("# Written by `make lock`.\n" + "".join(blocks))


def _compile(folder: str, lock: Path, options: list[str]) -> list[str]:
    return _compile_from(f"{folder}/pyproject.toml", lock, options)


def _compile_from(source: str, lock: Path, options: list[str], text: str = "") -> list[str]:
    """One block of text for each pinned package: its line and those of its hashes."""
    command = [".tools/uv/bin/uv", "pip", "compile", "--quiet", source]
    command += ["--universal", "--generate-hashes", "--no-emit-index-url", "--no-annotate"]
    command += ["--no-header", "--no-emit-package", "overproof", "--output-file", str(lock)]
    subprocess.run([*command, *options], cwd=ROOT, check=True, input=text, text=True)
    return re.split(r"^(?=\S)", lock.read_text(), flags=re.MULTILINE)


def _toml(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text())


if __name__ == "__main__":
    main()
