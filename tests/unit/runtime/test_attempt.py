from __future__ import annotations

import random
import subprocess
import sys

import pytest

from overproof.runtime.attempt import chosen_device, clean_slate, environment_facts


def test_clean_slate_gives_equal_random_numbers_to_every_job() -> None:
    clean_slate()
    first = random.random()
    random.seed(99)

    clean_slate()

    assert random.random() == first


@pytest.mark.slow
def test_clean_slate_undoes_what_a_job_did_to_torch() -> None:
    torch = pytest.importorskip("torch")
    clean_slate()
    first = torch.rand(3)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.backends.cudnn.benchmark = True

    clean_slate()

    assert torch.equal(torch.rand(3), first)
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert not torch.backends.cudnn.benchmark
    assert torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)


def test_device_is_taken_as_written_unless_it_is_auto() -> None:
    assert chosen_device("cuda:1") == "cuda:1"
    assert chosen_device("auto") in {"cpu", "cuda"}


def test_facts_name_versions() -> None:
    facts = environment_facts()

    assert facts["python"].startswith("3.")
    assert {"overproof", "platform"} <= set(facts)


def test_child_without_torch_imports_neither_torch_nor_the_database() -> None:
    code = (
        "import sys, overproof.runtime.child;"
        "print([name for name in ('torch', 'sqlalchemy', 'kafka', 'minio') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
