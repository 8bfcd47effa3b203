"""Number formats of weights: bytes a weight by method, and which parts of a model stay in 16 bits.

A checkpoint says so itself in `quantization_config` (AWQ, GPTQ, fp8, compressed-tensors, ModelOpt, mxfp4); a
16-bit checkpoint can be quantised when it is loaded (`weight_dtype: fp8`), which leaves embedding, head, router
and norms in 16 bits. What a list of ignored modules names is counted module by module.
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from simulator.errors import ConfigError, UnknownNameError

WEIGHT_BYTES: Final[Mapping[str, float]] = {
    "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0,
    "fp4": 0.5625,   # 4 bits and one fp8 scale per 16 weights (NVFP4)
    "int4": 0.515625,  # 4 bits and one fp16 scale per 128 weights (GPTQ without zero points, group size 128)
}
"""[bytes per weight] of the quantised matrices of a format, where the checkpoint does not say more."""
KV_BYTES: Final[Mapping[str, float]] = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
ACTIVATION_BYTES: Final = 2

_DTYPE_ALIASES: Final = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "fp8_e4m3": "fp8",
                         "fp8_e5m2": "fp8", "nvfp4": "fp4", "awq": "int4", "gptq": "int4"}
AUTO: Final = "auto"
"""The checkpoint's own format."""

QUANTISED_PARTS: Final = ("attention", "mlp", "experts", "shared")
"""Parts of a model that quantisation shrinks; embedding, head, router, norms and biases stay in 16 bits."""
METHODS: Final = ("awq", "gptq", "fp8", "fbgemm_fp8", "compressed-tensors", "modelopt", "mxfp4")


class Module(NamedTuple):
    """One matrix of a checkpoint: its Hugging Face name, the part it belongs to, its weights."""

    name: str
    part: str
    weights: int


@dataclass(frozen=True)
class WeightFormat:
    """How the weights of a checkpoint are stored."""

    dtype: str                         # key of WEIGHT_BYTES: what products are computed from
    bytes_per_weight: float            # of a quantised matrix, scales and zero points included
    method: str = "none"               # "none" (16 bits), "load" (quantised when loaded) or one of METHODS
    group_size: int = 0                # weights that share a scale along a column, 0: one per tensor, row or block
    kept: tuple[tuple[str, float], ...] = ()   # part -> share of its weights left in 16 bits

    @property
    def quantised(self) -> bool:
        """Whether any matrix is stored in fewer than 16 bits."""
        return self.bytes_per_weight < ACTIVATION_BYTES

    @property
    def in_blocks(self) -> bool:
        """Whether 8-bit weights have a scale for each block of them, not one a tensor or row."""
        return self.dtype == "fp8" and self.bytes_per_weight > WEIGHT_BYTES["fp8"]

    @property
    def mxfp4(self) -> bool:
        """Whether experts are in mxfp4, which has kernels of its own."""
        return self.method == "mxfp4"

    def kept_share(self, part: str) -> float:
        """Share of a part's weights that stays in 16 bits."""
        if part not in QUANTISED_PARTS:
            return 1.0
        return dict(self.kept).get(part, 0.0) if self.quantised else 1.0

    def part_bytes(self, part: str) -> float:
        """[bytes per weight] of a part on average."""
        share = self.kept_share(part)
        return share * ACTIVATION_BYTES + (1.0 - share) * self.bytes_per_weight

    def part_dtype(self, part: str) -> str:
        """Format most of a part is computed in: the checkpoint's, or bf16 where it stays in 16 bits."""
        return self.dtype if self.kept_share(part) < 0.5 or not self.quantised else "bf16"

    def text(self) -> str:
        """The format in words, e.g. `int4 (awq, groups of 128; attention in 16 bits)`."""
        if not self.quantised:
            return self.dtype
        how = "quantised when loaded" if self.method == "load" else self.method
        group = f", groups of {self.group_size}" if self.group_size else ""
        left = [f"{share:.0%} of {part}" if share < 0.995 else part for part, share in self.kept if share > 0]
        return f"{self.dtype} ({how}{group}{'; in 16 bits: ' + ', '.join(left) if left else ''})"


SIXTEEN_BIT: Final = WeightFormat("bf16", 2.0)


def dtype_name(dtype: str, accepted: Mapping[str, float]) -> str:
    """Canonical name of a number format (bfloat16 -> bf16, auto -> bf16). Raises UnknownNameError."""
    name = _DTYPE_ALIASES.get(dtype.lower(), dtype.lower())
    if name == AUTO:
        return "bf16"
    if name not in accepted:
        raise UnknownNameError("dtype", dtype, accepted)
    return name


def loaded_format(dtype: str, checkpoint: WeightFormat, model: str) -> WeightFormat:
    """Format in GPU memory when a checkpoint is loaded as `dtype`.

    auto and the 16-bit formats (which then say how activations are computed) leave a quantised checkpoint as it
    is. Raises ConfigError for any other format than the checkpoint's, UnknownNameError for an unknown one.
    """
    name = dtype_name(dtype, WEIGHT_BYTES)
    if checkpoint.quantised:
        if WEIGHT_BYTES[name] == ACTIVATION_BYTES or name == checkpoint.dtype:
            return checkpoint
        raise ConfigError(f"{model}: the checkpoint is {checkpoint.text()}; weight_dtype must be auto or "
                          f"{checkpoint.dtype}, got {dtype}")
    if WEIGHT_BYTES[name] == ACTIVATION_BYTES:
        return checkpoint if dtype.lower() == AUTO else WeightFormat(name, 2.0)
    return WeightFormat(name, WEIGHT_BYTES[name], "load", 128 if name == "int4" else 0)


def parse_format(config: Mapping[str, Any], modules: Sequence[Module], path: Path) -> WeightFormat:
    """Format of a checkpoint from its config.json. Raises ConfigError for a method that is not modelled."""
    block = config.get("quantization_config", config.get("compression_config"))
    plain = "fp16" if config.get("torch_dtype", config.get("dtype")) == "float16" else "bf16"
    if not block:
        return WeightFormat(plain, 2.0)
    if not isinstance(block, dict):
        raise ConfigError(f"{path}: quantization_config must be a mapping, got {type(block).__name__}")
    method = str(block.get("quant_method", "")).replace("_", "-").replace("fbgemm-fp8", "fbgemm_fp8")
    readers = {"awq": _awq, "gptq": _gptq, "fp8": _fp8, "fbgemm_fp8": _fbgemm, "mxfp4": _mxfp4,
               "compressed-tensors": _compressed, "modelopt": _modelopt}
    if method not in readers:
        raise ConfigError(f"{path}: quantization_config.quant_method must be one of {', '.join(METHODS)}, got "
                          f"{block.get('quant_method')!r}")
    try:
        dtype, size, group = readers[method](block, path)
        ignored = _ignored(block)
        if method == "fbgemm_fp8":
            ignored += _first_and_last(modules)
        if method == "mxfp4":
            ignored += ["re:.*self_attn.*", "re:.*mlp\\.(gate|up|down)_proj"]
        return WeightFormat(dtype, size, method, group, _kept(ignored, modules))
    except (TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError, re.error) as error:
        raise ConfigError(f"{path}: quantization_config cannot be read: {error}") from error


def _awq(block: Mapping[str, Any], path: Path) -> tuple[str, float, int]:
    """AWQ (Lin et al. 2023, arXiv:2306.00978): per group an fp16 scale and a zero point of the weight's width."""
    bits, group = _bits(block.get("bits", block.get("w_bit", 4)), path), int(block.get("group_size", 128))
    zero = bits / 8 if block.get("zero_point", True) else 0.0
    return f"int{bits}", bits / 8 + (2 + zero) / group, group


def _gptq(block: Mapping[str, Any], path: Path) -> tuple[str, float, int]:
    """GPTQ (Frantar et al. 2022, arXiv:2210.17323); zero points only where the format is asymmetric."""
    bits, group = _bits(block.get("bits", 4), path), int(block.get("group_size", 128))
    zero = 0.0 if block.get("sym", True) else bits / 8
    return f"int{bits}", bits / 8 + ((2 + zero) / group if group > 0 else 0.0), max(group, 0)


def _fp8(block: Mapping[str, Any], path: Path) -> tuple[str, float, int]:
    """One byte; with blocks (DeepSeek-V3, arXiv:2412.19437, section 3.3) one fp32 scale each."""
    shape = block.get("weight_block_size")
    return "fp8", 1.0 + (4.0 / (shape[0] * shape[1]) if shape else 0.0), 0


def _fbgemm(block: Mapping[str, Any], path: Path) -> tuple[str, float, int]:
    """Llama 3 paper (arXiv:2407.21783, section 6.2): fp8 in the MLPs only, first and last layer left out."""
    return "fp8", 1.0, 0


def _mxfp4(block: Mapping[str, Any], path: Path) -> tuple[str, float, int]:
    """OCP microscaling formats 1.0: 4 bits and one 8-bit scale per 32 weights; experts only (gpt-oss model card)."""
    return "fp4", 0.5 + 1 / 32, 32


def _compressed(block: Mapping[str, Any], path: Path) -> tuple[str, float, int]:
    """compressed-tensors: the first group's `weights`; scales per group in 16 bits (NVFP4: 8 bits per 16)."""
    groups = block.get("config_groups") or {}
    weights = next((group.get("weights") for group in groups.values() if group.get("weights")), None)
    if not weights:
        raise ConfigError(f"{path}: quantization_config.config_groups must hold a group with weights")
    bits, kind = _bits(weights.get("num_bits", 8), path), weights.get("type", "int")
    group = int(weights.get("group_size") or 0)
    if kind == "float" and bits == 4:
        return "fp4", 0.5 + 1 / max(group, 16), group
    size = bits / 8 + (2.0 / group if group > 0 else 0.0)
    return ("fp8" if kind == "float" else f"int{bits}"), size, max(group, 0)


def _modelopt(block: Mapping[str, Any], path: Path) -> tuple[str, float, int]:
    """NVIDIA ModelOpt: FP8 or NVFP4."""
    algo = str(block.get("quant_algo", (block.get("quantization") or {}).get("quant_algo", ""))).upper()
    if algo not in ("FP8", "NVFP4"):
        raise ConfigError(f"{path}: quantization_config.quant_algo must be FP8 or NVFP4, got {algo or None!r}")
    return ("fp8", 1.0, 0) if algo == "FP8" else ("fp4", 0.5625, 16)


def _bits(value: object, path: Path) -> int:
    if isinstance(value, int) and value in (4, 8):
        return value
    raise ConfigError(f"{path}: quantization_config: weights of 4 or 8 bits are modelled, got {value!r}")


def _ignored(block: Mapping[str, Any]) -> list[str]:
    """Patterns of modules left in 16 bits, whatever the method calls them."""
    names = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
    return [str(each) for name in names for each in block.get(name) or ()]


def _first_and_last(modules: Sequence[Module]) -> list[str]:
    numbers = [int(found.group(1)) for each in modules if (found := re.search(r"layers\.(\d+)\.", each.name))]
    ends = sorted({0, max(numbers, default=0)})
    return ["re:.*self_attn.*", *(f"model.layers.{number}" for number in ends)]


def _kept(ignored: Iterable[str], modules: Sequence[Module]) -> tuple[tuple[str, float], ...]:
    """Share of each quantised part that the patterns name."""
    tests = [_matcher(pattern) for pattern in ignored]
    shares = []
    for part in QUANTISED_PARTS:
        inside = [each for each in modules if each.part == part]
        total = sum(each.weights for each in inside)
        left = sum(each.weights for each in inside if any(test(each.name) for test in tests))
        if left:
            shares.append((part, left / total))
    return tuple(shares)


def _matcher(pattern: str) -> Any:
    """A test on module names: `re:` regular expressions, `*` wildcards, else whole parts of the dotted name."""
    text = pattern.replace("feed_forward", "mlp").replace("block_sparse_moe", "mlp").replace("language_model.", "")
    if text.startswith("re:"):
        compiled = re.compile(text[3:])
        return lambda name: bool(compiled.match(name))
    if "*" in text:
        return lambda name: fnmatch.fnmatch(name, text) or fnmatch.fnmatch(name, text + ".*")
    middle = f".{text.removeprefix('model.')}."
    return lambda name: middle in f".{name}."
