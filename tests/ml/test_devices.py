from __future__ import annotations

import pytest
import torch

from overproof.errors import SettingsError
from overproof.ml.devices import device_facts, pick_device


def test_auto_is_cuda_only_where_there_is_one() -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"

    assert pick_device("auto").type == expected


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "meta", "", "cuda:x"])
def test_device_that_cannot_be_used_is_refused_by_name(name: str) -> None:
    with pytest.raises(SettingsError, match=f"device {name!r}.*use auto"):
        pick_device(name)


def test_facts_of_the_cpu_name_torch_and_threads() -> None:
    facts = device_facts(pick_device("cpu"))

    assert facts == {
        "device": "cpu",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
