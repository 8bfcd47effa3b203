"""Sarathi-Serve with a target for the time between tokens: `chunked` with a token budget found from `tbt_s`.

The budget is the most tokens of a step that stays within `tbt_s` whatever is in it: a prompt chunk far into the longest
request, and every block of KV memory read by the decodes beside it. It is found once, from the step times the simulator
uses, as the paper finds it by profiling. `max_num_batched_tokens` is its upper end.

Source: Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024, section 4.3
(determining token budget) and algorithm 3.
"""
