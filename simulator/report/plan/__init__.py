"""A plan and a what-if on screen and paper."""
