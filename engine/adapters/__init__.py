"""LoRA adapters: the format that is read, the registry that holds them, and where they are in a running engine."""
