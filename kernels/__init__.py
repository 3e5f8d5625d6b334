"""Ops with one meaning on every device; `reference.py` is the specification."""
