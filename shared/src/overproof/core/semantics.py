"""What "robust" means. Imports nothing, so that the command line can offer the choice at once."""

from __future__ import annotations

from enum import StrEnum


class Semantics(StrEnum):
    """Which samples count as robust; for one cell always S2 ≤ S3 ≤ S1.

    Source: DD-RobustBench, whose FGSM, PGD, CW, VMIFGSM and Jitter report S1 and whose AutoAttack
    reports S2.
    """

    S1 = "S1"  # right on the last iterate, whether or not right on the clean image
    S2 = "S2"  # right on the clean image and on every iterate
    S3 = "S3"  # right on the clean image and on the last iterate
