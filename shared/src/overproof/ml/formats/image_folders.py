"""Image files in a folder for each class: sets of SRe2L, RDED and D4M, and any of that form.

SRe2L: `new003/class003_id007.jpg`; RDED: `00003/class00003_id00007.jpg`; D4M: `3/3-image07.png`.
Where all folders have numbers in their names, the number is the class: D4M's are not padded, so the
order of names ("0", "1", "10", …) permutes the classes of who sorts them. Other names are classes
in the order of names, as everywhere here. A folder, a tar or a zip archive.

Source: VILA-Lab/SRe2L; LINs-lab/RDED; suduo94/D4M.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch

from overproof.errors import InvalidData
from overproof.ml.datasets.file_tree import File, FileTree
from overproof.ml.datasets.image_files import decode, is_image
from overproof.ml.formats.content import Content, Form, Source, Target, Wishes

_MAX_IMAGES = 2_000_000
_FOLDER = re.compile(r"(?:new)?(\d+)")
_FILES = (re.compile(r"class(\d+)_id\d+"), re.compile(r"(\d+)-image\d+"))
_ARCHIVES = (".tar", ".tgz", ".gz", ".xz", ".bz2", ".zip")


def _recognises(source: Source) -> bool:
    if not source.is_folder:
        return source.path.name.lower().endswith(_ARCHIVES)
    # Any image two folders deep; a data set of a million files is not listed for that.
    return next((True for file in FileTree(source.path).files() if is_image(file)), False)


def _read(source: Source, target: Target, wishes: Wishes) -> Content:
    tree = FileTree(source.path)
    files, others = _images(source, tree.files())
    numbers = _numbers(source, sorted({file.parts[-2] for file in files}), target.facts.classes)
    ordered = sorted(files, key=lambda file: (numbers[file.parts[-2]], file.parts[-1]))
    for file in ordered:
        _check_name(source, file, numbers[file.parts[-2]])
    images = decode(source.path, tree, ordered, wishes.size)
    notes = [_NAMED if _by_number(numbers) else _SORTED]
    if others:
        notes.append(f"{others} files that are no images were passed over")
    return Content(
        images=torch.from_numpy(images).float() / 255,
        labels=torch.tensor([numbers[file.parts[-2]] for file in ordered]),
        spaces=("unit",),
        listed=torch.tensor(sorted(range(len(ordered)), key=lambda row: ordered[row].parts)),
        notes=tuple(notes),
    )


_NAMED = "classes are the numbers of the folders"
_SORTED = "classes are the folders in the order of their names"


def _images(source: Source, files: Iterable[File]) -> tuple[list[File], int]:
    """Images in folders of one depth, and how many other files there are."""
    images: list[File] = []
    others = 0
    for file in files:
        if is_image(file) and len(file.parts) > 1:
            images.append(file)
        else:
            others += 1
        if len(images) > _MAX_IMAGES:
            raise InvalidData(f"{source.path} has more than {_MAX_IMAGES} images")
    roots = {file.parts[:-2] for file in images}
    if len(roots) != 1:
        found = "no folders of images" if not roots else f"{len(roots)} sets of folders"
        raise InvalidData(f"{source.path} has {found}; point at the one that has the classes in it")
    return images, others


def _numbers(source: Source, folders: list[str], classes: int) -> dict[str, int]:
    """Folder → class."""
    if len(folders) != classes:
        raise InvalidData(
            f"{source.path} has {len(folders)} folders, the data set {classes} classes"
        )
    matches = [_FOLDER.fullmatch(folder) for folder in folders]
    if not all(matches):
        return {folder: number for number, folder in enumerate(folders)}
    numbers = {
        folder: int(match[1]) for folder, match in zip(folders, matches, strict=True) if match
    }
    if sorted(numbers.values()) != list(range(classes)):
        raise InvalidData(
            f"{source.path} has folders that are not numbered 0 … {classes - 1}, each once"
        )
    return numbers


def _by_number(numbers: dict[str, int]) -> bool:
    return all(_FOLDER.fullmatch(folder) for folder in numbers)


def _check_name(source: Source, file: File, number: int) -> None:
    """The names of files tell their class again."""
    for pattern in _FILES:
        match = pattern.match(file.parts[-1])
        if match and int(match[1]) != number:
            raise InvalidData(f"{source.path}: {file} lies in the folder of class {number}")


IMAGE_FOLDER = Form(
    name="image-folder",
    summary="SRe2L, RDED, D4M: image files in a folder for each class, or an archive of one",
    recognises=_recognises,
    read=_read,
)
