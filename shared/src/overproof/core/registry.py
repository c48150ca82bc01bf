"""Plug-ins as data: a name, an import string, typed parameters and where they come from."""

from __future__ import annotations

import difflib
import fnmatch
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from overproof.core.faults import faults_of
from overproof.core.spec import PluginRef
from overproof.errors import DuplicatePlugin, InvalidSpec, PluginUnavailable, UnknownPlugin


class Params(BaseModel):
    """Typed parameters of a plug-in: frozen, finite, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True)
class PluginInfo:
    """One plug-in.

    Attributes:
        name: kebab-case of the paper's name; attacks carry their norm (`pgd-linf`).
        target: `package.module:attribute`, imported only when the plug-in is used.
        params: model of its parameters with their defaults.
        summary: one line for lists.
        source: paper and reference repository.
        semantics: raised by hand whenever the output for equal parameters changes; enters ids.
        needs: what must be installed, for the message when it is not (`overproof[ml]`).
        tags: free words for filters.
        aliases: other names, resolved before anything is hashed.
    """

    name: str
    target: str
    params: type[Params]
    summary: str
    source: str
    semantics: int = 1
    needs: str = ""
    tags: frozenset[str] = frozenset()
    aliases: tuple[str, ...] = field(default=())


class Registry:
    """The plug-ins of one kind, listed without importing any of them."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._infos: dict[str, PluginInfo] = {}
        self._aliases: dict[str, str] = {}

    def add(self, info: PluginInfo) -> None:
        """Register `info`.

        Raises:
            DuplicatePlugin: its name or an alias is taken; the message names both targets.
        """
        for name in (info.name, *info.aliases):
            taken = self._infos.get(self._aliases.get(name, name))
            if taken is not None:
                raise DuplicatePlugin(
                    f"{self.kind} {name!r} is claimed by {taken.target} and {info.target}; "
                    "rename one of them"
                )
        self._infos[info.name] = info
        self._aliases.update(dict.fromkeys(info.aliases, info.name))

    def get(self, name: str) -> PluginInfo:
        """The plug-in called `name`, or one of its aliases.

        Raises:
            UnknownPlugin: there is none; the message lists close matches.
        """
        info = self._infos.get(self._aliases.get(name, name))
        if info is None:
            known = [*self._infos, *self._aliases]
            close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
            raise UnknownPlugin(f"no {self.kind} is called {name!r}; {hint}")
        return info

    def __contains__(self, name: object) -> bool:
        """Whether a plug-in or an alias is called `name`."""
        return name in self._infos or name in self._aliases

    def names(self, pattern: str = "*") -> list[str]:
        """Names that match the wildcard `pattern`, sorted."""
        return sorted(fnmatch.filter(self._infos, pattern))

    def __iter__(self) -> Iterator[PluginInfo]:
        """All plug-ins in the order of their names."""
        return iter([self._infos[name] for name in self.names()])

    def resolve(self, ref: PluginRef) -> Params:
        """Typed parameters of `ref`, defaults filled in.

        Raises:
            UnknownPlugin: no plug-in of that name.
            InvalidSpec: parameters with faults; all of them are listed.
        """
        info = self.get(ref.name)
        try:
            return info.params.model_validate(dict(ref.params))
        except ValidationError as error:
            raise InvalidSpec(
                faults_of(error, model=info.params), source=f"{self.kind} {ref.name}"
            ) from None

    def canonical(self, ref: PluginRef) -> PluginRef:
        """`ref` under its proper name and with all defaults filled in, ready to be hashed."""
        params = self.resolve(ref)
        return PluginRef(name=self.get(ref.name).name, params=params.model_dump(mode="json"))

    def load(self, name: str) -> Callable[..., Any]:
        """Import the plug-in's target.

        Raises:
            PluginUnavailable: an import failed; the message names the missing package.
        """
        info = self.get(name)
        module, _, attribute = info.target.partition(":")
        try:
            loaded: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            needs = f"; install {info.needs}" if info.needs else ""
            raise PluginUnavailable(
                f"{self.kind} {info.name!r} cannot be loaded: {error}{needs}"
            ) from error
        return loaded

    def add_entry_points(self) -> None:
        """Register plug-ins of other packages, published in the group `overproof.<kind>`.

        Each entry point names a `PluginInfo`. Called once, by `runtime.wiring`.
        """
        for point in entry_points(group=f"overproof.{self.kind}"):
            self.add(point.load())
