"""Decides what runs next, and for whom: pure decisions over a snapshot of the queue."""
