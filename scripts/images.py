"""Builds the container images with whichever engine is here: docker, podman or buildah.

Every base image is looked up by its tag and pinned by its digest, which the labels of the result
hold. Settings come from the environment:
  TORCH_BACKEND   cpu, or a CUDA version such as cu128 (default: cpu)
  TAG             version of the images (default: dev); workers' get the back-end after it
  REGISTRY        prefix of their names, with its slash at the end (default: none)
  CONTAINER_ENGINE, PYTHON_IMAGE, PYTHON_DIGEST, GO_IMAGE, …   instead of the defaults
  PIP_INDEX_URL, UV_DEFAULT_INDEX   a mirror of the package index
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.locks import COMPONENTS, ROOT

ENGINES = ("docker", "podman", "buildah")
# Those that other people run in production; ours is for trials.
INFRASTRUCTURE = {"minio": "infrastructure/minio"}
FOLDERS = {**COMPONENTS, **INFRASTRUCTURE}


class ImageError(Exception):
    """No image; the message says what to do."""


@dataclass(frozen=True)
class Image:
    """What is built from one Dockerfile.

    Attributes:
        name: of the component.
        arguments: those of the Dockerfile that stand before or in its stages, with defaults.
    """

    name: str
    arguments: Mapping[str, str]

    @property
    def dockerfile(self) -> Path:
        """Its recipe."""
        return ROOT / FOLDERS[self.name] / "Dockerfile"

    @property
    def bases(self) -> list[str]:
        """Arguments that name a base image; each has a `…_DIGEST` beside it."""
        return [name for name in self.arguments if name.endswith("_IMAGE")]

    def tag(self, environment: Mapping[str, str]) -> str:
        """Registry, name and version; the back-end is part of the version where it matters."""
        version = environment.get("TAG", "dev")
        if "TORCH_BACKEND" in self.arguments:
            version += f"-{environment.get('TORCH_BACKEND') or self.arguments['TORCH_BACKEND']}"
        return f"{environment.get('REGISTRY', '')}overproof-{self.name}:{version}"


def read_image(name: str) -> Image:
    """The image of a component, from its Dockerfile."""
    text = (ROOT / FOLDERS[name] / "Dockerfile").read_text()
    arguments: dict[str, str] = {}
    for argument, default in re.findall(r"^ARG (\w+)=?(.*)$", text, flags=re.MULTILINE):
        arguments.setdefault(argument, default)  # a later stage only takes it over
    return Image(name, arguments)


def build_command(
    engine: str, image: Image, digests: Mapping[str, str], environment: Mapping[str, str]
) -> list[str]:
    """The command that builds `image` from the root of the checkout.

    Args:
        engine: one of `ENGINES`.
        image: from `read_image`.
        digests: argument of a base image → its digest.
        environment: see the top of this file.
    """
    values = {
        name: environment[name] for name in image.arguments if environment.get(name) is not None
    }
    values |= {base.replace("_IMAGE", "_DIGEST"): digest for base, digest in digests.items()}
    if "REVISION" in image.arguments:
        values |= {"VERSION": environment.get("TAG", "dev"), "REVISION": _revision()}
    arguments = [f"--build-arg={name}={value}" for name, value in sorted(values.items())]
    if engine != "docker":
        # The form that they take by default knows no health check.
        arguments.append("--format=docker")
    place = image.dockerfile.relative_to(ROOT)
    return [engine, "build", f"--file={place}", f"--tag={image.tag(environment)}", *arguments, "."]


def main() -> int:
    """Builds the images that are asked for, or all; 1 when one cannot be built."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(FOLDERS)}; default: all")
    parser.add_argument("--dry-run", action="store_true", help="print the commands alone")
    options = parser.parse_args()
    try:
        if unknown := set(options.names) - set(FOLDERS):
            raise ImageError(f"no image {', '.join(unknown)}; there are {', '.join(FOLDERS)}")
        engine = "docker" if options.dry_run else find_engine(os.environ)
        for name in options.names or FOLDERS:
            image = read_image(name)
            digests = {} if options.dry_run else _digests(engine, image, os.environ)
            command = build_command(engine, image, digests, os.environ)
            sys.stdout.write(" ".join(command) + "\n")
            if not options.dry_run:
                _run(command, f"building {name}")
    except ImageError as error:
        sys.stderr.write(f"images: {error}\n")
        return 1
    return 0


def find_engine(environment: Mapping[str, str]) -> str:
    """The engine to build with.

    Raises:
        ImageError: there is none.
    """
    named = environment.get("CONTAINER_ENGINE")
    for engine in [named] if named else ENGINES:
        if shutil.which(engine):
            return engine
    raise ImageError(f"no engine to build images with: install one of {', '.join(ENGINES)}")


def _digests(engine: str, image: Image, environment: Mapping[str, str]) -> dict[str, str]:
    """Argument → digest of each base that is not pinned already."""
    found = {}
    for base in image.bases:
        if environment.get(base.replace("_IMAGE", "_DIGEST")) is None:
            found[base] = _look_up(engine, environment.get(base) or image.arguments[base])
    return found


def _look_up(engine: str, reference: str) -> str:
    _run([engine, "pull", reference], f"fetching {reference}")
    if engine == "buildah":
        command = [engine, "inspect", "--type=image", "--format={{.FromImageDigest}}", reference]
    else:
        command = [engine, "image", "inspect", "--format={{index .RepoDigests 0}}", reference]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    digest = re.search(r"sha256:[0-9a-f]{64}", done.stdout)
    if not digest:
        raise ImageError(
            f"{reference} has no digest, as one that was loaded from a file; set its …_DIGEST, "
            "empty to take it as it is"
        )
    return digest[0]


def _run(command: list[str], what: str) -> None:
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise ImageError(f"{what} failed; its output is above")


def _revision() -> str:
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
