"""Options of DD-Ranking become specs of ours, or are refused in one go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overproof.catalog.models import MODELS
from overproof.catalog.protocols import PROTOCOLS
from overproof.core.registry import Params
from overproof.core.spec import PluginRef
from overproof.errors import InvalidSpec
from overproof.local.rank_options import RankOptions, network_of

# As their demonstrations write it, but for paths.
YAML = """
dataset: CIFAR10
real_data_path: ./dataset/
custom_val_trans: null
ipc: 10
im_size: [32, 32]
model_name: ConvNet-3
use_torchvision: false
data_aug_func: "dsa"
aug_params: {flip: 0.5, rotate: 15.0, saturation: 2.0, brightness: 1.0, contrast: 0.5,
  scale: 1.2, crop: 0.125, cutout: 0.5}
use_zca: false
custom_train_trans: null
optimizer: sgd
lr_scheduler: step
step_size: 500
weight_decay: 0.0005
momentum: 0.9
num_eval: 5
num_epochs: 1000
syn_batch_size: 128
real_batch_size: 256
default_lr: 0.01
num_workers: 4
device: cuda
dist: true
eval_full_data: false
random_data_path: ./results/my_method_random_data.pt
random_data_format: tensor
save_path: ./results/my_method_hard_label_scores.csv
"""


def options(**over: Any) -> RankOptions:
    return RankOptions.read(None, over)


def params_of(ref: PluginRef) -> Params:
    return PROTOCOLS.resolve(ref)


def test_their_yaml_is_read(tmp_path: Path) -> None:
    file = tmp_path / "demo.yaml"
    file.write_text(YAML)

    read = RankOptions.read(file, {"num_eval": 3})

    assert (read.dataset_name, read.ipc, read.num_eval) == ("cifar-10", 10, 3)
    own = params_of(read.own_protocol(0.02)).model_dump()
    assert own["strategy"] == "color_crop_cutout_flip_rotate_scale"
    assert (own["epochs"], own["step_epochs"], own["batch_size"]) == (1000, 500, 128)
    assert (own["learning_rate"], own["learning_rates"], own["labels"]) == (0.02, "", "hard")
    hard = params_of(read.hard_protocol()).model_dump()
    assert (hard["strategy"], hard["labels"]) == ("none", "hard")
    assert hard["learning_rates"] == "0.001 0.005 0.01 0.05 0.1"


def test_soft_labels_of_mode_s_bring_their_loss() -> None:
    soft = options(
        soft_label_mode="S",
        soft_label_criterion="kl",
        loss_fn_kwargs={"temperature": 4.0, "scale_loss": True},
        data_aug_func="cutmix",
        aug_params={"beta": 1.0},
    )

    own = params_of(soft.own_protocol(None)).model_dump()

    assert (own["labels"], own["loss"]) == ("teacher", "kl")
    assert (own["temperature"], own["scales_loss"], own["cutmix_probability"]) == (4.0, True, 1.0)
    assert params_of(soft.hard_protocol()).model_dump()["cutmix_probability"] == 0.0


def test_mse_with_the_ground_truth() -> None:
    own = params_of(
        options(
            soft_label_mode="S", soft_label_criterion="mse_gt", loss_fn_kwargs={"ce_weight": 0.1}
        ).own_protocol(None)
    ).model_dump()

    assert (own["loss"], own["hard_weight"]) == ("mse", 0.1)


def test_labels_on_every_view_are_a_replay() -> None:
    taught = options(
        soft_label_mode="M",
        data_aug_func="mixup",
        aug_params={"lambda": 0.8},
        loss_fn_kwargs={"temperature": 20.0},
        optimizer="adamw",
        lr_scheduler="cosine",
        num_epochs=300,
    )

    own = taught.own_protocol(0.001)

    assert own.name == "fkd"
    params = params_of(own).model_dump()
    assert (params["mixing"], params["temperature"], params["cosine"]) == (*("mixup", 20.0, 0.5),)
    assert (params["epochs"], params["learning_rate"]) == (300, 0.001)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("ConvNet-3", PluginRef(name="convnet", params={"depth": 3})),
        ("ConvNet-4-BN", PluginRef(name="convnet", params={"depth": 4, "norm": "batch"})),
        ("ResNet-18-BN", PluginRef(name="resnet-18", params={"norm": "batch"})),
        ("VGG-11", PluginRef(name="vgg-11")),
    ],
)
def test_their_networks_are_ours(theirs: str, ours: PluginRef) -> None:
    assert network_of(theirs) == ours
    assert MODELS.canonical(ours)


@pytest.mark.parametrize(
    ("over", "fault"),
    [
        ({"soft_label_mode": "X"}, "soft_label_mode"),
        ({"use_zca": True}, "use_zca"),
        ({"num_evals": 3}, "num_evals"),
        ({"custom_train_trans": [{"name": "RandomCrop"}]}, "custom_train_trans"),
        ({"data_aug_func": "dsa", "aug_params": {"rotate": 30.0}}, "published strengths"),
        ({"soft_label_mode": "M", "data_aug_func": "dsa"}, "takes cutmix, mixup or none"),
        ({"lrs_lambda": 1.5}, "lrs_lambda"),
    ],
)
def test_options_that_mean_nothing_here_are_refused(over: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidSpec, match=fault):
        options(**over)


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"missing\.yaml has 1 fault"):
        RankOptions.read(tmp_path / "missing.yaml", {})
