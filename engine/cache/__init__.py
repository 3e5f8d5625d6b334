"""The paged KV cache: blocks, their memory, their keys, and the bookkeeping of the tier in host memory."""
