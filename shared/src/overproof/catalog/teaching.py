"""Protocols that train teachers, and those that train towards what a teacher says."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from overproof.catalog.fields import Count, Fraction, Positive, Strategy
from overproof.core.registry import Params, PluginInfo

AtLeastZero = Annotated[float, Field(ge=0)]


class TeacherProtocolParams(Params):
    """SGD with a cosine from the learning rate to 0; crops and mirrors.

    `strategy`: families that are applied one after another; `auto` is crop and flip, without flip
    where mirroring changes the class. `warmup_epochs` rise linearly from a hundredth. For Tiny
    ImageNet the authors take 50 epochs, learning rate 0.2, weight decay 1e-4, batches of 256 and 5
    epochs of warm-up.
    """

    epochs: Count = 200
    learning_rate: Positive = 0.1
    momentum: Fraction = 0.9
    weight_decay: AtLeastZero = 5e-4
    batch_size: Count = 128
    strategy: Strategy = "auto"
    warmup_epochs: Annotated[int, Field(ge=0)] = 0


class TaughtParams(Params):
    """Protocols towards labels of a teacher: the planner has it trained and asked before.

    `teacher_mode`: `train` lets batch statistics of the labelled batch into its answers.
    """

    batch_size: Count = 256
    teacher_mode: Literal["eval", "train"] = "eval"


class SoftLabelParams(TaughtParams):
    """As DSA, towards one label of the teacher for each image as it is.

    `temperature`: of the teacher's label and of the student.
    """

    epochs: Count = 1_000
    learning_rate: Positive = 0.01
    momentum: Fraction = 0.9
    weight_decay: AtLeastZero = 5e-4
    strategy: Strategy = "auto"
    temperature: Positive = 1.0


class ReplayParams(TaughtParams):
    """Views are drawn and labelled once, and replayed for every network: fast distillation (FKD).

    Published for ImageNet-1K. A view is a crop of at least `smallest_crop` of the area, 1 for none,
    or else a shift by up to `shift` pixels; mirrored or not, where mirroring keeps the class; its
    `shuffled_tiles` × `shuffled_tiles` tiles in another order; mixed with another view of its
    batch. Where crops, shifts, tiles and mixing are all off, images are seen as they are, not
    mirrored either. The loss is the Kullback-Leibler divergence at `temperature`, times the square
    of that if `scales_loss`. `cosine` 1 leads the learning rate to 0, 0.5 to half of it.
    """

    epochs: Count = 300
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: Positive = 1e-3
    momentum: Fraction = 0.9
    weight_decay: AtLeastZero = 0.01
    cosine: Annotated[float, Field(ge=0, le=1)] = 1.0
    warmup_epochs: Annotated[int, Field(ge=0)] = 0
    batch_size: Count = 1_024
    temperature: Positive = 20.0
    scales_loss: bool = False
    smallest_crop: Annotated[float, Field(gt=0, le=1)] = 0.08
    shift: Annotated[int, Field(ge=0)] = 0
    mixing: Literal["none", "cutmix", "mixup"] = "cutmix"
    shuffled_tiles: Count = 1

    @property
    def augments(self) -> bool:
        """Whether views are anything but the images as they are."""
        crops_or_shifts = self.smallest_crop < 1 or self.shift > 0
        return crops_or_shifts or self.mixing != "none" or self.shuffled_tiles > 1


class SmallReplayParams(ReplayParams):
    """Published for CIFAR. Its code labels in training mode by mistake: `teacher_mode: train`."""

    epochs: Count = 400
    batch_size: Count = 128
    temperature: Positive = 30.0
    smallest_crop: Annotated[float, Field(gt=0, le=1)] = 1.0
    shift: Annotated[int, Field(ge=0)] = 4
    mixing: Literal["none", "cutmix", "mixup"] = "mixup"


class TinyReplayParams(ReplayParams):
    """Published for Tiny ImageNet."""

    epochs: Count = 100
    optimizer: Literal["adamw", "sgd"] = "sgd"
    learning_rate: Positive = 0.2
    weight_decay: AtLeastZero = 1e-4
    warmup_epochs: Annotated[int, Field(ge=0)] = 5
    batch_size: Count = 256
    scales_loss: bool = True
    mixing: Literal["none", "cutmix", "mixup"] = "none"


class PatchReplayParams(ReplayParams):
    """Published for RDED on CIFAR with 10 images per class.

    Batches of 10 and 100 for 1 and 50 images, twice as many for 100 and 1,000 classes, 100 for Tiny
    ImageNet. For sets of patches in f × f tiles set `shuffled_tiles` to f and `smallest_crop` to
    1/f.
    """

    cosine: Annotated[float, Field(ge=0, le=1)] = 0.5
    batch_size: Count = 50
    smallest_crop: Annotated[float, Field(gt=0, le=1)] = 1.0


TEACHING_PROTOCOLS = (
    PluginInfo(
        name="squeeze",
        target="overproof.ml.train.teaching:squeeze",
        params=TeacherProtocolParams,
        summary="200 epochs on crops and mirrors with a cosine schedule, for teachers",
        source="Yin et al., arXiv:2306.13092; VILA-Lab/SRe2L, squeeze_cifar.py",
        needs="overproof[ml]",
    ),
    PluginInfo(
        name="soft-label",
        target="overproof.ml.train.teaching:soft_label",
        params=SoftLabelParams,
        summary="as dsa, towards one label of a teacher for each image",
        source="NUS-HPC-AI-Lab/DD-Ranking, soft labels of mode S",
        needs="overproof[ml]",
    ),
    PluginInfo(
        name="fkd",
        target="overproof.ml.train.teaching:replay",
        params=ReplayParams,
        summary="replay of crops, mirrors and mixes that a teacher has labelled",
        source="Yin et al., arXiv:2306.13092; VILA-Lab/SRe2L, train_FKD.py",
        needs="overproof[ml]",
    ),
    PluginInfo(
        name="fkd-small",
        target="overproof.ml.train.teaching:replay",
        params=SmallReplayParams,
        summary="fkd with the settings for CIFAR: shifts and mixup",
        source="Yin et al., arXiv:2306.13092; VILA-Lab/SRe2L, relabel_cifar.py",
        needs="overproof[ml]",
    ),
    PluginInfo(
        name="fkd-tiny",
        target="overproof.ml.train.teaching:replay",
        params=TinyReplayParams,
        summary="fkd with the settings for Tiny ImageNet: SGD, crops, no mixing",
        source="Yin et al., arXiv:2306.13092; VILA-Lab/SRe2L; zeyuanyin/tiny-imagenet",
        needs="overproof[ml]",
    ),
    PluginInfo(
        name="rded",
        target="overproof.ml.train.teaching:replay",
        params=PatchReplayParams,
        summary="fkd with the settings of RDED: shuffled tiles, a schedule that ends at half",
        source="Sun et al., arXiv:2312.03526; LINs-lab/RDED, validation/main.py",
        needs="overproof[ml]",
    ),
)
