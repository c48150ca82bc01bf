"""The compiled form of kernels.cpp, made once a process."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from overproof.errors import PluginUnavailable

_SOURCE = Path(__file__).with_name("kernels.cpp")
_COMPILERS = ("c++", "g++", "clang++")
_TIMEOUT_S = 120
# Fused products change the last bits, as they do in the libraries below torch. OpenMP's own
# library is left out of the link: torch brought one, and two would fight for the cores.
_COMPILE = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp", "-fno-math-errno", "-c")


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The kernels; compiled at the first call, which takes one or two seconds.

    The library is private to the process: no file is left behind that another machine, another
    user or an older version could have made.

    Raises:
        PluginUnavailable: there is no C++ compiler, or it fails.
    """
    compiler = next((path for name in _COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        raise PluginUnavailable("no C++ compiler")
    with tempfile.TemporaryDirectory(prefix="overproof-kernels-") as folder:
        compiled, linked = Path(folder) / "kernels.o", Path(folder) / "kernels.so"
        _run(compiler, *_COMPILE, str(_SOURCE), "-o", str(compiled))
        _run(compiler, "-shared", str(compiled), "-o", str(linked))
        try:
            return ctypes.CDLL(str(linked))
        except OSError as error:  # say, made for an OpenMP that torch does not bring
            raise PluginUnavailable(f"the compiled kernels cannot be loaded: {error}") from error


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PluginUnavailable(f"the C++ compiler fails: {error}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise PluginUnavailable(f"the C++ compiler fails: {lines[0]}")
