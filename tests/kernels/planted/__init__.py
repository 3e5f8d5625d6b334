"""Faults of the CUDA sources that the tests must notice, and the runs that do."""
