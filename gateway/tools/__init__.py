"""How models write function calls, and how to make them: formats, incremental parsers, grammars, prompts. Pure."""
