"""Caches that avoid work, and their statistics, kept in Redis where an operator can read them."""
