"""Reads GGUF files: metadata, tokenizer and quantised weights by mmap, without torch."""
