"""Models and data sets of users, described in a YAML file instead of code.

```yaml
models:
  - name: my-resnet
    target: torchvision.models:resnet34   # anything that makes a torch module of normalised images
    arguments: {num_classes: classes}     # what it must know of the images
    params: {zero_init_residual: false}   # names with their defaults; specs may change them
    source: He et al. 2016
datasets:
  - name: flowers
    classes: 5
    shape: [3, 32, 32]
    mean: [0.43, 0.38, 0.29]
    std: [0.29, 0.26, 0.27]
    mirrors: true
```
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from overproof.catalog.datasets import DatasetInfo
from overproof.catalog.models import ForeignModelInfo
from overproof.core.faults import faults_of
from overproof.core.registry import Params, PluginInfo, Registry
from overproof.core.spec import Name
from overproof.errors import InvalidSpec

MAX_BYTES = 1_000_000

ImageFact = Literal["classes", "channels", "height", "width"]
_Positive = Annotated[int, Field(ge=1)]
_Deviation = Annotated[float, Field(gt=0)]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelEntry(_Entry):
    """A network.

    Attributes:
        target: `package.module:attribute`, called with `params` and `arguments` by keyword.
        arguments: keyword → what it must know of the images.
        params: keyword → default; the type of the default is the parameter's.
        semantics: to be raised whenever the network becomes another for equal parameters.
    """

    name: Name
    target: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]
    arguments: dict[str, ImageFact] = Field(default_factory=dict)
    params: dict[str, bool | int | float | str] = Field(default_factory=dict)
    summary: str = ""
    source: str = ""
    semantics: _Positive = 1


class DatasetEntry(_Entry):
    """A data set; nothing of it is guessed.

    Attributes:
        shape: (C, H, W) of an image.
        mean: per channel, of pixels in [0, 1].
        std: the deviations.
        mirrors: whether a mirrored image keeps its class.
        class_names: in the order of the classes; may be left out.
    """

    name: Name
    classes: _Positive
    shape: tuple[_Positive, _Positive, _Positive]
    mean: tuple[float, ...]
    std: tuple[_Deviation, ...]
    mirrors: bool
    class_names: tuple[str, ...] = ()
    summary: str = ""
    source: str = ""

    @model_validator(mode="after")
    def _fits_together(self) -> DatasetEntry:
        if not len(self.mean) == len(self.std) == self.shape[0]:
            raise ValueError(f"{self.shape[0]} channels need as many means and deviations")
        if len(self.class_names) not in (0, self.classes):
            raise ValueError(f"{len(self.class_names)} class_names for {self.classes} classes")
        return self


class Manifest(_Entry):
    """A file of entries."""

    models: tuple[ModelEntry, ...] = ()
    datasets: tuple[DatasetEntry, ...] = ()


def read(path: Path) -> Manifest:
    """Read a manifest.

    Raises:
        InvalidSpec: the file is unreadable, too large or has faults; all of them are listed.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidSpec([f"(top level): more than {MAX_BYTES} bytes"], str(path))
        value = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise InvalidSpec([f"(top level): {error.strerror}"], str(path)) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise InvalidSpec([f"(top level): no YAML: {reason}"], str(path)) from None
    try:
        return Manifest.model_validate(value)
    except ValidationError as error:
        raise InvalidSpec(faults_of(error, model=Manifest), str(path)) from None


def register(manifest: Manifest, *, models: Registry, datasets: Registry) -> None:
    """Add the entries of a manifest to the catalogs.

    Raises:
        DuplicatePlugin: a name is taken.
    """
    for model in manifest.models:
        models.add(_model_info(model))
    for dataset in manifest.datasets:
        facts = dataset.model_dump()
        facts["summary"] = dataset.summary or f"{dataset.classes} classes"
        datasets.add(DatasetInfo(**facts))


def _model_info(entry: ModelEntry) -> PluginInfo:
    fields: dict[str, Any] = {name: (type(value), value) for name, value in entry.params.items()}
    return ForeignModelInfo(
        name=entry.name,
        target=entry.target,
        params=create_model(f"Params of {entry.name}", __base__=Params, **fields),
        summary=entry.summary or f"{entry.target}, of a manifest",
        source=entry.source,
        semantics=entry.semantics,
        needs=entry.target.split(":")[0].split(".")[0],
        arguments=entry.arguments,
    )
