"""Unpack rules: from the bytes that a file stores to numbers and scales, for every type that can be served as it is."""
