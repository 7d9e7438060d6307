"""The only source of randomness: every draw is a function of a seed and of named coordinates.

Nothing here has state, so a resumed run needs no random-number state: it asks for the same
coordinates again and gets the same numbers. `generator_for` serves draws made once per step or
problem (shuffles, noise levels). `uniforms` serves the sampler, which needs numbers per row,
forward and position that do not depend on which other rows share the batch.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # making tasks does not wait for torch
    import torch


def key_for(seed: int, *coordinates: object) -> int:
    """A 63-bit key for `seed` and coordinates (strings, integers); equal coordinates give equal
    keys on every machine."""
    text = "\x1f".join([str(seed), *map(str, coordinates)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator_for(seed: int, *coordinates: object) -> np.random.Generator:
    """A fresh NumPy generator (Philox) for `seed` and coordinates."""
    return np.random.Generator(np.random.Philox(key=key_for(seed, *coordinates)))


def uniforms(keys: torch.Tensor, counters: torch.Tensor) -> torch.Tensor:
    """Uniform numbers in [0, 1), one for each (key, counter), float64.

    `keys` and `counters` are int64 and broadcast together. Two rounds of the splitmix64 finaliser
    (Steele, Lea, Flood 2014) over the mixed pair: integer arithmetic only, hence the same on every
    device and for every batch.
    """
    z = _mix(keys + counters * _GOLDEN) ^ keys
    z = _mix(z + _GOLDEN)
    return _shift_right(z, 11).double() * 2.0**-53


_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift_right(z: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical (unsigned) right shift of int64."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: torch.Tensor) -> torch.Tensor:
    z = (z ^ _shift_right(z, 30)) * _MIX_1
    z = (z ^ _shift_right(z, 27)) * _MIX_2
    return z ^ _shift_right(z, 31)
