"""What a distillation shows while it runs, and what it leaves when it diverges."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from overproof.catalog.distillation import DISTILLATION, DistributionMatchingParams
from overproof.core.clock import ManualClock
from overproof.core.ids import UnitId
from overproof.core.spec import DatasetSpec, DistilledSetBody, JobSpec, PluginRef, Unit
from overproof.errors import NonFiniteLoss, OutOfMemory, ShuttingDown
from overproof.experiments.units import make_unit
from overproof.handlers.distill import SynthesisHandler
from overproof.handlers.resume import run_to_end
from overproof.handlers.showing import Showing
from overproof.ml.datasets.base import load
from overproof.ml.distill.base import Problem
from overproof.ml.distill.distribution_matching import DistributionMatching
from overproof.runtime.handler import UnitOutput

Contexts = Callable[..., Any]

DIGITS = DatasetSpec(name="digits", subset_per_class=20, test_subset_per_class=5)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def a_set(method: str = "dm", network: Mapping[str, str] | None = None, **params: Any) -> Unit:
    if method == "dm":
        params = {"iterations": 4, "real_batch": 8} | params
    body = DistilledSetBody(
        dataset=DIGITS,
        method=DISTILLATION.canonical(PluginRef(name=method, params=params)),
        network=PluginRef(name="convnet", params={"width": 4, "depth": 2, **(network or {})}),
        images_per_class=2,
        seed=0,
    )
    return make_unit("synthesis", body)


def run(context: Any, unit: Unit) -> UnitOutput:
    return SynthesisHandler().run(JobSpec.of((unit,)), context)[UnitId(unit.id)]


def shown(context: Any) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(context.shown.iterdir())}


def pixels_of(path: Path) -> Any:
    with Image.open(path) as picture:
        return np.asarray(picture)


def picture_of(images: torch.Tensor) -> Any:
    """(20, 1, 8, 8) → (80, 16), written out."""
    grid = np.zeros((80, 16), dtype=np.uint8)
    for number, image in enumerate(images):
        row, column = divmod(number, 2)
        levels = np.rint(np.clip(image[0].numpy(), 0, 1) * 255)
        grid[8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = levels
    return grid


def test_run_shows_losses_pictures_and_what_they_are_of(a_context: Contexts) -> None:
    context = a_context()

    output = run(context, a_set())

    files = shown(context)
    pictures = [f"images-{step:012d}.png" for step in range(5)]
    assert list(files) == [*pictures, "index.json", "losses.csv"]
    assert json.loads(files["index.json"]) == {
        "method": "distribution-matching",
        "dataset": "digits",
        "images_per_class": 2,
        "total_steps": 4,
        "rows": ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
        "columns": 2,
    }
    head, *rows = files["losses.csv"].decode().splitlines()
    assert head == "step,loss"
    assert [row.split(",")[0] for row in rows] == ["1", "2", "3", "4"]
    assert float(rows[-1].split(",")[1]) == context.scalars["loss"] == output.result["loss"]


def test_last_picture_is_of_the_set_a_row_for_each_class(a_context: Contexts) -> None:
    context = a_context()

    images = load_file(run(context, a_set()).files["images"])["images"]

    first, last = (pixels_of(context.shown / f"images-{step:012d}.png") for step in (0, 4))
    assert np.array_equal(last, picture_of(images))
    assert not np.array_equal(first, last)


def test_selection_shows_what_it_selected(a_context: Contexts) -> None:
    context = a_context()

    run(context, a_set("random"))

    assert list(shown(context)) == ["images-000000000000.png", "index.json"]


def test_long_run_shows_eleven_pictures(a_context: Contexts) -> None:
    context = a_context()

    run(context, a_set(iterations=43))

    steps = [int(path.stem.partition("-")[2]) for path in sorted(context.shown.glob("*.png"))]
    assert steps == [0, 5, 10, 15, 20, 25, 30, 35, 40, 43]


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_resumed_run_shows_what_a_straight_one_shows(a_context: Contexts, stop_after: int) -> None:
    straight = a_context("straight")
    run(straight, a_set())

    with pytest.raises(ShuttingDown):
        run(a_context("stopped", stop_after=stop_after, checkpoint_every=1), a_set())
    resumed = a_context("stopped")
    run(resumed, a_set())

    assert resumed.steps[0][0] == stop_after + 1
    assert shown(resumed) == shown(straight)


def test_rows_after_the_checkpoint_are_not_doubled(a_context: Contexts) -> None:
    straight = a_context("straight")
    run(straight, a_set())

    # Two steps were shown beyond the checkpoint that the next attempt begins at.
    with pytest.raises(ShuttingDown):
        run(a_context("dead", stop_after=3, checkpoint_every=3), a_set())
    for late in (a_context("dead").shown.parent / "checkpoints").iterdir():
        late.rename(late.with_name("1"))
    resumed = a_context("dead")
    with pytest.raises(ShuttingDown):
        run(a_context("early", stop_after=1, checkpoint_every=1), a_set())
    (resumed.shown.parent / "checkpoints" / "1").write_bytes(
        (resumed.shown.parent.parent / "early" / "checkpoints" / "1").read_bytes()
    )
    run(resumed, a_set())

    assert resumed.steps[0][0] == 2
    assert shown(resumed) == shown(straight)


def test_diverged_run_names_step_and_remedy_and_keeps_the_last_good_state(
    a_context: Contexts,
) -> None:
    context = a_context()
    # Without normalisation the features grow with the images.
    growing = a_set(iterations=60, learning_rate=1e6, network={"norm": "none"})

    with pytest.raises(NonFiniteLoss) as caught:
        run(context, growing)

    message = str(caught.value)
    assert "\n" not in message
    assert "lower the learning rate; the state after step" in message
    (kept,) = (context.shown.parent / "checkpoints").iterdir()
    assert message.endswith(f"the state after step {kept.name} is kept")
    assert int(kept.name) == len(context.steps)
    assert all(bool(tensor.isfinite().all()) for tensor in load_file(kept).values())
    rows = (context.shown / "losses.csv").read_text().splitlines()[1:]
    assert [int(row.split(",")[0]) for row in rows][-1] >= int(kept.name)


class Overflowing(DistributionMatching):
    """Its third step leaves the range of numbers, with a loss that was good before."""

    def step(self, index: int) -> Mapping[str, float]:
        scalars = super().step(index)
        if index == 2:
            self._synthetic.values[4, 1] = torch.inf
        return scalars


def test_state_that_is_not_finite_is_never_saved(a_context: Contexts) -> None:
    context = a_context(checkpoint_every=3)
    unit = a_set()
    body = DistilledSetBody.model_validate(unit.body)
    dataset = load(DIGITS, None)
    method = Overflowing(
        DistributionMatchingParams.model_validate(body.method.params),
        Problem(
            dataset=dataset,
            network=body.network,
            images_per_class=2,
            seed=0,
            device=torch.device("cpu"),
        ),
    )
    clock = ManualClock()

    with pytest.raises(NonFiniteLoss, match=r"images: not finite after step 3; .* step 2 is kept"):
        run_to_end(method, context, showing=Showing(method, body, dataset, context, clock=clock))

    (kept,) = (context.shown.parent / "checkpoints").iterdir()
    assert kept.name == "2"
    assert bool(load_file(kept)["images"].isfinite().all())


def test_run_that_does_not_fit_is_refused_before_its_first_step(
    a_context: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = a_context()
    fitting = a_context("fitting")
    run(fitting, a_set())
    free = int(fitting.facts["estimated_bytes"]) - 1
    monkeypatch.setattr("overproof.ml.devices.free_bytes", lambda device: free)

    with pytest.raises(OutOfMemory, match=r"distribution-matching takes .* real_batch 7 or") as why:
        run(context, a_set())

    assert "\n" not in str(why.value)
    assert context.steps == []
