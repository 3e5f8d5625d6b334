"""One module per group of ops: what they are, which body computes them, and what they cost."""
