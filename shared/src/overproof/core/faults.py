"""Turns pydantic's errors into lines that tell a person what to change."""

from __future__ import annotations

import difflib
import reprlib
from typing import Any

from pydantic import BaseModel, ValidationError

_LENGTH = 40
_LIMITED = reprlib.Repr()
_LIMITED.maxlevel, _LIMITED.maxlong, _LIMITED.maxother = 3, 60, 60


def faults_of(error: ValidationError, *, model: type[BaseModel] | None = None) -> list[str]:
    """One line a fault, `path: what; what to do`, with close matches for unknown fields."""
    return [_line(fault, model) for fault in error.errors(include_url=False, include_context=True)]


def _line(fault: Any, model: type[BaseModel] | None) -> str:
    path = ".".join(str(part) for part in fault["loc"]) or "(top level)"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        message = "unknown field" + _suggestion(fault["loc"], model)
    elif fault["type"] == "missing":
        message = "is missing"
    elif fault["type"] not in {"value_error", "assertion_error"}:
        message = f"{message[0].lower()}{message[1:]} (got {_short(fault['input'])})"
    return f"{path}: {message}"


def _suggestion(location: tuple[int | str, ...], model: type[BaseModel] | None) -> str:
    fields = _fields_at(location[:-1], model)
    close = difflib.get_close_matches(str(location[-1]), fields, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known: {', '.join(fields)}" if fields else ""


def _fields_at(path: tuple[int | str, ...], model: type[BaseModel] | None) -> list[str]:
    """Names of the fields of the model that sits at `path` below `model`."""
    for part in path:
        if isinstance(part, int) or model is None:
            continue
        info = model.model_fields.get(part)
        model = _inner_model(info.annotation) if info else model
    return list(model.model_fields) if model else []


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _inner_model(argument)
        if found is not None:
            return found
    return None


def _short(value: Any) -> str:
    # A few lines of YAML can stand for a value whose whole text fills the memory.
    text = repr(value[:_LENGTH]) if isinstance(value, str) else _LIMITED.repr(value)
    return text if len(text) <= _LENGTH else f"{text[: _LENGTH - 3]}..."
