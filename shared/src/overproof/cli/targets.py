"""What commands must know of a data set before they read what was made for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overproof.cli.assets import DATASETS

if TYPE_CHECKING:
    from overproof.ml.formats.content import Target
    from overproof.runtime.wiring import Backends


def target_of(dataset: str, backends: Backends) -> Target:
    """What images of a data set are: of the catalog, or of the newest one that was added.

    Raises:
        InvalidData: nobody knows the data set.
    """
    from overproof.catalog.datasets import DATASETS as CATALOG
    from overproof.catalog.datasets import dataset as catalog_entry
    from overproof.errors import InvalidData
    from overproof.ml.formats.content import Target
    from overproof.ml.shapes import ImageFacts

    if dataset in CATALOG:
        info = catalog_entry(dataset)
        shape, classes, mean, std = info.shape, info.classes, info.mean, info.std
    else:
        added = backends.repository.asset(DATASETS, dataset)
        if added is None:
            raise InvalidData(
                f"nobody knows a data set {dataset}; add it by `overproof data add {dataset} PATH`"
            )
        shape, classes = added.facts["shape"], added.facts["classes"]
        mean, std = added.facts["mean"], added.facts["std"]
    facts = ImageFacts(
        channels=shape[0],
        size=(shape[1], shape[2]),
        classes=classes,
        mean=tuple(mean),
        std=tuple(std),
    )
    return Target(dataset=dataset, facts=facts)


def numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """Numbers by commas; None for no text.

    Raises:
        InvalidSpec: they are none.
    """
    from overproof.errors import InvalidSpec

    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidSpec([f"{text[:40]!r} is no list of numbers by commas"], option) from None
