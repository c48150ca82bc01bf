"""Losses of training: from the logits of a batch and what they are to become, to one number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

LossKind = Literal["cross-entropy", "kl", "mse"]


@dataclass(frozen=True)
class Loss:
    """What networks minimise.

    Attributes:
        kind: `cross-entropy` with classes or probabilities; `kl`, the divergence of softened
            outputs from soft labels; `mse`, the squared distance of logits from those of a
            teacher.
        temperature: T, by which logits of both sides are divided before the softmax.
        scaled: multiply by T², so that gradients do not shrink with T.
        hard_weight: of the cross entropy with the classes, which `mse` adds.

    Source: arXiv:1503.02531, section 2, for T and T²; arXiv:2404.13733 for the sum of
    `mse`; NUS-HPC-AI-Lab/DD-Ranking, loss/. Differs: targets are softened once before training,
    not in every step.
    """

    kind: LossKind = "cross-entropy"
    temperature: float = 1.0
    scaled: bool = False
    hard_weight: float = 0.0

    def targets(self, labels: Tensor, logits: Tensor | None) -> Tensor:
        """What batches are compared with; mixing images mixes rows of it linearly.

        Args:
            labels: (N,) int64 classes, or (N, K) float32 probabilities.
            logits: (N, K) float32 soft labels, None for training with `labels`.

        Returns:
            `labels` without soft ones; else (N, K) probabilities at the temperature, of `mse`
            (N, 2, K): the logits and the classes as probabilities.
        """
        if logits is None:
            return labels
        if self.kind != "mse":
            return (logits / self.temperature).softmax(dim=1)
        hard = labels if labels.is_floating_point() else one_hot(labels, logits.shape[1])
        return torch.stack([logits, hard.to(logits.dtype)], dim=1)

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of a batch.

        Args:
            logits: (B, K) float32.
            targets: rows of what `targets` returned.
        """
        if self.kind == "mse":
            soft, hard = targets.unbind(1)
            loss = functional.mse_loss(logits, soft)
            return loss + self.hard_weight * functional.cross_entropy(logits, hard)
        softened = logits if self.temperature == 1.0 else logits / self.temperature
        if self.kind == "kl":
            log_probabilities = softened.log_softmax(dim=1)
            loss = functional.kl_div(log_probabilities, targets, reduction="batchmean")
        else:
            loss = functional.cross_entropy(softened, targets)
        return loss * self.temperature**2 if self.scaled else loss


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """(N,) int64 classes as (N, K) float32 probabilities."""
    return functional.one_hot(labels, classes).float()
