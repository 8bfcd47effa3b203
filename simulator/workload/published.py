"""Published trace layouts: which column of a file plays which part, in which unit, and which rows have failed.

A column of nested JSON is named with dots (`usage.prompt_tokens`). Where a layout changed over time, a part has
several names and the first that is there counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

NEEDED: Final = ("prompt", "output")
"""Parts without which nothing can be replayed; `arrival` may be absent under closed and grouped loads."""


@dataclass(frozen=True)
class Failure:
    """Rows that were no served request: `column` holds a text, other than those of `fine`; `reason` in words."""

    column: str
    reason: str
    fine: tuple[str, ...] = ()


@dataclass(frozen=True)
class Format:
    """A published layout.

    columns   part -> column name, or several in order of preference
    unit      of arrivals; `fraction_unit` when they have a fraction (None: the same)
    marks     columns that must be there too, to tell it from another with the same columns
    failed    why a row with 0 output tokens is dropped (None: such a row is an error)
    failures  other rows that are dropped and counted
    sort      not ordered by arrival by design (benchmark and gateway logs are written as requests end)
    clock     times are those of a clock whose zero means nothing
    untimed   may come without arrival times
    hash_block  [tokens] per entry of hash_ids
    maybe     cached or cls, where a row without it has no cached token, or the default class
    """

    name: str
    columns: Mapping[str, str | tuple[str, ...]]
    unit: str
    source: str
    marks: tuple[str, ...] = ()
    failed: str | None = None
    failures: tuple[Failure, ...] = ()
    sort: bool = False
    clock: bool = False
    untimed: bool = False
    fraction_unit: str | None = None
    delay_unit: str = "s"
    hash_block: int = 0
    maybe: tuple[str, ...] = ()

    def names(self, part: str) -> tuple[str, ...]:
        """Column names of a part, () when the layout has none."""
        given = self.columns.get(part, ())
        return (given,) if isinstance(given, str) else given


_ERROR: Final = Failure("error", "failed request (error)", ("null", "none", "false"))
_NO_OUTPUT: Final = "failed request (0 output tokens)"

_LIST = (
    Format(
        "azure",
        {"arrival": "TIMESTAMP", "prompt": "ContextTokens", "output": "GeneratedTokens", "images": "NumImages"},
        "iso",
        "Azure/AzurePublicDataset, LLM inference traces 2023 and 2024, multimodal 2025 (images are not modelled)",
    ),
    Format(
        "burstgpt",
        {"arrival": "Timestamp", "prompt": "Request tokens", "output": "Response tokens", "session": "Session ID"},
        "s",
        "HPMLL/BurstGPT, v1 and v2",
        failed="failed request (0 response tokens)",
    ),
    Format(
        "bailian",
        {"arrival": "timestamp", "prompt": "input_length", "output": "output_length", "chat": "chat_id",
         "parent": "parent_chat_id", "turn": "turn", "hash_ids": "hash_ids"},
        "s",
        "alibaba-edu/qwen-bailian-usagetraces-anon: seconds, 16 tokens per hash",
        marks=("chat_id",),
        hash_block=16,
    ),
    Format(
        "mooncake",
        {"arrival": "timestamp", "prompt": "input_length", "output": "output_length", "session": "session_id",
         "hash_ids": "hash_ids"},
        "ms",
        "kvcache-ai/Mooncake, FAST'25 traces: whole milliseconds, 512 tokens per hash; times with a fraction are "
        "seconds, as in Bailian traces cut down to Mooncake's columns",
        fraction_unit="s",
        hash_block=512,
    ),
    Format(
        "vllm_bench",
        {"arrival": "start_times", "prompt": "input_lens", "output": "output_lens"},
        "s",
        "vllm bench serve --save-result --save-detailed (also --append-result), sglang.bench_serving "
        "--output-details",
        failed=_NO_OUTPUT,
        failures=(Failure("errors", _ERROR.reason),),
        sort=True,
        clock=True,
        untimed=True,
    ),
    Format(
        "inference_perf",
        {"arrival": "start_time", "prompt": "info.input_tokens", "output": "info.output_tokens"},
        "s",
        "kubernetes-sigs/inference-perf, per_request_lifecycle_metrics.json",
        failures=(_ERROR,),
        failed=_NO_OUTPUT,
        sort=True,
        clock=True,
    ),
    Format(
        "aiperf",
        {"arrival": "metadata.request_start_ns", "prompt": "metrics.input_sequence_length.value",
         "output": "metrics.output_sequence_length.value", "session": "metadata.conversation_id",
         "turn": "metadata.turn_index"},
        "ns",
        "ai-dynamo/aiperf, profile_export.jsonl",
        failures=(Failure("metadata.benchmark_phase", "warm-up request", ("profiling",)),
                  Failure("metadata.was_cancelled", "cancelled request", ("false",)), _ERROR),
        failed=_NO_OUTPUT,
        sort=True,
    ),
    Format(
        "guidellm",
        {"arrival": ("request_start_time", "start_time"), "prompt": "prompt_tokens", "output": "output_tokens",
         "session": "info.conversation_id", "turn": "info.turn_index"},
        "s",
        "vllm-project/guidellm, benchmarks.json",
        marks=("outcome",),
        failures=(Failure("outcome", "request that did not succeed", ("successful",)),),
        sort=True,
    ),
    Format(
        "llmperf",
        {"prompt": "number_input_tokens", "output": "number_output_tokens"},
        "s",
        "ray-project/llmperf, individual responses (no arrival times)",
        failures=(Failure("error_code", "failed request (error_code)", ("null", "none")),),
        untimed=True,
    ),
    Format(
        "openai",
        {"arrival": ("created", "created_at"), "prompt": ("usage.prompt_tokens", "usage.input_tokens"),
         "output": ("usage.completion_tokens", "usage.output_tokens"),
         "cached": ("usage.prompt_tokens_details.cached_tokens", "usage.input_tokens_details.cached_tokens")},
        "s",
        "logged OpenAI responses, chat completions and responses API: usage, created in whole seconds",
        failures=(_ERROR,),
        sort=True,
        maybe=("cached",),
    ),
    Format(
        "litellm",
        {"arrival": "startTime", "prompt": "prompt_tokens", "output": "completion_tokens"},
        "iso",
        "BerriAI/litellm, table LiteLLM_SpendLogs",
        failures=(Failure("status", "failed request (status)", ("success",)),),
        failed=_NO_OUTPUT,
        sort=True,
    ),
    Format(
        "splitwise",
        {"arrival": "arrival_timestamp", "prompt": "prompt_size", "output": "token_size"},
        "s",
        "Mutinifni/splitwise-sim, traces",
    ),
    Format(
        "vidur",
        {"arrival": "arrived_at", "prompt": "num_prefill_tokens", "output": "num_decode_tokens"},
        "s",
        "microsoft/vidur, processed traces",
    ),
    Format(
        "llmservingsim",
        {"arrival": "arrival_time_ns", "prompt": "input_toks", "output": "output_toks"},
        "ns",
        "casys-kaist/LLMServingSim 2.0, dataset",
    ),
    Format(
        "blis",
        {"arrival": "arrival_time_us", "prompt": "input_tokens", "output": "output_tokens", "cls": "slo_class",
         "session": "session_id", "turn": "round_index", "prefix": "prefix_length"},
        "us",
        "inference-sim/inference-sim (BLIS), trace v2",
        failures=(Failure("status", "failed request (status)", ("ok",)),),
        maybe=("cls",),
    ),
    Format(
        "aibrix",
        {"arrival": "timestamp", "prompt": "Prompt Length", "output": "Output Length"},
        "ms",
        "vllm-project/aibrix, workload generator",
    ),
    Format(
        "servecast",
        {"arrival": "arrival_s", "prompt": "prompt_tokens", "output": "output_tokens", "max_tokens": "max_tokens",
         "cached": "cached_tokens", "cls": "class", "id": "id", "priority": "priority", "tenant": "tenant",
         "predicted": "predicted_tokens", "ttft_target": "ttft_target_s"},
        "s",
        "this project's own requests table",
    ),
)
FORMATS: Final[Mapping[str, Format]] = MappingProxyType({layout.name: layout for layout in _LIST})


@dataclass(frozen=True)
class Unusable:
    """A known layout that cannot be replayed: columns that tell it, and one sentence what to do."""

    marks: tuple[str, ...]
    why: str
    without: tuple[str, ...] = field(default=())


UNUSABLE: Final[Sequence[Unusable]] = (
    Unusable(("conversations",), "ShareGPT conversations (texts without token counts cannot be replayed); count the "
             "tokens of each turn with the model's tokenizer and write them beside it as `tokens`"),
    Unusable(("experiments",), "a genai-perf profile export holds times and texts but no token counts; measure with "
             "aiperf, whose profile_export.jsonl has them, or write columns arrival_s, prompt_tokens, output_tokens"),
    Unusable(("session_id", "input", "output_length"), "agent sessions (LMCache) hold message texts, not prompt "
             "token counts; count each turn's prompt with the model's tokenizer and write it as prompt_tokens"),
    Unusable(("session_id", "input_length", "delay"), "AIPerf sessions: input_length is what a turn adds to its "
             "conversation, and prompts are not added up here; give every turn its whole prompt and an arrival time "
             "(timestamp) and leave delay out (load.think_s draws pauses)"),
    Unusable(("total_input_tokens", "request_throughput"), "a benchmark summary without its requests; run vllm bench "
             "serve with --save-result --save-detailed, sglang.bench_serving with --output-details",
             without=("input_lens",)),
)
