"""The paged KV cache: blocks, their memory, their identity, and the tier in host memory."""
