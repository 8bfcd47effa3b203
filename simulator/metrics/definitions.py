"""What each number of a summary means."""

from typing import Final

DEFINITIONS: Final = {
    "requests": "arrived = completed + rejected + aborted + lost + unfinished; arrived: submitted before the horizon; "
    "completed: the whole answer reached the client; aborted: its client gave up; lost: with its replica, and not "
    "submitted again; not sent: turns of a conversation "
    "after one without an answer; attempts: submissions in all, retried: requests submitted more than once",
    "percentiles": "over every request that arrived after the warm-up share; rejected, aborted, lost and unfinished "
    "ones count as infinite (null when a percentile falls on one); the mean is over the `count` completed ones",
    "ttft_s": "first token at the client - submission = front end + queue + prefill; of a request submitted several "
    "times the first submission counts, here and in e2e_s, for queue_s and frontend_s the last",
    "tpot_s": "(last token - first token) / (output tokens - 1); only answers of more than one token, "
    "sent token by token",
    "itl_s": "gaps between consecutive tokens of one answer, each token delivered counted once; "
    "percentiles from a histogram with bins at most 0.4 % wide; warm-up included",
    "e2e_s": "last token at the client - submission",
    "queue_s": "first scheduled - entry into the replica's waiting queue",
    "prefill_s": "first token out of the engine - first scheduled (waits after a preemption included)",
    "frontend_s": "submission -> waiting queue, plus engine output -> client",
    "normalized_latency_s": "e2e / output tokens",
    "throughput": "completed requests (output: delivered tokens; prompt: tokens of completed "
    "requests) / makespan",
    "goodput": "requests that completed within every target / requests arrived; null without targets; "
    "a target on TPOT does not apply to one-token answers and answers returned whole",
    "makespan_s": "first submission -> last token delivered",
    "slot_utilization": "sequences scheduled / max_num_seqs, averaged over the time in which steps run",
    "gpu_utilization": "GPU time of all steps / (makespan x replicas, or replica hours), of a pipeline the mean of its "
    "stages; near 100 % at low load too, "
    "as a step for few sequences reads all the weights; room for more shows in slots, KV memory and latency",
    "busy_share": "time in which steps run / (makespan x replicas)",
    "batch": "per replica, weighted by the time of steps; running: slots held, scheduled: sequences computed",
    "queue": "waiting requests per replica as each step starts, weighted by the time of steps",
    "kv": "shares of blocks, weighted by the time of steps; internal fragmentation: held but empty / held; "
    "external: free but outside the longest free run / free; refused_by_fragmentation: requests kept "
    "waiting although enough blocks were free in all",
    "prefix_cache": "hit_rate: prompt tokens found in earlier requests' blocks when admitted / prompt tokens; "
    "peak_blocks_shared: blocks that the running requests of a replica would hold more, did they share none",
    "prefix_cache.host": "the part of hit_rate that came from host memory (kv.offload); link_s: copies of it to the "
    "GPU, over all replicas",
    "swap": "KV blocks of preempted requests copied to host memory and back; time.copy_s: GPU time of that",
    "prefix_reuse": "hit rates of an ideal cache with other sizes of memory: one request at a time in the run's order, "
    "least recently used blocks dropped first; enough_blocks: from there on more finds no more",
    "exposed_cpu_s": "time in which a step runs and the GPU does not",
    "fleet": "replica_hours: from the order of a replica to its release, with its start, its last requests and the "
    "time it was down; first submission -> last token delivered; usd: at the price of the GPU's profile; usd_fixed: of "
    "all replicas all the time",
    "speculation": "draft_tokens: computed beside a sequence's next token; acceptance_rate: of them right; "
    "tokens_per_step: 1 + right ones per sequence and step with drafts. Tokens of one step reach the client together: "
    "of their ITL gaps all but the first are 0",
    "stability": "does the number in the system grow between first and last "
    "arrival (independent of the horizon)",
    "banner": "overloaded; rejecting: over 1 % of the requests refused or given up; missing its targets: over 1 % "
    "miss one; else what stability says",
    "few_requests": "percentiles of fewer requests than it takes for an upper end at 90 % confidence (299 for p99)",
    "windows": "worst p99 over the requests that arrived within 300 or 3600 s; windows of fewer than 299 left out",
    "little": "arrival rate x mean time in system against the time-averaged number in system, "
    "first to last arrival",
    "sessions": "conversations of the trace; overlapping: turns submitted before the answer before was complete, which "
    "no client who reads it does; broken_off: sessions of which a turn has no answer, so that later ones were not sent",
    "intended": "times from the moment the trace says, not from the submission that waits for a place in flight; "
    "client_wait_s: between the two",
}
