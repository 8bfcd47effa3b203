"""Data shipped with servecast: GPU, engine, host and model profiles. Every number carries unit and source."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent
GPU_DIR = ROOT / "gpu"
ENGINE_DIR = ROOT / "engine"
HOST_DIR = ROOT / "host"
MODEL_DIR = ROOT / "models"
