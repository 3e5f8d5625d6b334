"""The paged KV cache: blocks, their memory, their identity, and the bookkeeping of the tier in host memory."""
