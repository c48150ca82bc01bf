"""Attacks of torchattacks and foolbox, made to draw what ours draw.

`adversarial` runs the other implementation of an attack of the catalog. What they draw from a
global generator is replaced by our noise by sample; where they share a draw in the whole batch, or
use the step size of the first image for all, they are run image by image.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

import torch
import torchattacks
from torch import Tensor, nn
from torch.nn import functional

from overproof.catalog.attacks import ATTACKS, attack
from overproof.core.spec import PluginRef
from overproof.core.threat import Norm, epsilon_value
from overproof.ml.attack.noise import normal_noise, uniform_noise
from overproof.ml.attack.square_search import BLOCK

_SEED = 0  # of our attacks, whose draws these are
_NORMS = {Norm.LINF: "Linf", Norm.L2: "L2"}


def adversarial(
    name: str, network: nn.Module, x: Tensor, y: Tensor, radius: float, **params: Any
) -> Tensor:
    """What another implementation of the attack makes of `x`; of sample i the id is i.

    Args:
        name: as in the catalog; `autoattack-*` and `apgd-*` with one restart only.
        network: in eval mode.
        x: (B, C, H, W) in [0, 1].
        y: (B,) int64.
        radius: the budget; foolbox's attacks have none.
        **params: of our attack.

    Returns:
        (B, C, H, W). Of an attack that looks for the nearest image it may lie outside the budget.
    """
    resolved: Any = ATTACKS.resolve(PluginRef(name=name, params=params))
    run = _IMAGE_BY_IMAGE.get(name)
    if run is None:
        return _TOGETHER[name](network, x, y, radius, resolved)
    rows = range(len(x))
    return torch.cat(
        [run(network, x[i : i + 1], y[i : i + 1], radius, resolved, i) for i in rows]
    ).detach()


# ---- draws --------------------------------------------------------------------------------------


@contextmanager
def feeding(**draws: Iterator[Tensor]) -> Iterator[None]:
    """Inside, draws come from the iterators; uniform ones are stretched to what is asked for.

    Args:
        **draws: by the name of what would draw: the methods `uniform_` and `normal_` of tensors,
            and the functions `rand`, `randn` and `randn_like`.
    """

    def uniform(_: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
        return low + (high - low) * next(draws["uniform_"])

    def plain(name: str) -> Callable[..., Tensor]:
        return lambda *_, **__: next(draws[name]).clone()

    with ExitStack() as patches:
        for name in draws:
            owner = Tensor if name.endswith("_") else torch
            made = uniform if name == "uniform_" else plain(name)
            patches.enter_context(patch.object(owner, name, made))
        yield


def rows_of(part: Tensor, whole: Tensor) -> Tensor:
    """Numbers of the rows of `whole` that `part` consists of; the rows are all different."""
    return torch.stack(
        [(whole == row).flatten(1).all(dim=1).int().argmax() for row in part.unbind()]
    )


def with_our_starts(oracle: Any, ids_of: Callable[[Tensor], Tensor], name: str) -> Any:
    """APGD of torchattacks, starting where ours starts.

    Args:
        oracle: `APGD` or `APGDT`.
        ids_of: (M, C, H, W) images → (M,) numbers of the samples.
        name: what our noise is called; `{rank}` is replaced by that of the target.
    """
    run = oracle.attack_single_run

    def started(x: Tensor, y: Tensor) -> Any:
        rank = 0 if oracle.__dict__.get("target_class") is None else oracle.target_class - 2
        labels = ("apgd", name.format(rank=rank), 0)
        ids, shape = ids_of(x), tuple(x.shape[1:])
        if oracle.norm == "L2":
            draws = {"randn": iter([normal_noise(ids, shape, _SEED, *labels)])}
        else:
            draws = {"rand": iter([uniform_noise(ids, shape, _SEED, *labels)])}
        with feeding(**draws):
            return run(x, y)

    oracle.attack_single_run = started
    return oracle


def with_our_squares(
    oracle: Any, ids_of: Callable[[Tensor], Tensor], channels: int, drawn_for: int
) -> Any:
    """Square of torchattacks in L∞, with the stripes and squares of ours.

    Args:
        oracle: `Square`.
        ids_of: (M, C, H, W) images → (M,) numbers of the samples, whose stripes are their own.
        channels: C.
        drawn_for: sample whose squares are used for the whole batch.
    """
    query = -1
    positions: list[Tensor] = []
    blocks: dict[int, Tensor] = {}
    ids = torch.zeros(0)
    run = oracle.attack_single_run

    def draws() -> Tensor:
        block, place = divmod(query, BLOCK)
        if block not in blocks:
            drawn = torch.tensor([drawn_for])
            blocks[block] = uniform_noise(drawn, (BLOCK, 2 + channels), _SEED, "square", 0, block)
        return blocks[block][0, place]

    def started(x: Tensor, y: Tensor) -> Any:
        nonlocal ids
        ids = ids_of(x)
        return run(x, y)

    def random_int(low: int, high: int, shape: Any = None) -> Tensor:
        nonlocal query, positions
        if not positions:  # the row of a query comes before its column
            query += 1
            positions = [draws()[0], draws()[1]]
        return (low + (high - low) * positions.pop(0)).long()

    def random_choice(shape: Any) -> Tensor:
        if len(shape) == 4:
            return (2 * uniform_noise(ids, tuple(shape[1:]), _SEED, "square-start", 0) - 1).sign()
        return (2 * draws()[2:].view(shape) - 1).sign()

    oracle.attack_single_run = started
    oracle.random_int, oracle.random_choice = random_int, random_choice
    return oracle


def with_our_bumps(oracle: Any, sample: int, shape: tuple[int, ...]) -> Any:
    """Square of torchattacks in L2 on one image, with the bumps and windows of ours."""
    channels, height, width = shape
    ids = torch.tensor([sample])
    side = max(height // 5, 1)
    run = oracle.attack_single_run

    def numbers() -> Iterator[Tensor]:
        # In the order in which they are asked for: at first by tile, then by query.
        tiles = (height // side, width // side, 1 + channels)
        yield from uniform_noise(ids, tiles, _SEED, "square-start", 0).flatten()
        for block in count():
            draws = uniform_noise(ids, (BLOCK, 5 + channels), _SEED, "square", 0, block)
            yield from draws.flatten()

    stream = numbers()

    def random_int(low: int, high: int, shape: Any = None) -> Tensor:
        return (low + (high - low) * next(stream)).long()

    def random_choice(shape: Any) -> Tensor:
        drawn = torch.stack([next(stream) for _ in range(channels)])
        return (2 * drawn - 1).sign().view(1, channels, 1, 1)

    def started(x: Tensor, y: Tensor) -> Any:
        with feeding(rand=stream):
            return run(x, y)

    oracle.attack_single_run = started
    oracle.random_int, oracle.random_choice = random_int, random_choice
    return oracle


# ---- attacks, all images together ---------------------------------------------------------------


def _fgsm(network: nn.Module, x: Tensor, y: Tensor, radius: float, params: Any) -> Tensor:
    made: Tensor = torchattacks.FGSM(network, eps=radius)(x, y)
    return made


def _stepped(cls: Any, **renamed: str) -> Callable[..., Tensor]:
    """An attack with `alpha` and `steps` and, by their names there, further parameters."""

    def run(network: nn.Module, x: Tensor, y: Tensor, radius: float, params: Any) -> Tensor:
        further = {theirs: getattr(params, ours) for theirs, ours in renamed.items()}
        alpha = epsilon_value(params.step_size)
        oracle = cls(network, eps=radius, alpha=alpha, steps=params.steps, **further)
        with feeding(**_draws_of_steps(oracle, network, x, params)):
            made: Tensor = oracle(x, y)
        return made

    return run


def _draws_of_steps(
    oracle: Any, network: nn.Module, x: Tensor, params: Any
) -> dict[str, Iterator[Tensor]]:
    """What an attack of steps asks for, one iterator for each function that it draws with."""
    ids, shape, steps = torch.arange(len(x)), tuple(x.shape[1:]), range(params.steps)
    match type(oracle).__name__:
        case "PGD":
            return {"uniform_": iter([uniform_noise(ids, shape, _SEED, "start", 0)])}
        case "PGDL2":
            start = ("start", 0)
            return {
                "normal_": iter([normal_noise(ids, shape, _SEED, *start, "direction")]),
                "uniform_": iter([uniform_noise(ids, (1, 1, 1), _SEED, *start, "radius")]),
            }
        case "VMIFGSM":
            around = [(step, i) for step in steps for i in range(params.neighbours)]
            return {
                "uniform_": (uniform_noise(ids, shape, _SEED, "vmi", *which) for which in around)
            }
        case "Jitter":
            classes = network(x[:1]).shape[1]
            return {
                "uniform_": iter([uniform_noise(ids, shape, _SEED, "jitter start")]),
                "randn_like": (
                    normal_noise(ids, (classes,), _SEED, "jitter noise", step) for step in steps
                ),
            }
        case _:
            return {}


def _cw_linf(network: nn.Module, x: Tensor, y: Tensor, radius: float, params: Any) -> Tensor:
    """The CW of DD-RobustBench, by its definition."""
    noise = uniform_noise(torch.arange(len(x)), tuple(x.shape[1:]), _SEED, "cw start")
    delta = (radius * (2 * noise - 1)).clamp(-x, 1 - x)
    for _ in range(params.steps):
        delta.requires_grad_(True)
        logits = network(x + delta)
        one_hot = functional.one_hot(y, logits.shape[1])
        true = (logits * one_hot).sum(dim=1)
        other = (logits * (1 - one_hot) - 1000 * one_hot).amax(dim=1)
        loss = -(true - other + params.confidence).clamp(min=0).sum()
        (gradient,) = torch.autograd.grad(loss, delta)
        moved = delta.detach() + epsilon_value(params.step_size) * gradient.sign()
        delta = moved.clamp(-radius, radius).clamp(-x, 1 - x)
    return x + delta


def _apgd(loss: str, norm: Norm) -> Callable[..., Tensor]:
    def run(network: nn.Module, x: Tensor, y: Tensor, radius: float, params: Any) -> Tensor:
        oracle = torchattacks.APGD(
            network,
            norm=_NORMS[norm],
            eps=radius,
            steps=params.steps,
            loss=loss,
            rho=params.rho,
            eot_iter=params.eot_iterations,
        )
        made: Tensor = with_our_starts(oracle, lambda part: rows_of(part, x), loss)(x, y)
        return made

    return run


def _apgd_t(network: nn.Module, x: Tensor, y: Tensor, radius: float, params: Any) -> Tensor:
    oracle = torchattacks.APGDT(
        network, eps=radius, steps=params.steps, n_classes=_targets(network, x, params) + 1
    )
    made: Tensor = with_our_starts(oracle, lambda part: rows_of(part, x), "target-{rank}")(x, y)
    return made


def _targets(network: nn.Module, x: Tensor, params: Any) -> int:
    others: int = network(x[:1]).shape[1] - 1
    return others if params.targets is None else min(params.targets, others)


def _fab(norm: Norm, *, targeted: bool) -> Callable[..., Tensor]:
    def run(network: nn.Module, x: Tensor, y: Tensor, radius: float, params: Any) -> Tensor:
        oracle = torchattacks.FAB(
            network,
            norm=_NORMS[norm],
            eps=radius,
            steps=params.steps,
            alpha_max=params.alpha_max,
            eta=params.eta,
            beta=params.beta,
            multi_targeted=targeted,
            n_classes=_targets(network, x, params) + 1 if targeted else 10,
        )
        made: Tensor = oracle(x, y)
        return made

    return run


def _foolbox(make: Callable[[Any, Any], Any]) -> Callable[..., Tensor]:
    def run(network: nn.Module, x: Tensor, y: Tensor, radius: float, params: Any) -> Tensor:
        foolbox = foolbox_package()
        model = foolbox.PyTorchModel(network, bounds=(0, 1), device=torch.device("cpu"))
        raw, _, _ = make(foolbox, params)(model, x, y, epsilons=None)
        made: Tensor = raw.detach()
        return made

    return run


def foolbox_package() -> Any:
    """foolbox, whose import still uses names that SciPy deprecates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import foolbox
    return foolbox


_TOGETHER: dict[str, Callable[..., Tensor]] = {
    "fgsm-linf": _fgsm,
    "bim-linf": _stepped(torchattacks.BIM),
    "pgd-linf": _stepped(torchattacks.PGD, random_start="random_start"),
    "pgd-l2": _stepped(torchattacks.PGDL2, random_start="random_start"),
    "cw-linf": _cw_linf,
    "mi-fgsm-linf": _stepped(torchattacks.MIFGSM, decay="decay"),
    "ni-fgsm-linf": _stepped(torchattacks.NIFGSM, decay="decay"),
    "vmi-fgsm-linf": _stepped(torchattacks.VMIFGSM, decay="decay", N="neighbours", beta="spread"),
    "jitter-linf": _stepped(
        torchattacks.Jitter, scale="scale", std="std", random_start="random_start"
    ),
    "cw-l2": _foolbox(
        lambda foolbox, params: foolbox.attacks.L2CarliniWagnerAttack(
            binary_search_steps=params.search_steps,
            steps=params.steps,
            stepsize=params.learning_rate,
            initial_const=params.constant,
            abort_early=False,
        )
    ),
    "deepfool-l2": _foolbox(
        lambda foolbox, params: foolbox.attacks.L2DeepFoolAttack(
            steps=params.steps, candidates=None, overshoot=params.overshoot
        )
    ),
    "apgd-ce-linf": _apgd("ce", Norm.LINF),
    "apgd-ce-l2": _apgd("ce", Norm.L2),
    "apgd-dlr-linf": _apgd("dlr", Norm.LINF),
    "apgd-dlr-l2": _apgd("dlr", Norm.L2),
    "apgd-t-linf": _apgd_t,
    "fab-linf": _fab(Norm.LINF, targeted=False),
    "fab-l2": _fab(Norm.L2, targeted=False),
    "fab-t-linf": _fab(Norm.LINF, targeted=True),
    "fab-t-l2": _fab(Norm.L2, targeted=True),
}


# ---- attacks, image by image --------------------------------------------------------------------


def _apgd_t_l2(
    network: nn.Module, x: Tensor, y: Tensor, radius: float, params: Any, sample: int
) -> Tensor:
    # All images take the step size of the first there, so each must be the first.
    oracle = torchattacks.APGDT(
        network,
        norm="L2",
        eps=radius,
        steps=params.steps,
        n_classes=_targets(network, x, params) + 1,
    )
    made: Tensor = with_our_starts(oracle, lambda _: torch.tensor([sample]), "target-{rank}")(x, y)
    return made


def _square(norm: Norm) -> Callable[..., Tensor]:
    def run(
        network: nn.Module, x: Tensor, y: Tensor, radius: float, params: Any, sample: int
    ) -> Tensor:
        oracle = torchattacks.Square(
            network,
            norm=_NORMS[norm],
            eps=radius,
            n_queries=params.queries,
            p_init=params.p_init,
            resc_schedule=params.rescale_schedule,
        )
        made: Tensor = _with_our_search(oracle, tuple(x.shape[1:]), sample)(x, y)
        return made

    return run


def _with_our_search(oracle: Any, shape: tuple[int, ...], sample: int) -> Any:
    if oracle.norm == "L2":
        return with_our_bumps(oracle, sample, shape)
    return with_our_squares(oracle, lambda _: torch.tensor([sample]), shape[0], sample)


def _autoattack(norm: Norm) -> Callable[..., Tensor]:
    def run(
        network: nn.Module, x: Tensor, y: Tensor, radius: float, params: Any, sample: int
    ) -> Tensor:
        targets = _targets(network, x, params)
        oracle = torchattacks.AutoAttack(
            network, norm=_NORMS[norm], eps=radius, n_classes=targets + 1, seed=_SEED
        )
        apgd, apgd_t, fab, square = oracle._autoattack.attacks

        def ids_of(_: Tensor) -> Tensor:
            return torch.tensor([sample])

        for part in (apgd, apgd_t, fab):
            part.steps = params.steps
        with_our_starts(apgd, ids_of, "ce")
        with_our_starts(apgd_t, ids_of, "target-{rank}")
        square.n_queries, square.rescale_schedule = params.queries, params.rescale_schedule
        _with_our_search(square, tuple(x.shape[1:]), sample)
        made: Tensor = oracle(x, y)
        return made

    return run


def _theirs(
    network: nn.Module, x: Tensor, y: Tensor, radius: float, params: Any, sample: int
) -> Tensor:
    """What the adapter runs, without the adapter."""
    oracle = getattr(torchattacks, params.attack)(network, eps=radius, **params.settings)
    made: Tensor = oracle(x, y)
    return made


_IMAGE_BY_IMAGE: dict[str, Callable[..., Tensor]] = {
    "apgd-t-l2": _apgd_t_l2,
    "square-linf": _square(Norm.LINF),
    "square-l2": _square(Norm.L2),
    "autoattack-linf": _autoattack(Norm.LINF),
    "autoattack-l2": _autoattack(Norm.L2),
    "torchattacks-linf": _theirs,
    "torchattacks-l2": _theirs,
}


def flags(
    name: str, network: nn.Module, x: Tensor, y: Tensor, radius: float, **params: Any
) -> Tensor:
    """(B,) bool, right on the clean image and, within the budget, on what `adversarial` made."""
    images = adversarial(name, network, x, y, radius, **params).detach()
    right = network(x).argmax(dim=1) == y
    fooled = network(images).argmax(dim=1) != y
    order = torch.inf if attack(name).norm is Norm.LINF else 2
    away = torch.linalg.vector_norm((images - x).flatten(1), ord=order, dim=1)
    robust: Tensor = right & ~(fooled & (away <= radius + 1e-6))
    return robust
