"""The only source of randomness: a function of seed and coordinates, uniform, independent across
keys and counters."""

import numpy as np
import pytest
import torch

from tests.tiny import chi_square_z
from tracerl.seeds import generator_for, key_for, uniforms

COUNT = 64_000
KEYS = torch.tensor([key_for(1, "rows", i) for i in range(COUNT)])
COUNTERS = torch.arange(COUNT)
# As the sampler counts: step in the high half, position in the low one.
STEPS_AND_POSITIONS = (torch.arange(COUNT // 64).unsqueeze(1) << 32) + torch.arange(64)


def streams() -> dict[str, np.ndarray]:
    """Numbers whose order is that of neighbouring keys, of neighbouring counters, and of what the
    sampler asks for."""
    key = torch.tensor(key_for(1, "one row"))
    return {
        "keys": uniforms(KEYS, torch.tensor(7)).numpy(),
        "neighbouring keys": uniforms(torch.arange(COUNT), torch.tensor(0)).numpy(),
        "counters": uniforms(key, COUNTERS).numpy(),
        "steps and positions": uniforms(key, STEPS_AND_POSITIONS).reshape(-1).numpy(),
        "positions and steps": uniforms(key, STEPS_AND_POSITIONS.T).reshape(-1).numpy(),
        "keys and counters together": uniforms(KEYS, COUNTERS).numpy(),
    }


@pytest.mark.parametrize("name", streams())
def test_numbers_are_uniform(name):
    numbers = streams()[name]
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    assert len(np.unique(numbers)) == COUNT
    assert (
        chi_square_z(
            np.bincount((numbers * 128).astype(int), minlength=128), np.full(128, COUNT / 128)
        )
        < 3.5
    )
    low_bits = (numbers * 2.0**53).astype(np.int64) % 128
    assert chi_square_z(np.bincount(low_bits, minlength=128), np.full(128, COUNT / 128)) < 3.5


@pytest.mark.parametrize("lag", [1, 2, 64])
@pytest.mark.parametrize("name", streams())
def test_numbers_are_independent_of_their_neighbours(name, lag):
    numbers = (streams()[name] * 16).astype(int)
    pairs = numbers[:-lag] * 16 + numbers[lag:]
    assert chi_square_z(np.bincount(pairs, minlength=256), np.full(256, len(pairs) / 256)) < 3.5


def test_two_rows_are_independent_at_the_same_step_and_position():
    one, other = (
        (uniforms(torch.tensor(key_for(1, name)), COUNTERS).numpy() * 16).astype(int)
        for name in ("a", "b")
    )
    assert (
        chi_square_z(np.bincount(one * 16 + other, minlength=256), np.full(256, COUNT / 256)) < 3.5
    )


def test_a_number_does_not_depend_on_the_call_that_asks_for_it():
    keys, counters = KEYS[:40].unsqueeze(1), STEPS_AND_POSITIONS.reshape(-1)[:30]
    table = uniforms(keys, counters)
    assert table.shape == (40, 30)
    assert table.dtype == torch.float64
    assert all(
        float(uniforms(keys[i, 0], counters[j])) == float(table[i, j])
        for i in range(0, 40, 7)
        for j in range(0, 30, 3)
    )


def test_numbers_and_keys_are_those_of_every_other_machine():
    """Stored rollouts can be sampled again only as long as these do not change."""
    assert key_for(1, "rl@short", 3, "sums-short/2c1f", 0) == 3847753202483539218
    assert uniforms(
        torch.tensor([0, 1, 3847753202483539218]), torch.tensor([0, 5 << 32, 1])
    ).tolist() == [
        0.8833108082136426,
        0.8939535297032111,
        0.30734042009068063,
    ]
    assert generator_for(1, "a", 2).integers(0, 1000, 4).tolist() == [363, 370, 430, 265]


def test_every_coordinate_counts():
    coordinates: list[tuple[object, ...]] = [
        ("a", 1),
        ("b", 1),
        ("a", 2),
        ("a",),
        ("a", 1, 0),
        ("a1",),
        (1, "a"),
    ]
    keys = [key_for(seed, *names) for seed in (1, 2) for names in coordinates]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 2**63 for key in keys)
    draws = [
        generator_for(1, "a", 1).random(),
        generator_for(2, "a", 1).random(),
        generator_for(1, "a", 2).random(),
    ]
    assert len(set(draws)) == 3
    assert generator_for(1, "a", 1).random() == draws[0]
