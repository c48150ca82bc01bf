"""Where the numerics run."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from overproof.errors import SettingsError


def pick_device(name: str = "auto") -> torch.device:
    """The device called `name`: `auto`, `cpu`, `cuda` or `cuda:<index>`.

    `auto` is the first CUDA device if there is one, else the CPU.

    Raises:
        SettingsError: no such device on this machine.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingsError(f"device {name!r} is unknown; use auto, cpu or cuda[:index]") from None
    if device.type not in {"cpu", "cuda"}:
        raise SettingsError(f"device {name!r} is not supported; use auto, cpu or cuda[:index]")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SettingsError(
            f"device {name!r} is absent, this machine has {torch.cuda.device_count()} "
            "CUDA devices; use auto or cpu"
        )
    return device


def free_bytes(device: torch.device) -> int:
    """Memory that work on `device` may still take.

    Of a GPU what its driver and torch's cache have free; of a CPU what the machine has available,
    or less where the process lives in a control group with a limit.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + cached)
    return min([int(psutil.virtual_memory().available), *_group_bytes()])


def _group_bytes() -> list[int]:
    """What is left below the limit of the control group; empty without one."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = (
            (folder / name).read_text().strip() for name in ("memory.max", "memory.current")
        )
        # Pages of files count as used, and are given up when memory is needed.
        files = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return [max(0, int(limit) - int(used) + int(files.get("inactive_file", 0)))]
    except (OSError, ValueError):
        return []


def device_facts(device: torch.device) -> dict[str, str | int]:
    """What a manifest notes of the device: its kind and name, torch's version, CPU threads."""
    facts: dict[str, str | int] = {
        "device": device.type,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        facts["device_name"] = torch.cuda.get_device_name(device)
        facts["cuda"] = str(torch.version.cuda)
    return facts
