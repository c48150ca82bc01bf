"""Where things lie: the checkout, the servers' data folder, the cache shared by checkouts."""

import fcntl
import hashlib
import os
import pwd
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / ".servers"
LOGS = DATA / "logs"
# Data of servers that refuse to run as root, where others cannot enter the checkout.
OPEN_DATA = Path("/var/lib/overproof-test-servers")


def _is_writable(folder: str) -> bool:
    return bool(folder) and Path(folder).is_dir() and os.access(folder, os.W_OK)


def home() -> Path:
    """A home folder that can be written, also where HOME is empty or read-only."""
    for candidate in (os.environ.get("HOME", ""), pwd.getpwuid(os.getuid()).pw_dir):
        if _is_writable(candidate):
            return Path(candidate)
    fallback = Path(tempfile.gettempdir()) / f"overproof-home-{os.getuid()}"
    fallback.mkdir(mode=0o700, exist_ok=True)
    return fallback


def cache() -> Path:
    """What is slow to get and the same for every checkout: Kafka's jars, the MinIO binary."""
    own = os.environ.get("OVERPROOF_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(home() / ".cache")
    folder = Path(own) if own else Path(base) / "overproof"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def checkout_id() -> str:
    """Tells this checkout's servers from others on the same machine."""
    return hashlib.sha256(str(DATA).encode()).hexdigest()[:8]


def environment(**extra: str) -> dict[str, str]:
    """This process's environment for a tool that insists on a usable HOME."""
    return {**os.environ, "HOME": str(home()), **extra}


def reachable_by_others(folder: Path) -> bool:
    """Whether a user without privileges can enter the folder: every parent is open to all."""
    return all(parent.stat().st_mode & 0o001 for parent in folder.absolute().parents)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Holds an exclusive lock between processes; it ends with the process that holds it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
