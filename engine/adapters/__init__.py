"""LoRA adapters: their format, the registry that stores them, and their residency in a running engine."""
