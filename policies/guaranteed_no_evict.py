"""TensorRT-LLM GUARANTEED_NO_EVICT, its default: admit only what can run to its end, and never pause anybody.

A request is admitted when KV blocks for its prompt and max_tokens are free beside what all that run may still need.
These blocks are counted as held from the start; the engine fills them as the answer grows. The rest is in `trtllm`.

Source: TensorRT-LLM (2025) cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp, GuaranteedNoEvictScheduler.
"""
