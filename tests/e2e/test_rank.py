"""`overproof.rank` on real digits, as a script calls it."""

from __future__ import annotations

import csv
import io
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import overproof
from overproof.core.spec import DatasetSpec
from overproof.errors import InvalidData
from overproof.ml.datasets.base import Dataset, load

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

FAST = {
    "dataset": "digits",
    "model_name": {"name": "convnet", "params": {"width": 4, "depth": 2}},
    "num_epochs": 5,
    "real_num_epochs": 1,
    "real_batch_size": 128,
    "num_eval": 2,
    "learning_rates": "0.05",
    "teacher_epochs": 1,
}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERPROOF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OVERPROOF_DEVICE", "cpu")
    monkeypatch.setenv("OVERPROOF_LOCAL_WORKERS", "1")


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load(DatasetSpec(name="digits", version="bundled-1"), None)


def first_of_each_class(data: Dataset, count: int = 1) -> torch.Tensor:
    chosen = [torch.nonzero(data.train_labels == c).flatten()[:count] for c in range(10)]
    return data.train_images[torch.cat(chosen)].float() / 255


def test_set_with_soft_labels_is_ranked_and_written(data: Dataset, tmp_path: Path) -> None:
    images = first_of_each_class(data)
    soft = 4.0 * torch.eye(10)
    path = tmp_path / "results" / "scores.csv"

    found = overproof.rank(
        images, soft, 0.05, {**FAST, "ipc": 1}, soft_label_criterion="kl", save_path=path
    )

    accuracies = {role: list(runs.values()) for role, runs in found.accuracies.items()}
    assert {len(values) for values in accuracies.values()} == {2}
    mean = {role: statistics.fmean(values) for role, values in accuracies.items()}
    assert found.hlr.value == pytest.approx(mean["whole-hard"] - mean["distilled-hard"])
    assert found.ior.value == pytest.approx(mean["distilled"] - mean["random"])
    assert found.hlr_deviation is not None
    assert found.hlr_deviation >= 0
    written = list(csv.DictReader(io.StringIO(path.read_text())))
    assert [float(row["hard_label_recovery"]) for row in written] == pytest.approx(
        [
            w - h
            for w, h in zip(*(accuracies[r] for r in ("whole-hard", "distilled-hard")), strict=True)
        ]
    )
    assert set(written[0]) == {"hard_label_recovery", "improvement_over_random", "lrs"}
    assert all(0 < value < 1 for value in mean.values())
    assert 0 < (found.score.value or 0) < 1

    again = overproof.rank(images, soft, 0.05, FAST, soft_label_criterion="kl", lrs_lambda=0.9)

    assert again.accuracies == found.accuracies
    assert again.score.value != found.score.value


def test_sets_that_do_not_fit_are_refused_before_any_work(data: Dataset) -> None:
    images = first_of_each_class(data)

    with pytest.raises(InvalidData, match="1 images per class, ipc says 10"):
        overproof.rank(images, config={**FAST, "ipc": 10})
    with pytest.raises(InvalidData, match="give labels"):
        overproof.rank(images[:7], config=FAST)
    with pytest.raises(InvalidData, match="no teacher is at"):
        overproof.rank(images, config={**FAST, "soft_label_mode": "S", "teacher_dir": "nowhere"})


def test_importing_overproof_imports_no_torch() -> None:
    code = "import sys, overproof; print('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


def test_options_are_those_of_the_function(data: Dataset) -> None:
    unknown: dict[str, Any] = {"epochs": 3}

    with pytest.raises(Exception, match="epochs"):
        overproof.rank(first_of_each_class(data), config=FAST, **unknown)
