"""Where the numerics run."""

from __future__ import annotations

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
