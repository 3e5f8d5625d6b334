"""The embedded default: corpus, tokenizer, training and evaluation of the demo checkpoints and adapters."""
