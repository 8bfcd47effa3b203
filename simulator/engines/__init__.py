"""Engines: `reference` (SimPy, readable) and `fast` (numba); `booking` is what both run."""
