"""Load tests and capacities on screen and paper."""
