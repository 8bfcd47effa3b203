"""Scenarios shipped with servecast, one YAML file each; the first line of a file says what it shows."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent
