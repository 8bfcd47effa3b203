"""Calibration: measurements of real GPUs and engines, fits of profiles to them, validation of predictions."""
