"""Gaps between tokens, counted in a histogram whose bins grow with the gap (state.log_bin_edges)."""

from simulator.jit import jitable
from simulator.state import ITL_BITS


@jitable
def itl_bin(gap: int) -> int:
    """Histogram bin of an inter-token gap [ns]; see state.log_bin_edges."""
    octave = (gap >> ITL_BITS).bit_length()
    if octave == 0:
        return gap
    return (octave << ITL_BITS) + ((gap >> (octave - 1)) - (1 << ITL_BITS))


@jitable
def bin_start(index: int) -> int:
    """[ns] shortest gap in a histogram bin."""
    octave = index >> ITL_BITS
    if octave == 0:
        return index
    return ((1 << ITL_BITS) + (index & ((1 << ITL_BITS) - 1))) << (octave - 1)
