"""Data sets by name. Only what ships with a library is bundled; the rest is added by its owner.

A data set that is not listed here can be added too (`overproof data add`): its facts then stand in
the packed file.
"""

from __future__ import annotations

from dataclasses import dataclass

from overproof.catalog.imagenet import (
    IMAGENET_CLASSES,
    IMAGENET_MEAN,
    IMAGENET_STD,
    SUBSETS,
)
from overproof.core.registry import Params, PluginInfo, Registry


@dataclass(frozen=True, kw_only=True)
class DatasetInfo(PluginInfo):
    """Facts of a data set.

    Attributes:
        classes: number of classes.
        shape: (C, H, W) of an image.
        mean, std: per channel, of pixels in [0, 1]; the first layer of every network.
        mirrors: whether a mirrored image keeps its class (false for digits).
        class_names: what the classes are called, in the order of their numbers; empty where the
            catalog does not know.
        bundled_version: version of the bytes that a library ships, "" when they must be added.
        borrows_statistics: mean and deviation are another data set's, by convention.
    """

    classes: int
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mirrors: bool
    class_names: tuple[str, ...]
    bundled_version: str = ""
    borrows_statistics: bool = False
    target: str = "overproof.ml.datasets.base:load"
    params: type[Params] = Params


DATASETS: Registry = Registry("datasets")


def dataset(name: str) -> DatasetInfo:
    """The data set called `name`.

    Raises:
        UnknownPlugin: it is not listed.
    """
    info = DATASETS.get(name)
    assert isinstance(info, DatasetInfo)
    return info


def class_names(name: str) -> tuple[str, ...]:
    """Names of the classes of a data set, empty where the catalog does not list it."""
    return dataset(name).class_names if name in DATASETS else ()


_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house
kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark
shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table
tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
_CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)

for _info in (
    DatasetInfo(
        name="digits",
        summary="1,797 handwritten digits of 8 × 8 pixels, shipped with scikit-learn",
        source="Optical Recognition of Handwritten Digits, UCI; sklearn.datasets.load_digits",
        classes=10,
        shape=(1, 8, 8),
        mean=(0.3055,),
        std=(0.3760,),
        mirrors=False,
        class_names=_DIGITS,
        bundled_version="bundled-1",
        tags=frozenset({"bundled"}),
    ),
    DatasetInfo(
        name="mnist",
        summary="70,000 handwritten digits of 28 × 28 pixels",
        source="LeCun et al. 1998",
        classes=10,
        shape=(1, 28, 28),
        mean=(0.1307,),
        std=(0.3081,),
        mirrors=False,
        class_names=_DIGITS,
    ),
    DatasetInfo(
        name="fashion-mnist",
        summary="70,000 pieces of clothing of 28 × 28 pixels",
        source="Xiao et al., arXiv:1708.07747",
        classes=10,
        shape=(1, 28, 28),
        mean=(0.2861,),
        std=(0.3530,),
        mirrors=True,
        class_names=(
            "T-shirt",
            "trousers",
            "pullover",
            "dress",
            "coat",
            "sandal",
            "shirt",
            "sneaker",
            "bag",
            "ankle boot",
        ),
    ),
    DatasetInfo(
        name="svhn",
        summary="99,289 house numbers of 32 × 32 pixels",
        source="Netzer et al. 2011",
        classes=10,
        shape=(3, 32, 32),
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
        mirrors=False,
        class_names=_DIGITS,
    ),
    DatasetInfo(
        name="cifar-10",
        summary="60,000 photographs of 10 classes, 32 × 32 pixels",
        source="Krizhevsky 2009; statistics as in DD-RobustBench",
        classes=10,
        shape=(3, 32, 32),
        mean=_CIFAR10_MEAN,
        std=(0.2471, 0.2435, 0.2616),
        mirrors=True,
        class_names=(
            "airplane",
            "automobile",
            "bird",
            "cat",
            "deer",
            "dog",
            "frog",
            "horse",
            "ship",
            "truck",
        ),
    ),
    DatasetInfo(
        name="cifar-100",
        summary="60,000 photographs of 100 classes, 32 × 32 pixels",
        source="Krizhevsky 2009; statistics as in DD-RobustBench",
        classes=100,
        shape=(3, 32, 32),
        mean=(0.5071, 0.4866, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        mirrors=True,
        class_names=tuple(name.replace("_", " ") for name in _CIFAR100.split()),
    ),
):
    DATASETS.add(_info)

for _name, _classes, _side, _class_names, _what in (
    ("tiny-imagenet", 200, 64, (), "110,000 photographs of 200 classes"),
    ("imagenet-1k", IMAGENET_CLASSES, 224, (), "1.3 million photographs of 1,000 classes"),
    ("imagenet-1k-64", IMAGENET_CLASSES, 64, (), "ImageNet-1K, scaled down"),
    *(
        (name, len(subset.indices), 128, subset.class_names, "ten classes of ImageNet-1K")
        for name, subset in SUBSETS.items()
    ),
):
    DATASETS.add(
        DatasetInfo(
            name=_name,
            summary=f"{_what}, {_side} × {_side} pixels",
            source="Deng et al. 2009; Le & Yang 2015; subsets as in arXiv:2203.11932",
            classes=_classes,
            shape=(3, _side, _side),
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            mirrors=True,
            class_names=_class_names,
            borrows_statistics=True,
        )
    )
