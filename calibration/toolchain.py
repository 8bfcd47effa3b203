"""Find what the microbenchmark harness needs on this machine: nvcc, a GPU, cuBLASLt, NCCL, compute-sanitizer.

Nothing is installed or changed; a missing necessity raises CalibrationError saying what to do.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from simulator.errors import CalibrationError


@dataclass(frozen=True)
class Toolchain:
    """Paths of the tools; None where an optional one was not found."""

    nvcc: Path
    nvcc_version: str
    nvidia_smi: Path
    compute_capability: str  # e.g. "9.0"
    cublaslt_header: Path | None  # folder
    cublaslt: Path | None
    nccl: Path | None
    sanitizer: Path | None

    def target_flag(self) -> str:
        """nvcc's architecture flag; Hopper needs the `a` target for wgmma."""
        number = self.compute_capability.replace(".", "")
        suffix = "a" if number == "90" else ""
        return f"-gencode=arch=compute_{number}{suffix},code=sm_{number}{suffix}"


def find_toolchain() -> Toolchain:
    """Look on PATH, beside nvcc and in the Python environment's NVIDIA packages.

    Raises CalibrationError without nvcc, without a GPU, or on a GPU the kernels were not written for.
    """
    nvcc = find_nvcc()
    smi = shutil.which("nvidia-smi")
    if smi is None:
        raise CalibrationError("nvidia-smi: not found on PATH: `calibrate run` needs an NVIDIA GPU")
    query = [smi, "--query-gpu=compute_cap", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True)
    if done.returncode or not done.stdout.strip():
        raise CalibrationError(f"nvidia-smi: no GPU answers: {(done.stdout + done.stderr).strip()[:200]}")
    capability = done.stdout.split()[0]
    if capability != "9.0":
        raise CalibrationError(
            f"GPU: compute capability is {capability}, accepted: 9.0 (the kernels use Hopper instructions)"
        )
    roots = [*cuda_roots(nvcc), *package_roots()]
    header = first_file(r / "include" / "cublasLt.h" for r in roots)
    beside = nvcc.resolve().parent / "compute-sanitizer"
    sanitizer = shutil.which("compute-sanitizer") or (str(beside) if beside.exists() else None)
    return Toolchain(
        nvcc=nvcc,
        nvcc_version=nvcc_version(nvcc),
        nvidia_smi=Path(smi),
        compute_capability=capability,
        cublaslt_header=header.parent if header else None,
        cublaslt=find_library("libcublasLt.so*", roots),
        nccl=find_library("libnccl.so*", roots),
        sanitizer=Path(sanitizer) if sanitizer else None,
    )


def find_nvcc() -> Path:
    """nvcc on PATH, else in /usr/local/cuda. Raises CalibrationError with what to install."""
    found = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if found is None:
        raise CalibrationError(
            "nvcc: not found on PATH or in /usr/local/cuda/bin: `calibrate run` builds CUDA kernels and "
            "needs the CUDA toolkit (13.0 was used)"
        )
    return Path(found)


def nvcc_version(nvcc: Path) -> str:
    """Release number nvcc reports, e.g. '13.0.88'."""
    done = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True)
    match = re.search(r"V(\d+\.\d+\.\d+)", done.stdout)
    return match.group(1) if match else "unknown"


def cuda_roots(nvcc: Path) -> list[Path]:
    """CUDA installation folders: the one nvcc lies in, and the usual place."""
    return [nvcc.resolve().parent.parent, Path("/usr/local/cuda")]


def package_roots() -> list[Path]:
    """Folders of NVIDIA's Python packages (nvidia/<name>) in this interpreter's environment."""
    places = {sysconfig.get_paths()[k] for k in ("purelib", "platlib")}
    return sorted(p for place in places for p in Path(place).glob("nvidia/*") if p.is_dir())


def find_library(pattern: str, roots: Iterable[Path]) -> Path | None:
    """First shared library matching `pattern` in lib64, lib or the system's library folders."""
    folders = [r / d for r in roots for d in ("lib64", "lib", "targets/x86_64-linux/lib")]
    folders += [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64")]
    return first_file(f for folder in folders if folder.is_dir() for f in sorted(folder.glob(pattern)))


def first_file(candidates: Iterable[Path]) -> Path | None:
    """The first candidate that exists as a file."""
    return next((c for c in candidates if c.is_file()), None)
