"""Every distillation method on odd data, and what it refuses in one line before its first step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from overproof.catalog.distillation import DISTILLATION
from overproof.core.spec import PluginRef
from overproof.errors import InvalidData, InvalidSpec, MalformedArtifact
from overproof.ml.datasets.base import Dataset
from overproof.ml.diffusion.latents import PixelSpace
from overproof.ml.distill.base import Problem
from overproof.ml.distill.prototypes import PrototypeSearch
from overproof.ml.distill.real_images import RealImages
from overproof.ml.models.base import build
from overproof.ml.seeding import generator
from overproof.ml.train.experts import write_trajectory
from tests.ml.test_every_method import FOLLOWERS, ROWS, a_method, run

CPU = torch.device("cpu")
BATCHES = ("real_batch", "network_batch", "batch_size", "batch", "clusters", "candidates")


def one_line(error: BaseException) -> str:
    message = str(error)
    assert "\n" not in message
    return message


@pytest.fixture(scope="module")
def oblong(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    """Two classes of 12 colour images of 8 × 12 pixels, and what methods need before."""
    stream = generator(0, "oblong")
    labels = torch.arange(2).repeat(12)
    images = torch.randint(0, 128, (24, 3, 8, 12), generator=stream) + 100 * labels.view(
        -1, 1, 1, 1
    )
    dataset = Dataset(
        name="oblong",
        classes=2,
        mean=(0.4, 0.4, 0.4),
        std=(0.3, 0.3, 0.3),
        mirrors=True,
        train_images=images.to(torch.uint8),
        train_labels=labels,
        test_images=images.to(torch.uint8),
        test_labels=labels,
    )
    folder = tmp_path_factory.mktemp("oblong")
    network = PluginRef(name="convnet", params={"width": 4, "depth": 2})
    built = build(network, dataset.facts, 0).network
    start = torch.cat([each.detach().flatten() for each in built.parameters()])
    write_trajectory(torch.stack([start + 0.01 * epoch for epoch in range(4)]), folder / "expert")
    search = PrototypeSearch(
        PixelSpace(),
        RealImages(dataset, CPU),
        (3, (8, 12)),
        [2],
        expand=2,
        seed=0,
        device=CPU,
        rows_at_once=64,
    )
    for label in range(2):
        search.step(label)
    search.prototypes(2).write(folder / "prototypes")
    normed = PluginRef(name="convnet", params={"width": 4, "depth": 2, "norm": "batch"})
    teacher = build(normed, dataset.facts, 1)
    teacher(images[:8].float() / 255)  # its batch norms have seen images
    return Problem(
        dataset=dataset,
        network=network,
        images_per_class=2,
        seed=3,
        device=CPU,
        experts=[folder / "expert"],
        teacher=teacher.eval().requires_grad_(False),
        prototypes=folder / "prototypes",
    )


@pytest.mark.parametrize("name", ROWS)
def test_colour_images_that_are_not_square_are_distilled(name: str, oblong: Problem) -> None:
    made = run(a_method(name, oblong))

    assert made.images.shape == (len(made.labels), 3, 8, 12)
    assert made.images.isfinite().all()


@pytest.mark.parametrize("name", ROWS)
def test_batches_larger_than_the_data_take_what_there_is(name: str, oblong: Problem) -> None:
    fields = DISTILLATION.get(name).params.model_fields
    large = {field: 300 for field in BATCHES if field in fields}
    least = {field: 1 for field in ("iterations", "outer_loop", "epochs") if field in fields}

    made = run(a_method(name, oblong, **large | least))

    assert made.images.isfinite().all()


@pytest.mark.parametrize("name", ROWS)
def test_class_without_images_is_named(name: str, problem: Problem) -> None:
    dataset = problem.dataset
    kept = dataset.train_labels != 4
    gap = replace(
        dataset, train_images=dataset.train_images[kept], train_labels=dataset.train_labels[kept]
    )

    with pytest.raises(InvalidData, match="class 4 has 0 training images") as caught:
        a_method(name, replace(problem, dataset=gap))
    assert one_line(caught.value)


@pytest.mark.parametrize("name", ROWS)
def test_parameters_that_do_not_exist_are_named(name: str) -> None:
    params = ROWS[name][0] | {"wobble": 3}

    with pytest.raises(InvalidSpec, match="wobble"):
        DISTILLATION.resolve(PluginRef(name=name, params=params))


@pytest.mark.parametrize(
    "name", [name for name in ROWS if "strategy" in DISTILLATION.get(name).params.model_fields]
)
def test_augmentation_that_does_not_exist_is_refused(name: str) -> None:
    params = ROWS[name][0] | {"strategy": "crop_wobble"}

    with pytest.raises(InvalidSpec, match="strategy"):
        DISTILLATION.resolve(PluginRef(name=name, params=params))


@pytest.mark.parametrize("name", FOLLOWERS)
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "other network"])
def test_unusable_expert_is_named_before_the_first_step(
    name: str, damage: str, problem: Problem, tmp_path: Path
) -> None:
    path = tmp_path / "expert"
    whole = problem.experts[0].read_bytes()
    match damage:
        case "empty":
            path.write_bytes(b"")
        case "truncated":
            path.write_bytes(whole[: len(whole) // 2])
        case "other network":
            write_trajectory(torch.zeros(4, 7), path)

    with pytest.raises(MalformedArtifact, match="expert") as caught:
        a_method(name, replace(problem, experts=[problem.experts[1], path]))
    assert str(path) in one_line(caught.value)
