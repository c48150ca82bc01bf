"""The machine that numbers were measured on, in words."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

from overproof.ml.devices import device_facts, pick_device
from overproof.runtime.settings import usable_cores


def machine() -> dict[str, str | int | float]:
    """Cores, device, versions, and how busy the machine is at this moment.

    `load` is the mean number of runnable processes over the last minute: about 0 on a quiet
    machine before a measurement begins.
    """
    device = device_facts(pick_device())
    return {
        "cores": usable_cores(),
        "device": device.get("device_name", device["device"]),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "load": round(os.getloadavg()[0], 1),
    }
