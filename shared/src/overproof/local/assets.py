"""What people bring: what it must fit, and how it gets into the store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overproof.ml.formats.content import Target
    from overproof.results.views import Asset
    from overproof.runtime.wiring import Backends

DATASETS, SETS, WEIGHTS, LABELS = "datasets", "sets", "weights", "labels"


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


def put_asset(
    backends: Backends, kind: str, name: str, packed: Path, facts: Mapping[str, Any]
) -> Asset:
    """Put the packed file into the store, then its name into the database.

    If the process dies in between, the bytes lie there without a name; adding again uses them.

    Raises:
        NotFound: somebody else removed it meanwhile.
    """
    from overproof.artifacts import keys
    from overproof.errors import NotFound

    with packed.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    ref = backends.store.put(
        keys.asset(kind, digest), packed, media_type="application/octet-stream"
    )
    backends.repository.add_asset(kind, name, ref, facts)
    asset = backends.repository.asset(kind, name, ref.sha256)
    if asset is None:
        raise NotFound(f"{kind} {name!r} was removed by somebody else; add it again")
    return asset
