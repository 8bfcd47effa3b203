"""Scheduling policies: one pure step function a file, run by both engines."""
