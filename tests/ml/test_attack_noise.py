"""Noise by sample: uniform, independent of order, without visible structure."""

from __future__ import annotations

import hashlib

import torch

from overproof.core.canonical import canonical_json
from overproof.ml.attack.noise import uniform_noise

IDS = torch.arange(2000)


def test_noise_of_a_sample_depends_on_neither_batch_nor_order() -> None:
    whole = uniform_noise(IDS, (3, 4, 4), 1, "start", 0)

    assert torch.equal(uniform_noise(IDS.flip(0), (3, 4, 4), 1, "start", 0), whole.flip(0))
    assert torch.equal(uniform_noise(IDS[7:8], (3, 4, 4), 1, "start", 0), whole[7:8])


def test_noise_is_uniform_in_the_half_open_unit_interval() -> None:
    noise = uniform_noise(IDS, (3, 4, 4), 1, "start", 0).flatten()

    assert noise.dtype == torch.float32
    assert 0 <= float(noise.min()) < 1e-3
    assert 1 - 1e-3 < float(noise.max()) < 1
    assert torch.equal(noise * 2**24, (noise * 2**24).round())
    counts = torch.histc(noise, bins=64, min=0, max=1)
    expected = len(noise) / 64
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert 25 < chi_squared < 125  # 63 degrees of freedom: 63 ± 5.5 standard deviations


def test_noise_has_no_correlation_between_samples_positions_and_streams() -> None:
    noise = uniform_noise(IDS, (48,), 1, "start", 0) - 0.5
    limit = 5 / (noise.numel() ** 0.5) / 12

    other_seed = uniform_noise(IDS, (48,), 2, "start", 0) - 0.5
    other_restart = uniform_noise(IDS, (48,), 1, "start", 1) - 0.5

    pairs = {
        "next sample": (noise[1:], noise[:-1]),
        "next position": (noise[:, 1:], noise[:, :-1]),
        "diagonal": (noise[1:, 1:], noise[:-1, :-1]),
        "seed": (noise, other_seed),
        "restart": (noise, other_restart),
    }
    for name, (a, b) in pairs.items():
        assert abs(float((a * b).mean())) < limit, name


def test_no_two_samples_share_their_noise() -> None:
    noise = uniform_noise(IDS, (48,), 1, "start", 0)

    assert len(set(noise[:, 0].tolist())) > 0.99 * len(IDS)
    assert len({row.numpy().tobytes() for row in noise}) == len(IDS)


def test_noise_equals_splitmix64_in_plain_integers() -> None:
    ids = [0, 1, 10**9]
    seed_bytes = hashlib.sha256(canonical_json([0, "start", 0])).digest()[:8]
    key = int.from_bytes(seed_bytes, "big")

    noise = uniform_noise(torch.tensor(ids), (2,), 0, "start", 0)

    streams = [mix(mix(i * GAMMA + key)) for i in ids]
    expected = [[mix(stream + j * GAMMA) >> 40 for j in (1, 2)] for stream in streams]
    assert (noise * 2**24).long().tolist() == expected
    assert expected == [[8266043, 11946880], [15862785, 2206970], [562690, 10876347]]


GAMMA = 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    z &= 2**64 - 1
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return z ^ (z >> 31)
