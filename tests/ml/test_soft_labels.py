"""Labels of a teacher: what is recorded, replayed, read back and trained on."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchvision.transforms.v2 import functional as oracle

from overproof.core.spec import PluginRef
from overproof.errors import (
    InvalidData,
    InvalidSpec,
    MalformedArtifact,
    NonFiniteLoss,
    ShapeError,
)
from overproof.ml.checkpoints import save_weights
from overproof.ml.datasets.base import Dataset
from overproof.ml.models.base import Normalized, build
from overproof.ml.train.loop import Training
from overproof.ml.train.losses import Loss
from overproof.ml.train.means import Means
from overproof.ml.train.recipe import Recipe
from overproof.ml.train.soft_labels import LabelMaking, SoftLabels, ViewPlan
from overproof.ml.train.teachers import load_teacher

CPU = torch.device("cpu")
TEACHER = PluginRef(name="convnet", params={"width": 4, "depth": 2, "norm": "batch"})
PLAN = ViewPlan(
    epochs=3,
    batch_size=8,
    smallest_crop=0.3,
    shift=0,
    mirrors=True,
    mixing="cutmix",
    tiles=2,
    seed=5,
)
PLANS = {
    "cutmix": PLAN,
    "mixup": replace(PLAN, mixing="mixup", smallest_crop=1.0, shift=2, tiles=1),
    "none": replace(PLAN, mixing="none", mirrors=False, tiles=1),
}


@pytest.fixture
def images(digits: Dataset) -> Tensor:
    return digits.train_images[:21].float() / 255


@pytest.fixture
def teacher(digits: Dataset) -> Normalized:
    model = build(TEACHER, digits.facts, 1)
    for batch in torch.split(digits.train_images.float() / 255, 50):
        model(batch)  # so that the running statistics are those of digits
    return model.eval()


def labelled(
    teacher: Normalized, images: Tensor, path: Path, plan: ViewPlan = PLAN, **over: Any
) -> SoftLabels:
    settings: dict[str, Any] = {"teacher_mode": "eval", "rows_at_once": 6} | over
    making = LabelMaking(teacher, images, plan, device=CPU, **settings)
    for index in range(making.total_steps):
        making.step(index)
    making.write(path)
    return SoftLabels(path, images=len(images), classes=10, epochs=plan.epochs)


def shown_by_hand(images: Tensor, tensors: dict[str, Tensor], epoch: int, row: int) -> Tensor:
    """One image as the file says, by torchvision and loops over pixels."""

    def seen(number: int) -> Tensor:
        top, left, height, width = tensors["boxes"][epoch, number].tolist()
        if (height, width) == (8, 8):  # a shift, beyond whose border there is black
            padded = torch.nn.functional.pad(images[number], (4, 4, 4, 4))
            image = padded[:, 4 + top : 12 + top, 4 + left : 12 + left]
        else:
            image = oracle.resized_crop(
                images[number], top, left, height, width, [8, 8], antialias=True
            )
        if tensors["mirrored"][epoch, number]:
            image = image.flip(2)
        columns, rows = tensors["tiles"][epoch, number].tolist()
        width = 8 // len(columns)
        image = torch.cat([image[..., width * c : width * (c + 1)] for c in columns], dim=2)
        return torch.cat([image[:, width * r : width * (r + 1)] for r in rows], dim=1)

    share = float(tensors["shares"][epoch, row])
    mine, other = seen(row), seen(int(tensors["partners"][epoch, row]))
    mixed = share * mine + (1 - share) * other
    top, left, height, width = tensors["mix_boxes"][epoch, row].tolist()
    mixed[:, top : top + height, left : left + width] = other[
        :, top : top + height, left : left + width
    ]
    return mixed


@pytest.mark.parametrize("name", PLANS)
def test_labels_are_what_the_teacher_says_of_the_recorded_view(
    name: str, teacher: Normalized, images: Tensor, tmp_path: Path
) -> None:
    labelled(teacher, images, tmp_path / "labels", PLANS[name])

    tensors = load_file(tmp_path / "labels")
    for epoch in range(3):
        views = torch.stack([shown_by_hand(images, tensors, epoch, row) for row in range(21)])
        expected = teacher(views).detach()
        torch.testing.assert_close(tensors["logits"][epoch].float(), expected, atol=2e-3, rtol=2e-3)


def test_another_process_replays_any_batch_in_any_order(
    teacher: Normalized, images: Tensor, digits: Dataset, tmp_path: Path
) -> None:
    labelled(teacher, images, tmp_path / "labels")
    save_weights(teacher, tmp_path / "teacher")
    save_file({"images": images}, tmp_path / "images")
    script = f"""
import torch
from pathlib import Path
from safetensors.torch import load_file
from overproof.core.spec import PluginRef
from overproof.ml.checkpoints import load_weights
from overproof.ml.models.base import build
from overproof.ml.shapes import ImageFacts
from overproof.ml.train.soft_labels import SoftLabels
folder = Path({str(tmp_path)!r})
images = load_file(folder / "images")["images"]
facts = ImageFacts(channels=1, size=(8, 8), classes=10, mean={digits.mean}, std={digits.std})
teacher = build(PluginRef(name="convnet", params={dict(TEACHER.params)!r}), facts, 0)
load_weights(teacher, folder / "teacher")
teacher.eval()
labels = SoftLabels(folder / "labels", images=21, classes=10, epochs=3)
for rows in ([20, 3, 3, 11], [0], list(range(21))):
    for epoch in (2, 0, 1):
        shown = labels.epoch(epoch).show(images, torch.tensor(rows))
        said = labels.logits(epoch)[rows]
        torch.testing.assert_close(teacher(shown).detach(), said, atol=2e-3, rtol=2e-3)
print("replayed")
"""

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert done.stdout == "replayed\n", done.stderr


def test_replay_goes_through_every_image_once_in_the_recorded_batches(
    teacher: Normalized, images: Tensor, tmp_path: Path
) -> None:
    labels = labelled(teacher, images, tmp_path / "labels")
    epoch = labels.epoch(1)

    batches = list(labels.replay(images, 1, batch_size=8))

    assert [len(pixels) for pixels, _ in batches] == [8, 8, 5]
    assert torch.equal(torch.cat([said for _, said in batches]), labels.logits(1)[epoch.order])
    shown = torch.cat([pixels for pixels, _ in batches])
    torch.testing.assert_close(shown, epoch.show(images, epoch.order), atol=1e-6, rtol=0)
    for rows in torch.split(epoch.order, 8):  # partners come from the same batch
        assert set(epoch.mixes.partners[rows].tolist()) == set(rows.tolist())


def test_mixup_shares_follow_their_distribution(images: Tensor) -> None:
    plan = replace(PLAN, mixing="mixup", batch_size=1)
    shares = torch.cat([plan.draw(epoch, 21, (8, 8)).mixes.shares for epoch in range(50)])

    # Beta(0.8, 0.8): mean 1/2, variance 1 / (4 · 2.6).
    assert float(shares.mean()) == pytest.approx(0.5, abs=0.03)
    assert float(shares.var()) == pytest.approx(1 / 10.4, abs=0.01)


def test_stopped_labelling_equals_the_straight_run_and_depends_on_its_seed(
    teacher: Normalized, images: Tensor, tmp_path: Path
) -> None:
    labelled(teacher, images, tmp_path / "straight")
    labelled(teacher, images, tmp_path / "other", replace(PLAN, seed=6))

    first = LabelMaking(teacher, images, PLAN, teacher_mode="eval", device=CPU, rows_at_once=6)
    first.step(0)
    second = LabelMaking(teacher, images, PLAN, teacher_mode="eval", device=CPU, rows_at_once=6)
    second.load_state(first.state())
    second.step(1)
    second.step(2)
    second.write(tmp_path / "resumed")

    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "straight").read_bytes()
    assert (tmp_path / "other").read_bytes() != (tmp_path / "straight").read_bytes()


def test_training_mode_lets_the_batch_into_the_labels(
    teacher: Normalized, images: Tensor, tmp_path: Path
) -> None:
    labels = labelled(teacher, images, tmp_path / "labels", teacher_mode="train")

    epoch = labels.epoch(0)
    rows = epoch.order[:8]
    expected = teacher.train()(epoch.show(images, rows)).detach()
    torch.testing.assert_close(labels.logits(0)[rows], expected, atol=2e-3, rtol=2e-3)
    alone = teacher.eval()(epoch.show(images, rows)).detach()
    assert float((alone - expected).abs().max()) > 0.01


def test_labels_that_cannot_be_used_are_refused_in_one_line(
    teacher: Normalized, images: Tensor, tmp_path: Path
) -> None:
    path = tmp_path / "labels"
    labelled(teacher, images, path)
    (tmp_path / "short").write_bytes(path.read_bytes()[:-100])
    tensors = load_file(path)
    save_file(tensors | {"boxes": tensors["boxes"][:, :20].contiguous()}, tmp_path / "mixed")
    known = {"images": 21, "classes": 10, "epochs": 3}

    for name in ("absent", "short"):
        with pytest.raises(MalformedArtifact, match=r"^[^\n]*holds no soft labels[^\n]*$"):
            SoftLabels(tmp_path / name, **known)
    with pytest.raises(MalformedArtifact, match="views of others"):
        SoftLabels(tmp_path / "mixed", **known)
    with pytest.raises(ShapeError, match="21 images and 10 classes, the set has 20 and 10"):
        SoftLabels(path, **known | {"images": 20})
    with pytest.raises(ShapeError, match="the set has 21 and 7"):
        SoftLabels(path, **known | {"classes": 7})
    with pytest.raises(InvalidSpec, match="for 3 epochs, 4 are asked for"):
        SoftLabels(path, **known | {"epochs": 4})
    with pytest.raises(ShapeError, match="0 images"):
        labelled(teacher, images[:0], path)


def test_teacher_that_overflows_is_an_error(
    teacher: Normalized, images: Tensor, tmp_path: Path
) -> None:
    with torch.no_grad():
        teacher.network.classifier.weight.mul_(1e8)  # type: ignore[union-attr, operator]

    with pytest.raises(NonFiniteLoss, match="not finite in epoch 0"):
        labelled(teacher, images, tmp_path / "labels")


def test_teacher_of_other_classes_is_refused(
    teacher: Normalized, digits: Dataset, tmp_path: Path
) -> None:
    save_weights(teacher, tmp_path / "weights")
    result = {"network": TEACHER.model_dump(), "classes": 10}

    loaded = load_teacher(result, tmp_path / "weights", digits.facts)

    x = digits.test_images[:4].float() / 255
    assert torch.equal(loaded(x), teacher(x))
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    with pytest.raises(InvalidData, match="convnet knows 10 classes, these images have 7"):
        load_teacher(result, tmp_path / "weights", replace(digits.facts, classes=7))


# Without norms: behind one, gradients of biases are nothing but rounding, which AdamW blows up.
STUDENT = PluginRef(name="convnet", params={"width": 4, "depth": 2, "norm": "none"})
RECIPE = Recipe(
    epochs=3,
    learning_rate=0.01,
    momentum=0.9,
    weight_decay=0.01,
    batch_size=8,
    optimizer="adamw",
    decays_all=False,
    cosine=1.0,
    loss=Loss("kl", temperature=4.0),
)


def a_training(
    images: Tensor, labels: SoftLabels, digits: Dataset, *seeds: int, means: Means = Means.EAGER
) -> Training:
    return Training(
        [build(STUDENT, digits.facts, seed) for seed in seeds],
        seeds,
        images,
        labels,
        RECIPE,
        means=means,
        device=CPU,
    )


def weights_of(training: Training, which: int = 0) -> Tensor:
    parameters = training.networks()[which].network.parameters()
    return torch.cat([each.detach().flatten() for each in parameters])


@pytest.mark.parametrize("means", [Means.EAGER, Means.STACKED])
def test_student_follows_adamw_on_the_divergence_by_hand(
    means: Means, teacher: Normalized, images: Tensor, digits: Dataset, tmp_path: Path
) -> None:
    labels = labelled(teacher, images, tmp_path / "labels")
    training = a_training(images, labels, digits, 3, 4, means=means)

    losses = [training.step(index) for index in range(3)]

    model = build(STUDENT, digits.facts, 4)
    matrices = [each for each in model.network.parameters() if each.ndim > 1]
    vectors = [each for each in model.network.parameters() if each.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0}],
        lr=0.01,
    )
    for index in range(3):
        share = (1 + torch.cos(torch.tensor(torch.pi * index / 3))) / 2
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * float(share)
        epoch = labels.epoch(index)
        for rows in torch.split(epoch.order, 8):
            logits = model(epoch.show(images, rows)) / 4
            goal = (labels.logits(index)[rows] / 4).softmax(dim=1)
            divergence = (goal * (goal.log() - logits.log_softmax(dim=1))).sum(dim=1).mean()
            optimizer.zero_grad()
            divergence.backward()
            optimizer.step()
    by_hand = torch.cat([each.detach().flatten() for each in model.network.parameters()])
    torch.testing.assert_close(weights_of(training, 1), by_hand, atol=1e-4, rtol=1e-4)
    assert losses[-1]["loss"] < losses[0]["loss"]


def test_student_does_not_depend_on_its_neighbours_nor_on_a_stop(
    teacher: Normalized, images: Tensor, digits: Dataset, tmp_path: Path
) -> None:
    labels = labelled(teacher, images, tmp_path / "labels")
    together = a_training(images, labels, digits, 3, 4)
    for index in range(3):
        together.step(index)

    alone = a_training(images, labels, digits, 4)
    alone.step(0)
    resumed = a_training(images, labels, digits, 4)
    resumed.load_state(alone.state())
    resumed.step(1)
    resumed.step(2)

    assert torch.equal(weights_of(resumed), weights_of(together, 1))


def test_labels_of_other_images_cannot_be_trained_on(
    teacher: Normalized, images: Tensor, digits: Dataset, tmp_path: Path
) -> None:
    labels = labelled(teacher, images, tmp_path / "labels")

    with pytest.raises(ShapeError, match="20 images and 21 labels"):
        a_training(images[:20], labels, digits, 3)
