"""Several models on one fleet of GPUs: a plan file with `deployments`, each a fleet of its own below common keys.

    candidates: {gpu: h200-sxm}          # common
    deployments:
      chat: {model: llama-3.1-70b, workload: {...}, slo: {...}, candidates: {tensor_parallel: [2, 4]}}
      autocomplete: {workload: {...}, slo: {...}}
    budget: {gpus: 16}                   # of all; without it the fewest GPUs are searched for

What a deployment says itself stands in place of the common key; `candidates`, `engine`, `kv` and `search` are taken
together, key by key. `read_plan` is the door. Errors name file, line, key and deployment.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simulator.config import Document, Key, listed, shown
from simulator.errors import ConfigError, ServecastError, TraceError
from simulator.planning.names import gpu_name
from simulator.planning.price_list import gpus_in, is_gpu, tell_left_out
from simulator.planning.spec import BudgetSpec, PlanSpec, plan_of
from simulator.planning.statistics import check_levels, check_prefixes
from simulator.planning.traffic import Traffic, at_rate
from simulator.planning.unlike import BESIDE, OWN, pool_label

TOGETHER: Final = ("candidates", "engine", "kv", "search")
"""Sections of which a deployment may say a part; the rest of it is the common one."""
OF_ALL: Final = ("name", "description", "budget", "growth_pct_per_month", "deployments")
"""Keys that a deployment has not."""
NAME: Final = re.compile(r"(?=.{1,63}\Z)[a-z][a-z0-9]*(-[a-z0-9]+)*")
"""A Service of Kubernetes (RFC 1035 label) and a folder of the report are called so."""


_BEGINS: Final = re.compile(r"([a-z_]+)(\.[^: ]+)?(?=[: ])")
_ENDS: Final = re.compile(r"\(in deployment ([a-z0-9-]+)\)$")


@dataclass(frozen=True)
class Deployments:
    """Plans of the deployments by name, in the file's order; with a budget every one has it, and it is that of all."""

    name: str
    description: str
    specs: Mapping[str, PlanSpec]

    @property
    def budget(self) -> BudgetSpec | None:
        """What there is to spend on all of them together."""
        return next(iter(self.specs.values())).budget


class DeploymentDocument(Document):
    """One deployment with the common keys; places are those of the whole file."""

    def __init__(self, whole: Document, own: str, data: dict[str, Any]) -> None:
        self.path, self.name, self.node, self.in_file = whole.path, whole.name, whole.node, whole.in_file
        self.data, self._whole, self._own = data, whole, own
        prefix = ("deployments", own)
        self.overridden = {key for key in whole.overridden if key[0] != "deployments"}
        self.overridden |= {key[2:] for key in whole.overridden if key[:2] == prefix and len(key) > 2}

    def where(self, key: Key) -> str:
        """The place of what the deployment says itself, else of the common key."""
        own = self._whole.data["deployments"][self._own]
        said = own if isinstance(own, Mapping) else {}
        first = key[0] if key else None
        below = said.get(first)
        common = first in self._whole.data and (first not in said or (
            first in TOGETHER and len(key) > 1 and not (isinstance(below, Mapping) and key[1] in below)))
        return self._whole.where(key if common else ("deployments", self._own, *key))

    def accepted(self, key: Key, known: list[str]) -> list[str]:
        """Without what is one for all deployments, or beside them with what is only there."""
        if len(key) > 1:
            return [each for each in known if (key[0], each) != ("budget", "replicas")]
        own = self._whole.data["deployments"][self._own]
        if not isinstance(own, Mapping) or key[0] not in own:
            return sorted({*known, "deployments"})
        objective = ("objective",) if self._whole.data.get("budget") is not None else ()
        return [each for each in known if each not in (*OF_ALL, *objective)]


def read_plan(path: str | Path, overrides: Iterable[str] = ()) -> PlanSpec | Deployments:
    """Read a plan file, of one model or of several; `overrides` as in load_plan. Raises ConfigError."""
    document = Document.of_file(path, overrides)
    base = Path(path).parent
    return _each(document, base) if "deployments" in document.data else plan_of(document, base)


def deployments_from(data: Mapping[str, Any], base: str | Path = ".", name: str = "plan") -> Deployments:
    """The same from plain data. Raises ConfigError."""
    return _each(Document.of_data(data, name), Path(base))


def placed_in(name: str, error: ServecastError) -> ServecastError:
    """The error with the deployment behind it."""
    kind = TraceError if isinstance(error, TraceError) else ConfigError
    return kind(f"{error} (in deployment {name})")


def placed_in_file(path: str | Path, overrides: Iterable[str], error: ServecastError) -> ServecastError:
    """An error of what was planned, with `file:line: ` in front where it begins with a key of the plan file."""
    begins, ends = _BEGINS.match(str(error)), _ENDS.search(str(error))
    if begins is None or begins[1] not in PlanSpec.model_fields:
        return error
    whole = Document.of_file(path, overrides)
    several = whole.data.get("deployments") or ()
    document = DeploymentDocument(whole, ends[1], {}) if ends and ends[1] in several else whole
    key = tuple(part for part in (begins[1], (begins[2] or "").lstrip(".")) if part)
    if key[:1] == ("slo",) and begins[2] and begins[2].startswith(".classes."):
        key = ("slo", "classes", *begins[2].removeprefix(".classes.").rsplit(".", 1))
    return type(error)(f"{document.where(key)}: {error}")


def check_traffic(asked: Deployments) -> None:
    """Raise ConfigError or TraceError for levels that the traffic of a deployment cannot answer."""
    for name, spec in asked.specs.items():
        try:
            trace = Traffic(spec).trace(0)
            check_levels(spec, at_rate(trace, spec.growth))
            check_prefixes(spec.candidates.prefix_caching, trace)
        except ServecastError as error:
            raise placed_in(name, error) from None


def _each(document: Document, base: Path) -> Deployments:
    data = document.data
    given = data["deployments"]
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f"{document.where(('deployments',))}: deployments must map names to what each has of its "
                          f"own, got {shown(given)}")
    for key in ("name", "description"):
        if not isinstance(data.get(key, ""), str):
            raise ConfigError(f"{document.where((key,))}: {key} must be a text, got {shown(data[key])}")
    _check_common(document, given)
    specs = {}
    for name, own in given.items():
        _check_own(document, name, own)
        part = DeploymentDocument(document, str(name), _merged(data, own, str(name)))
        try:
            specs[str(name)] = plan_of(part, base)
        except ConfigError as error:
            raise placed_in(str(name), error) from None
    _check_prices(document, specs)
    _check_services(document, specs)
    return Deployments(data.get("name", "plan"), data.get("description", ""), specs)


def _check_common(document: Document, given: Mapping[Any, Any]) -> None:
    """Refuse common keys that nobody listens to, and what several deployments cannot be asked together."""
    data = document.data
    for key in data:
        said = all(isinstance(own, Mapping) and key in own for own in given.values())
        if said and key not in (*TOGETHER, *OF_ALL):
            raise ConfigError(f"{document.where((key,))}: {key} has no effect: every deployment has its own")
        for part in data[key] if key in TOGETHER and isinstance(data[key], Mapping) else ():
            if all(isinstance(own, Mapping) and isinstance(own.get(key), Mapping) and part in own[key]
                   for own in given.values()):  # fmt: skip
                raise ConfigError(f"{document.where((key, part))}: {key}.{part} has no effect: every deployment has "
                                  "its own")
    budget, search = data.get("budget"), data.get("search")
    if budget is None:
        return
    if isinstance(budget, Mapping) and "replicas" in budget:
        raise ConfigError(f"{document.where(('budget', 'replicas'))}: budget.replicas: replicas of different "
                          "deployments cannot be counted together; accepted: gpus, usd_per_hour")
    if data.get("objective", "max_traffic") != "max_traffic":
        raise ConfigError(f"{document.where(('objective',))}: objective {shown(data['objective'])} is not modelled "
                          "with deployments and a budget; accepted: max_traffic")
    for name, section in (("", search), *((f"deployments.{k}.", _search(own)) for k, own in given.items())):
        if isinstance(section, Mapping) and section.get("batch_limits"):
            raise ConfigError(f"{document.where(('deployments',))}: {name}search.batch_limits is not modelled with "
                              "deployments and a budget; name max_num_seqs and max_num_batched_tokens in candidates")


def _search(own: Any) -> Any:
    return own.get("search") if isinstance(own, Mapping) else None


def _check_own(document: Document, name: Any, own: Any) -> None:
    """Refuse names that no Service and no folder can have, and keys of all in one deployment."""
    where = document.where(("deployments", name))
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(f"{where}: deployments.{shown(name)}: accepted are names of lower-case letters, digits "
                          "and single -, a letter first, 63 at most: Services are called so")
    if own is not None and not isinstance(own, Mapping):
        raise ConfigError(f"{where}: deployments.{name} must be a mapping of keys, got {shown(own)}")
    wrong = next((key for key in own or () if key in OF_ALL), None)
    if wrong is None and document.data.get("budget") is not None and "objective" in (own or ()):
        wrong = "objective"
    if wrong is not None:
        raise ConfigError(f"{document.where(('deployments', name, wrong))}: deployments.{name}.{wrong}: {wrong} is one "
                          "for all deployments, beside them")


def _merged(data: Mapping[str, Any], own: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    """The data of one deployment's plan."""
    common = {key: value for key, value in data.items() if key not in ("deployments", "description")}
    made = {**common, **(own or {}), "name": name}
    for key in TOGETHER:
        first, second = (_section(key, side.get(key)) for side in (common, own or {}))
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            made[key] = {**first, **second}
    for key in ("prices", "reserved_prices"):
        if key not in (own or {}) and isinstance(made.get(key), Mapping):
            made[key] = {gpu: usd for gpu, usd in made[key].items() if gpu_name(str(gpu)) in gpus_in(made)}
    return made


def _section(key: str, value: Any) -> Any:
    return {"name": value} if key == "engine" and isinstance(value, str) else value


def _check_prices(document: Document, specs: Mapping[str, PlanSpec]) -> None:
    """Refuse a common price of no GPU, or of one whose deployments have their own; say which are of no candidate."""
    chosen = ("candidates", "gpu") in document.overridden
    for key in ("prices", "reserved_prices"):
        common = [spec for name, spec in specs.items() if key not in (document.data["deployments"][name] or ())]
        used = dict.fromkeys(gpu for spec in common for gpu in (*spec.candidates.gpu, *spec.candidates.gpus_beside))
        own = {gpu for spec in specs.values() for gpu in (*spec.candidates.gpu, *spec.candidates.gpus_beside)}
        lost = [str(gpu) for gpu in document.data.get(key) or () if gpu_name(str(gpu)) not in used and not chosen]
        wrong = next((gpu for gpu in lost if not is_gpu(gpu) or gpu_name(gpu) in own), None)
        if wrong is not None:
            raise ConfigError(f"{document.where((key, wrong))}: {key}.{wrong} has no effect: no such GPU among the "
                              f"candidates of any deployment without {key} of its own ({listed(used)})")
        tell_left_out(key, lost)


def _check_services(document: Document, specs: Mapping[str, PlanSpec]) -> None:
    """Refuse names with which two Deployments of Kubernetes would be called alike."""
    called: dict[str, str] = {}
    for name, spec in specs.items():
        for pool in ("", OWN, BESIDE) if any(spec.candidates.beside) else ("",):
            made = pool_label(name, pool) if pool else name
            if called.setdefault(made, name) != name:
                raise ConfigError(f"{document.where(('deployments', name))}: deployments.{name}: a Deployment of "
                                  f"{called[made]} is called {made} as one of it is; accepted: another name")
