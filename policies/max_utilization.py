"""TensorRT-LLM MAX_UTILIZATION: admit whatever fits now, and pause the last started when KV memory is out.

A request is admitted when the KV blocks of its prompt are free. When a running sequence finds no block for its next
token, the one started last is paused: its KV is dropped, it is the first to be admitted again, and is computed again
with what it has answered. A step that pauses admits nobody. The rest is in `trtllm`.

Source: TensorRT-LLM (2025) cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp, MaxUtilizationScheduler.
"""
