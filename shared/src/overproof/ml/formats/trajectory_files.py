"""Sets of MTT and TESLA (`mtt`) and of DATM (`datm`): tensors in files beside each other.

`images_best.pt` (N, C, H, W), `labels_best.pt` and, of DATM, `lr_best.pt`; large sets come in parts
`images_best_0.pt`, … Labels are classes, of TESLA on ImageNet probabilities, of DATM logits that
were learned. Images are normalised, or whitened (ZCA), which no file says.

Source: GeorgeCazenavette/mtt-distillation, distill.py; justincui03/tesla; NUS-HPC-AI-Lab/DATM.
"""

from __future__ import annotations

from overproof.errors import InvalidData
from overproof.ml.formats import tensor_files, torch_files
from overproof.ml.formats.content import Content, Form, Source, Target, Wishes, number_of

_NO_RATE = (
    "the learning rate that the method found is in its log alone; without --learning-rate the "
    "protocol's is used"
)


def _is_datm(source: Source) -> bool:
    files = tensor_files.find(source)
    return files is not None and files.learning_rate is not None


def _is_mtt(source: Source) -> bool:
    files = tensor_files.find(source)
    return files is not None and files.learning_rate is None


def _read(source: Source, target: Target, wishes: Wishes) -> Content:
    files = tensor_files.find(source)
    if files is None:
        raise InvalidData(f"{source.path} has no images_best.pt")
    files = tensor_files.with_labels(files, wishes.labels)
    rate = None
    if files.learning_rate is not None:
        stored = torch_files.load(files.learning_rate)
        rate = number_of(stored, str(files.learning_rate))
    without = rate is None and wishes.learning_rate is None
    return Content(
        images=files.load_images(),
        labels=files.load_labels(),
        spaces=("normalised", "zca"),
        normalisation="mtt",
        learning_rate=rate,
        notes=(_NO_RATE,) if without else (),
    )


MTT = Form(
    name="mtt",
    summary="MTT and TESLA: images_best.pt and labels_best.pt, also in parts",
    recognises=_is_mtt,
    read=_read,
)
DATM = Form(
    name="datm",
    summary="DATM: images_best.pt, labels_best.pt (logits) and lr_best.pt",
    recognises=_is_datm,
    read=_read,
)
