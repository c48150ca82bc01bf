"""Steps of distillation as published programs take them: the reference of speed, and an oracle.

Augmentation is left out: it is the same work on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from overproof.ml.models.base import Network


def gradient_matching(network: Network, real: Tensor, synthetic: Tensor) -> tuple[Tensor, Tensor]:
    """One class after another, gradients of all parameters, one backward pass for all.

    Args:
        network: normalised images → logits.
        real: (K, m, C, H, W) normalised images.
        synthetic: (K, n, C, H, W) normalised images.

    Returns:
        The gradient like `synthetic`, and the layerwise distance summed over classes.

    Source: VICO-UoE/DatasetCondensation, main.py.
    """
    leaf = synthetic.detach().requires_grad_(True)
    parameters = list(network.parameters())
    loss = torch.zeros((), device=leaf.device)
    for label, (of_real, ours) in enumerate(zip(real, leaf, strict=True)):
        labels = torch.full((len(of_real),), label, device=leaf.device)
        target = torch.autograd.grad(functional.cross_entropy(network(of_real), labels), parameters)
        made = torch.autograd.grad(
            functional.cross_entropy(network(ours), labels[: len(ours)]),
            parameters,
            create_graph=True,
        )
        for a, b in zip(made, (each.detach() for each in target), strict=True):
            if a.ndim > 1:
                a, b = a.flatten(1), b.flatten(1)
                cosine = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1) + 1e-6)
                loss = loss + (1 - cosine).sum()
    network.zero_grad()
    torch.autograd.backward(loss)
    assert leaf.grad is not None
    return leaf.grad, loss.detach()


def distribution_matching(
    network: Network, real: Tensor, synthetic: Tensor, entropy_weight: float | None = None
) -> tuple[Tensor, Tensor]:
    """One class after another, one backward pass for all.

    Args:
        network: see above; its parameters take no gradients.
        real: (K, m, C, H, W) normalised images.
        synthetic: (K, n, C, H, W) normalised images.
        entropy_weight: of each class's cross entropy, None for DM, which has none.

    Returns:
        The gradient like `synthetic`, and the squared distance summed over classes.

    Source: VICO-UoE/DatasetCondensation, main_DM.py; with cross entropy uitrbn/IDM.
    """
    leaf = synthetic.detach().requires_grad_(True)
    loss = torch.zeros((), device=leaf.device)
    for label, (of_real, ours) in enumerate(zip(real, leaf, strict=True)):
        target = network.embed(of_real).detach()
        features = network.embed(ours)
        loss = loss + (target.mean(dim=0) - features.mean(dim=0)).square().sum()
        if entropy_weight is not None:
            labels = torch.full((len(ours),), label, device=leaf.device)
            entropy = functional.cross_entropy(network.classify(features), labels)
            loss = loss + entropy_weight * entropy
    torch.autograd.backward(loss)
    assert leaf.grad is not None
    return leaf.grad, loss.detach()


def trajectory_matching(
    network: Network,
    images: Tensor,
    labels: Tensor,
    batches: Sequence[Tensor],
    *,
    start: Tensor,
    goal: Tensor,
    rate: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Autograd through all steps of the student at once.

    Args:
        network: the architecture of student and expert.
        images: (N, C, H, W) normalised.
        labels: (N,) int64.
        batches: rows of each step of the student.
        start: (P,) a snapshot of an expert.
        goal: (P,) a later one.
        rate: () of the student.

    Returns:
        The gradients by images and rate, and the loss.

    Source: GeorgeCazenavette/mtt-distillation, distill.py.
    """
    leaf, beta = images.detach().requires_grad_(True), rate.detach().requires_grad_(True)
    named = dict(network.named_parameters())
    flat = start.detach().requires_grad_(True)
    for rows in batches:
        parts = torch.split(flat, [each.numel() for each in named.values()])
        parameters = {
            name: part.view_as(each)
            for (name, each), part in zip(named.items(), parts, strict=True)
        }
        logits = functional_call(network, parameters, (leaf[rows],))
        loss = functional.cross_entropy(logits, labels[rows])
        (gradient,) = torch.autograd.grad(loss, flat, create_graph=True)
        flat = flat - beta * gradient
    loss = (flat - goal).square().sum() / (start - goal).square().sum()
    by_images, by_rate = torch.autograd.grad(loss, [leaf, beta])
    return by_images, by_rate, loss.detach()
