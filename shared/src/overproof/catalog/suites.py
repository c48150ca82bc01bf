"""Suites: attacks with their budgets under one name, for the experiment's `suites`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from overproof.core.spec import AttackGrid
from overproof.errors import UnknownPlugin


@dataclass(frozen=True)
class Suite:
    """Attacks that belong together.

    Attributes:
        name: as an experiment writes it.
        summary: one line for lists.
        source: where the choice comes from.
        attacks: each with its budgets.
    """

    name: str
    summary: str
    source: str
    attacks: tuple[AttackGrid, ...]


_PAPER = ("2/255", "4/255", "8/255")
_PAPER_AUTOATTACK = ("1/255", "2/255", "3/255", "4/255")
_AS_IN_PAPER = {"preset": "torchattacks"}

SUITES: Mapping[str, Suite] = MappingProxyType(
    {
        suite.name: suite
        for suite in (
            Suite(
                name="quick",
                summary="one step, the cross entropy and the margin, for a first look",
                source="the cheapest attacks of DD-RobustBench",
                attacks=tuple(
                    AttackGrid(name=name, epsilons=_PAPER)
                    for name in ("fgsm-linf", "pgd-linf", "cw-linf")
                ),
            ),
            Suite(
                name="ddr",
                summary="the five attacks of DD-RobustBench; 10 steps, which tell 5 as well",
                source="DD-RobustBench, section III; configs/params.yaml",
                attacks=tuple(
                    AttackGrid(name=name, epsilons=_PAPER)
                    for name in ("fgsm-linf", "pgd-linf", "cw-linf", "vmi-fgsm-linf", "jitter-linf")
                ),
            ),
            Suite(
                name="ddr-autoattack",
                summary="AutoAttack and each of its parts alone, with the numbers of torchattacks",
                source="DD-RobustBench, section III; Auto.py",
                attacks=tuple(
                    AttackGrid(name=name, epsilons=_PAPER_AUTOATTACK, params=_AS_IN_PAPER)
                    for name in (
                        "autoattack-linf",
                        "apgd-ce-linf",
                        "apgd-t-linf",
                        "fab-t-linf",
                        "square-linf",
                    )
                ),
            ),
            Suite(
                name="worst-case",
                summary="long runs from several starts and the official AutoAttack",
                source="arXiv:2003.01690, section 6, with PGD and CW beside it",
                attacks=(
                    AttackGrid(
                        name="pgd-linf", epsilons=_PAPER, params={"steps": 50, "restarts": 5}
                    ),
                    AttackGrid(name="cw-linf", epsilons=_PAPER, params={"steps": 50}),
                    AttackGrid(name="autoattack-linf", epsilons=_PAPER),
                ),
            ),
        )
    }
)


def suite(name: str) -> Suite:
    """The suite called `name`.

    Raises:
        UnknownPlugin: there is none; the message lists close matches.
    """
    found = SUITES.get(name)
    if found is None:
        close = difflib.get_close_matches(name, SUITES, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(SUITES)}"
        raise UnknownPlugin(f"no suite is called {name!r}; {hint}")
    return found
