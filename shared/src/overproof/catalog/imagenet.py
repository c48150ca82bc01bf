"""ImageNet-1K and the sets made of it: Tiny ImageNet and six subsets of ten classes.

All are normalised by ImageNet's mean and deviation, whatever their own are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGENET_CLASSES = 1_000


@dataclass(frozen=True)
class Subset:
    """Ten classes of ImageNet-1K.

    Attributes:
        indices: of the classes in ImageNet-1K; label i of the subset is the i-th of them.
        class_names: in the same order.
    """

    indices: tuple[int, ...]
    class_names: tuple[str, ...]


# Source: GeorgeCazenavette/mtt-distillation, utils.py (`Config`).
SUBSETS: Mapping[str, Subset] = {
    "imagenette": Subset(
        (0, 217, 482, 491, 497, 566, 569, 571, 574, 701),
        (
            *("tench", "English springer", "cassette player", "chain saw", "church"),
            *("French horn", "garbage truck", "gas pump", "golf ball", "parachute"),
        ),
    ),
    "imagewoof": Subset(
        (193, 182, 258, 162, 155, 167, 159, 273, 207, 229),
        (
            *("Australian terrier", "Border terrier", "Samoyed", "beagle", "Shih-Tzu"),
            *("English foxhound", "Rhodesian ridgeback", "dingo", "golden retriever"),
            "Old English sheepdog",
        ),
    ),
    "imagemeow": Subset(
        (281, 282, 283, 284, 285, 291, 292, 290, 289, 287),
        (
            *("tabby", "tiger cat", "Persian cat", "Siamese cat", "Egyptian cat", "lion"),
            *("tiger", "jaguar", "snow leopard", "lynx"),
        ),
    ),
    "imagesquawk": Subset(
        (84, 130, 88, 144, 145, 22, 96, 9, 100, 89),
        (
            *("peacock", "flamingo", "macaw", "pelican", "king penguin", "bald eagle"),
            *("toucan", "ostrich", "black swan", "cockatoo"),
        ),
    ),
    "imagefruit": Subset(
        (953, 954, 949, 950, 951, 957, 952, 945, 943, 948),
        (
            *("pineapple", "banana", "strawberry", "orange", "lemon", "pomegranate", "fig"),
            *("bell pepper", "cucumber", "Granny Smith"),
        ),
    ),
    "imageyellow": Subset(
        (309, 986, 954, 951, 987, 779, 599, 291, 72, 11),
        (
            *("bee", "yellow lady's slipper", "banana", "lemon", "corn", "school bus"),
            *("honeycomb", "lion", "garden spider", "goldfinch"),
        ),
    ),
}
