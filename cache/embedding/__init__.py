"""Sentence embeddings: a process of their own that computes them, and what a gateway uses to ask it."""
