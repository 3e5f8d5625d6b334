"""Text to token ids and back: chat templates, tokenizers, incremental detokenisation. No torch."""
