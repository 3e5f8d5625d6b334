"""Constrained decoding: answers that match a JSON schema, a regular expression, a list of choices or a grammar.

`source.py` turns what a client sends into llguidance's notation and refuses what it would not enforce; `compiler.py`
compiles it beside the step loop; `matcher.py` follows one request through its grammar; `masks.py` computes which
tokens may come next while the model runs.
"""
