"""Measurements of Roundhouse beside its peers, in one run on one machine; `bench/README.md` has the results."""
