"""vLLM 0.24's own scheduler, loaded from an unpacked wheel without torch, a GPU or its other dependencies.

Only the modules named in REAL are read from the folder; all else that they import is a blank that takes any
attribute, call or subclass. Nothing of vLLM is in this project: `pip download --no-deps vllm==0.24.0`, unpack it.
"""

import enum
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

REAL = tuple(
    "vllm." + name
    for name in (
        "v1.core.sched.scheduler", "v1.core.sched.async_scheduler", "v1.core.sched.utils", "v1.core.sched.interface",
        "v1.core.sched.request_queue", "v1.core.sched.output", "v1.core.kv_cache_manager", "v1.core.kv_cache_utils",
        "v1.core.kv_cache_coordinator", "v1.core.single_type_kv_cache_manager", "v1.core.block_pool",
        "v1.core.kv_cache_metrics", "v1.core.encoder_cache_manager", "v1.request", "v1.kv_cache_interface",
        "v1.kv_cache_spec_registry", "utils.math_utils",
    )
)  # fmt: skip
BLANK = ("vllm", "torch", "msgspec", "cbor2", "xxhash", "regex", "prometheus_client", "cloudpickle", "zmq", "psutil")
"""Top-level packages that are replaced."""


def _own(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


class _BlankType(type):
    """Classes that answer to everything; used as names, in annotations, as bases."""

    def __getattr__(cls, name: str) -> Any:
        if _own(name):
            raise AttributeError(name)
        return blank(name)

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return object

    __ror__ = __or__


def blank(name: str, **members: Any) -> Any:
    """A class of that name without behaviour."""

    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        self.__dict__.update(kwargs)

    def nothing(self: Any, *args: Any, **kwargs: Any) -> None:
        return None

    def missing(self: Any, wanted: str) -> Any:
        if _own(wanted):
            raise AttributeError(wanted)
        return nothing.__get__(self)

    return _BlankType(name, (), {"__init__": start, "__call__": nothing, "__getattr__": missing} | members)


class _BlankModule(ModuleType):
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if _own(name):
            raise AttributeError(name)
        return blank(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Reads REAL from the wheel, makes blanks of the rest of BLANK."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name.split(".")[0] not in BLANK:
            return None
        if name in REAL:
            return importlib.util.spec_from_file_location(name, self.folder / (name.replace(".", "/") + ".py"))
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _BlankModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def _nothing(*args: Any) -> Iterator[None]:
    yield


def _quiet(name: str = "") -> Any:
    return blank("Logger")()


class _View(Sequence[Any]):
    """A list that is read only."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def copy(self) -> list[Any]:
        return list(self.items)


def _fill() -> None:
    """The few names whose value matters to the scheduler."""
    given: dict[str, dict[str, Any]] = {
        "vllm": {}, "torch": {}, "vllm.logger": {"init_logger": _quiet},
        "vllm.envs": {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": None},
        "vllm.v1.engine": {
            "FinishReason": enum.IntEnum("FinishReason", "STOP LENGTH ABORT ERROR REPETITION", start=0),
            "EngineCoreEventType": enum.IntEnum("EngineCoreEventType", "QUEUED SCHEDULED PREEMPTED"),
        },
        "vllm.v1.utils": {"ConstantList": _View, "record_function_or_nullcontext": _nothing},
        "vllm.utils": {"length_from_prompt_token_ids_or_embeds": lambda tokens, embeds: len(tokens)},
        "vllm.v1.structured_output.request": {
            "StructuredOutputRequest": blank("S", from_sampling_params=staticmethod(lambda params: None))},
    }  # fmt: skip
    for name, values in given.items():
        module = _BlankModule(name)
        module.__dict__.update(values)
        sys.modules[name] = module
    sys.modules["vllm"].envs = sys.modules["vllm.envs"]  # type: ignore[attr-defined]


def load(folder: Path) -> SimpleNamespace:
    """The classes a driver needs, from the folder that holds vllm/. Once per process."""
    if not (folder / "vllm/v1/core/sched/scheduler.py").is_file():
        raise SystemExit(f"{folder}: holds no unpacked vLLM wheel (vllm/v1/core/sched/scheduler.py)")
    sys.meta_path.insert(0, _Finder(folder))
    _fill()
    scheduler: Any = importlib.import_module("vllm.v1.core.sched.scheduler")
    asynchronous: Any = importlib.import_module("vllm.v1.core.sched.async_scheduler")
    interface: Any = importlib.import_module("vllm.v1.kv_cache_interface")
    utils: Any = importlib.import_module("vllm.v1.core.kv_cache_utils")
    utils.NONE_HASH = b"\0" * 32
    scheduler.EventPublisherFactory = blank("Publisher")
    asynchronous.AsyncScheduler.make_stats = lambda self, *args, **kwargs: None
    return SimpleNamespace(
        asynchronous=asynchronous.AsyncScheduler, synchronous=scheduler.Scheduler, interface=interface,
        request=importlib.import_module("vllm.v1.request").Request, block_hasher=utils.get_request_block_hasher)
