"""JSON values -> records: what benchmark clients nest is laid out as one record a request.

Names of nested values are joined with dots (`usage.prompt_tokens`); a list is one value.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

Record = Mapping[str, Any]

RESULT: Final = "result"
"""Column that numbers the benchmark results of a file from 1: each has a clock of its own."""
MAX_NAMES: Final = 2_000
"""Most columns of a file of records."""
_DEPTH: Final = 8
_TURN_COUNTS: Final = ("tokens", "num_tokens", "token_count")
_OUTCOMES: Final = ("successful", "errored", "incomplete")


def expanded(value: Record, result: int = 0) -> Iterator[tuple[int, Record]]:
    """(result number, record) of every request that one JSON object describes.

    A vLLM or SGLang benchmark result (lists, one entry a request) and a GuideLLM report count as results,
    numbered on from `result`; AIBrix groups the requests of one moment; everything else is one record.
    """
    if isinstance(value.get("input_lens"), list) and isinstance(value.get("output_lens"), list):
        for record in transposed(value):
            yield result + 1, {RESULT: result + 1, **record}
    elif isinstance(value.get("benchmarks"), list):
        yield from _guidellm(value["benchmarks"], result)
    elif _is_aibrix(value):
        for request in value["requests"]:
            yield result, {**value, **request, "requests": None}
    else:
        yield result, _flat_turns(value)


def transposed(document: Record) -> list[dict[str, Any]]:
    """Object of lists -> records; other keys are left out.

    The columns of a request are those as long as `input_lens` (a benchmark's detailed result), or as the
    longest. An empty list when there is no list that holds anything.
    """
    lists = {name: value for name, value in document.items() if isinstance(value, list)}
    rows = len(lists["input_lens"]) if "input_lens" in lists else max(map(len, lists.values()), default=0)
    columns = {name: value for name, value in lists.items() if len(value) == rows}
    return [{name: column[row] for name, column in columns.items()} for row in range(rows)]


def _guidellm(benchmarks: list[Any], result: int) -> Iterator[tuple[int, Record]]:
    for number, benchmark in enumerate(benchmarks, start=result + 1):
        requests = benchmark.get("requests") if isinstance(benchmark, dict) else None
        for outcome in _OUTCOMES:
            for record in (requests.get(outcome) or []) if isinstance(requests, dict) else []:
                if isinstance(record, dict):
                    yield number, {RESULT: number, "outcome": outcome, **record}


def _is_aibrix(value: Record) -> bool:
    requests = value.get("requests")
    return isinstance(requests, list) and all(isinstance(r, dict) and "Prompt Length" in r for r in requests)


def _flat_turns(record: Record) -> Record:
    """ShareGPT record with counts on its turns -> prompt_tokens and output_tokens of the first exchange."""
    turns = record.get("conversations")
    if not isinstance(turns, list):
        return record
    flat = dict(record)
    for name, turn in zip(("prompt_tokens", "output_tokens"), turns[:2], strict=False):
        count = next((turn[key] for key in _TURN_COUNTS if isinstance(turn, dict) and key in turn), None)
        if count is not None:
            flat.setdefault(name, count)
            flat.pop("conversations", None)
    return flat


def names_of(record: Record) -> Iterator[str]:
    """Dotted names of the values of a record; of an object within, those of its values as well as its own."""
    def below(value: Record, prefix: str, depth: int) -> Iterator[str]:
        for key, inner in value.items():
            name = f"{prefix}{key}"
            yield name
            if isinstance(inner, dict) and depth < _DEPTH:
                yield from below(inner, f"{name}.", depth + 1)

    return below(record, "", 1)


def value_at(record: Record, name: str) -> Any:
    """The value under a dotted name, None when it is not there. A key that holds dots itself comes first."""
    if name in record:
        return record[name]
    head, dot, rest = name.partition(".")
    while dot:
        inner = record.get(head)
        if isinstance(inner, dict):
            return value_at(inner, rest)
        more, dot, rest = rest.partition(".")
        head = f"{head}.{more}"
    return None
