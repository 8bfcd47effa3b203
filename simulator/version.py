"""The version, on its own so that anything may read it."""

from typing import Final

__version__: Final = "0.1.0"
