"""All published forms, and which one a path is."""

from __future__ import annotations

from collections.abc import Mapping

from overproof.errors import InvalidData
from overproof.ml.formats.arrays import NPZ, SAFETENSORS
from overproof.ml.formats.content import Form, Source
from overproof.ml.formats.dc import DC
from overproof.ml.formats.dc_bench import DC_BENCH
from overproof.ml.formats.dd import DD
from overproof.ml.formats.idc import IDC
from overproof.ml.formats.idm import IDM
from overproof.ml.formats.image_folders import IMAGE_FOLDER
from overproof.ml.formats.trajectory_files import DATM, MTT

# In this order a path is tried; names of files decide before contents.
FORMS: Mapping[str, Form] = {
    form.name: form
    for form in (NPZ, SAFETENSORS, DATM, MTT, DC_BENCH, DC, DD, IDC, IDM, IMAGE_FOLDER)
}


def form_of(source: Source, named: str | None) -> Form:
    """The form that the user named, or the first that recognises the source.

    Raises:
        InvalidData: there is none; or the file is damaged, too large or holds code.
    """
    if named is not None:
        if named not in FORMS:
            raise InvalidData(f"no form is called {named!r}; known: {', '.join(FORMS)}")
        return FORMS[named]
    for form in FORMS.values():
        if form.recognises(source):
            return form
    if source.is_folder or source.value is None:
        seen = (
            "a folder" if source.is_folder else f"a file {source.path.suffix or 'without suffix'}"
        )
    else:
        seen = f"a stored {type(source.value).__name__}"
    raise InvalidData(
        f"{source.path} is {seen} of no known form; known: {', '.join(FORMS)} (name one by "
        "--format)"
    )
