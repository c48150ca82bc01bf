"""What is measured: examples, and where their data sets are taken from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from overproof.core.spec import ExperimentSpec

FOLDER = Path("docs/results")
BASELINE = "random"

# Data set → the variable that names its source, and where it lies if the variable is not set.
_SOURCES = {
    "cifar-10": ("OVERPROOF_TEST_CIFAR10", None),
    "fashion-mnist": ("OVERPROOF_TEST_FASHION_MNIST", "/usr/share/datasets/fashion-mnist"),
}


@dataclass(frozen=True)
class Study:
    """An example whose numbers are published.

    Attributes:
        name: of its files, and of the example in the spec.
        title: of its section.
        says: what the data are, in Markdown.
        remark: what a reader of the table should know, "" for nothing.
    """

    name: str
    title: str
    says: str
    remark: str = ""

    @property
    def example(self) -> Path:
        """The spec."""
        return Path("examples") / f"{self.name.replace('-', '_')}.yaml"

    @property
    def numbers(self) -> Path:
        """The raw numbers."""
        return FOLDER / f"{self.name}.json"

    @property
    def spec(self) -> ExperimentSpec:
        """As the example says."""
        return ExperimentSpec.read(self.example)

    @property
    def dataset(self) -> str:
        """Name of its one data set."""
        (dataset,) = self.spec.datasets
        return dataset.name


STUDIES = (
    Study(
        "fashion-mnist-small",
        "Methods against random images on Fashion-MNIST",
        "Debian's package dataset-fashion-mnist",
        "With one image a class the three selections take the same one, the nearest to the class "
        "mean. Intervals are wide because single random images differ so much; methods differ "
        "among themselves by less.",
    ),
    Study(
        "fashion-mnist-teachers",
        "Methods that ask a teacher, on Fashion-MNIST",
        "Debian's package dataset-fashion-mnist",
    ),
    Study(
        "cifar10-small",
        "Distribution matching under attack on CIFAR-10",
        "JPEG copies of the images, so accuracies may differ a little from those on the originals",
    ),
)


def source_of(dataset: str) -> tuple[str, str | None]:
    """The variable that names the source of a data set, and its path; None where there is none."""
    variable, usual = _SOURCES[dataset]
    path = os.environ.get(variable) or (usual if usual and Path(usual).exists() else None)
    return variable, path
