"""Options of DD-Ranking by their own names, and what they are in our specs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from overproof.core.faults import faults_of
from overproof.core.spec import PluginRef
from overproof.errors import InvalidSpec

# Their names of data sets where they are not ours but for case and hyphens.
_DATASETS = {
    "cifar10": "cifar-10",
    "cifar100": "cifar-100",
    "tinyimagenet": "tiny-imagenet",
    "imagenet1k": "imagenet-1k",
    "fashionmnist": "fashion-mnist",
}
# Strengths of their DSA, which are those of ours; others are refused.
_DSA = {
    "flip": ("flip", 0.5),
    "rotate": ("rotate", 15.0),
    "saturation": ("color", 2.0),
    "brightness": ("color", 1.0),
    "contrast": ("color", 0.5),
    "scale": ("scale", 1.2),
    "crop": ("crop", 0.125),
    "cutout": ("cutout", 0.5),
}
_LOSSES = {"sce": "cross-entropy", "kl": "kl", "mse_gt": "mse"}
_SCHEDULES = {"step": "step", "cosine": "half-cosine", "cosineannealing": "cosine"}
# Of theirs that change nothing here: where devices, caches and processes come from is a setting.
_IGNORED = {
    *("device", "dist", "num_workers", "eval_full_data", "random_data_path"),
    *("random_data_format", "default_lr", "label_type", "use_torchvision"),
    *("stu_use_torchvision", "tea_use_torchvision", "im_size"),
}


class RankOptions(BaseModel):
    """What `overproof.rank` takes besides the set; the names are those of DD-Ranking.

    Attributes:
        dataset: `CIFAR10` or `cifar-10`; digits need no download.
        real_data_path: added under that name, unless it is in the store.
        ipc: images per class, checked against the set; None for whatever it has.
        model_name: `ConvNet-3`, `ConvNet-3-BN`, `ResNet-18-BN`, …, or a network as specs name it.
        soft_label_mode: `S` for one label an image, `M` for labels of a teacher on every view;
            None for hard labels.
        soft_label_criterion: `sce`, `kl` or `mse_gt`, of soft labels.
        loss_fn_kwargs: temperature and scale_loss; mse_weight (1) and ce_weight of mse_gt.
        data_aug_func, aug_params: `dsa` with its published strengths, `cutmix` (beta 1) or `mixup`
            (lambda); None for none.
        use_aug_for_hard: also augment the runs with hard labels.
        optimizer, lr_scheduler, step_size, weight_decay, momentum, num_epochs: of training on
            small sets.
        syn_batch_size, real_batch_size: images a step on small sets and on the whole one.
        real_num_epochs, real_lr: of training on the whole set, with a tenth of the rate from half.
        num_eval: runs, one network each.
        teacher_dir, teacher_model_names: where the teacher is, as
            `<dataset>/<model>/ckpt_best.pt`; without them one is trained, for `teacher_epochs`.
        lrs_lambda: w of the score.
        learning_rates: tried where none is given.
        save_path: CSV to write.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    dataset: str = "cifar-10"
    real_data_path: Path | None = None
    ipc: Annotated[int, Field(ge=1)] | None = None
    model_name: str | PluginRef = "ConvNet-3"
    soft_label_mode: Literal["S", "M"] | None = None
    soft_label_criterion: Literal["sce", "kl", "mse_gt"] = "kl"
    loss_fn_kwargs: Mapping[str, float | bool] = Field(default_factory=dict)
    data_aug_func: Literal["dsa", "cutmix", "mixup"] | None = None
    aug_params: Mapping[str, float] = Field(default_factory=dict)
    use_aug_for_hard: bool = False
    use_zca: Literal[False] = False
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr_scheduler: Literal["step", "cosine", "cosineannealing"] = "step"
    step_size: Annotated[int, Field(ge=0)] | None = None
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    num_epochs: Annotated[int, Field(ge=1)] = 1_000
    syn_batch_size: Annotated[int, Field(ge=1)] = 256
    real_batch_size: Annotated[int, Field(ge=1)] = 512
    real_num_epochs: Annotated[int, Field(ge=1)] = 200
    real_lr: Annotated[float, Field(gt=0)] = 0.01
    num_eval: Annotated[int, Field(ge=1)] = 5
    teacher_dir: Path | None = None
    teacher_model_names: Annotated[Sequence[str], Field(max_length=1)] = ()
    teacher_epochs: Annotated[int, Field(ge=1)] = 200
    lrs_lambda: Annotated[float, Field(ge=0, le=1)] = 0.5
    learning_rates: str = "0.001 0.005 0.01 0.05 0.1"
    save_path: Path | None = None

    @classmethod
    def read(
        cls, config: str | Path | Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> RankOptions:
        """Options from a YAML file or a mapping, `options` in front of them.

        Raises:
            InvalidSpec: the file cannot be read, or options that mean nothing here; all are listed.
        """
        source, values = "options of rank", dict(config) if isinstance(config, Mapping) else {}
        if isinstance(config, str | Path):
            source = str(config)
            try:
                loaded = yaml.safe_load(Path(config).read_bytes())
            except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
                raise InvalidSpec(
                    [f"(top level): {' '.join(str(error).split())}"], source
                ) from None
            if not isinstance(loaded, dict):
                raise InvalidSpec(["(top level): a mapping is needed"], source)
            values = loaded
        values = {**values, **options}
        wanted = {
            name: value
            for name, value in values.items()
            if name not in _IGNORED and not (name.startswith("custom_") and value is None)
        }
        try:
            return cls.model_validate(wanted)
        except ValidationError as error:
            raise InvalidSpec(faults_of(error, model=cls), source) from None

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        if self.soft_label_mode == "M" and self.data_aug_func == "dsa":
            raise ValueError("soft_label_mode M takes cutmix, mixup or none, not dsa")
        if self.soft_label_mode == "M" and self.soft_label_criterion == "mse_gt":
            raise ValueError("soft_label_mode M takes kl or sce, not mse_gt")
        if self.loss_fn_kwargs.get("mse_weight", 1) != 1:
            raise ValueError("loss_fn_kwargs: mse_weight is 1; change the learning rate instead")
        for name, value in self.aug_params.items():
            if self.data_aug_func == "dsa" and _DSA.get(name, (None, None))[1] != value:
                raise ValueError(f"aug_params: dsa has its published strengths, not {name} {value}")
        if self.data_aug_func == "cutmix" and self.aug_params.get("beta", 1.0) != 1.0:
            raise ValueError("aug_params: cutmix has beta 1")
        return self

    @property
    def dataset_name(self) -> str:
        """The data set as specs name it."""
        plain = self.dataset.lower().replace("-", "").replace("_", "")
        return _DATASETS.get(plain, self.dataset)

    @property
    def network(self) -> PluginRef:
        """The network as specs name it."""
        if isinstance(self.model_name, PluginRef):
            return self.model_name
        return network_of(self.model_name)

    def own_protocol(self, learning_rate: float | None) -> PluginRef:
        """How the set, and random images beside it, are trained on."""
        if self.soft_label_mode == "M":
            return self._replay(learning_rate)
        labels = "hard" if self.soft_label_mode is None else "teacher"
        params = self._training(learning_rate) | self._augmentation() | {"labels": labels}
        return PluginRef(name="ddk", params=params | (self._loss() if labels != "hard" else {}))

    def hard_protocol(self) -> PluginRef:
        """How the set is trained on with hard labels, the rate searched."""
        augmentation = self._augmentation() if self.use_aug_for_hard else {}
        return PluginRef(name="ddk", params=self._training(None) | augmentation)

    def whole_protocol(self) -> PluginRef:
        """How the whole set is trained on."""
        return PluginRef(
            name="ddk",
            params={
                "epochs": self.real_num_epochs,
                "step_epochs": max(1, self.real_num_epochs // 2),
                "batch_size": self.real_batch_size,
                "learning_rate": self.real_lr,
            },
        )

    def _training(self, learning_rate: float | None) -> dict[str, Any]:
        given = {} if learning_rate is None else {"learning_rate": learning_rate}
        return {
            "epochs": self.num_epochs,
            "optimizer": self.optimizer,
            "schedule": _SCHEDULES[self.lr_scheduler],
            "step_epochs": self.step_size or max(1, self.num_epochs // 2),
            "weight_decay": self.weight_decay,
            "momentum": self.momentum,
            "batch_size": self.syn_batch_size,
            "learning_rates": self.learning_rates if learning_rate is None else "",
            **given,
        }

    def _augmentation(self) -> dict[str, Any]:
        if self.data_aug_func == "dsa":
            families = sorted({_DSA[name][0] for name in self.aug_params})
            return {"strategy": "_".join(families) or "auto"}
        if self.data_aug_func == "cutmix":
            return {"cutmix_probability": 1.0}
        if self.data_aug_func == "mixup":
            return {"mixup_alpha": self.aug_params.get("lambda", 0.8)}
        return {}

    def _loss(self) -> dict[str, Any]:
        given = self.loss_fn_kwargs
        loss = _LOSSES[self.soft_label_criterion]
        if loss == "mse":
            return {"loss": loss, "hard_weight": float(given.get("ce_weight", 0.0))}
        return {
            "loss": loss,
            "temperature": float(given.get("temperature", 1.0)),
            "scales_loss": bool(given.get("scale_loss", False)),
        }

    def _replay(self, learning_rate: float | None) -> PluginRef:
        # The cross entropy with soft labels has the gradients of the divergence.
        loss = self._loss()
        return PluginRef(
            name="fkd",
            params={
                "epochs": self.num_epochs,
                "optimizer": self.optimizer,
                "cosine": 0.5 if self.lr_scheduler == "cosine" else 1.0,
                "weight_decay": self.weight_decay,
                "momentum": self.momentum,
                "batch_size": self.syn_batch_size,
                "temperature": loss["temperature"],
                "scales_loss": loss["scales_loss"],
                "mixing": self.data_aug_func or "none",
                "smallest_crop": 1.0,
                **({} if learning_rate is None else {"learning_rate": learning_rate}),
            },
        )


def network_of(model_name: str) -> PluginRef:
    """`ConvNet-3-BN` and the like as specs name them; other names as they are."""
    kind, *rest = model_name.lower().split("-")
    norm = {"norm": "batch"} if "bn" in rest else {}
    if kind == "convnet" and rest and rest[0].isdigit():
        return PluginRef(name="convnet", params={"depth": int(rest[0]), **norm})
    if kind in ("resnet", "vgg") and rest:
        return PluginRef(name=f"{kind}-{rest[0]}", params=norm)
    return PluginRef(name=model_name)
