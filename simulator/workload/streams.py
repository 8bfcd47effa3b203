"""Named random streams: each use of chance draws from its own stream, so one change leaves the others alone."""

import hashlib

import numpy as np

from simulator.errors import ConfigError


def stream(seed: int, name: str, replication: int = 0) -> np.random.Generator:
    """A PCG64 generator for (seed, replication, name).

    The name enters as 128 bits of its SHA-256, next to seed and replication, in the entropy of a
    numpy.random.SeedSequence, whose hashing makes streams of other names or replications independent
    (numpy reference, "Parallel random number generation"). Raises ConfigError for negative numbers.
    """
    for label, value in (("seed", seed), ("replication", replication)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
            raise ConfigError(f"{label} must be an integer >= 0, got {value!r}")
    words = np.frombuffer(hashlib.sha256(name.encode()).digest()[:16], dtype="<u4")
    # Fixed number of words per part: (1, 0) and (0, 1) must not share entropy.
    parts = [*_words(int(seed)), *_words(int(replication)), *(int(word) for word in words)]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(parts)))


def _words(value: int) -> list[int]:
    """Four 32-bit words, least significant first. Raises ConfigError beyond 128 bits."""
    if value >> 128:
        raise ConfigError(f"seed must be below 2**128, got {value}")
    return [(value >> shift) & 0xFFFFFFFF for shift in (0, 32, 64, 96)]
