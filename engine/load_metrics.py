"""What the numbers of `engine.wire.Load` mean, for those who show them as metrics."""

GAUGES = {
    "running": "Requests in the engine's current step.",
    "waiting": "Requests waiting in the engine.",
    "waiting_tokens": "Prompt tokens not yet computed.",
    "total_blocks": "KV blocks of the engine.",
    "lent_blocks": "KV blocks that hold adapters.",
    "free_blocks": "KV blocks that hold nothing.",
    "cached_blocks": "KV blocks that are kept for prefix hits only.",
    "predicted_queue_seconds": "Predicted wait of a request behind all that wait in the engine.",
    "step_seconds": "Moving average of one step's duration.",
    "host_blocks": "KV blocks that fit into host memory.",
    "host_free_blocks": "KV blocks in host memory that hold nothing.",
    "host_cached_blocks": "KV blocks in host memory that no request is loading.",
}
COUNTERS = {
    "adapter_loads": "Adapters copied to the device.",
    "adapter_evictions": "Adapters evicted from the device.",
    "preemptions": "Requests preempted.",
    "prefix_hit_tokens": "Prompt tokens found in the prefix cache.",
    "host_hit_tokens": "Prompt tokens found in the prefix cache that came from host memory.",
    "host_saved_bytes": "Bytes of KV copied to host memory.",
    "host_loaded_bytes": "Bytes of KV copied back to the device.",
    "drafted_tokens": "Tokens drafted by speculative decoding.",
    "accepted_tokens": "Drafted tokens that the model accepted.",
}
"""Counted by the engine since it started, so that they begin at 0 again when it restarts."""
