"""What is measured: our engine and its peers, each behind the interface of `bench.subjects.interface`.

Peers are set up as their own documentation advises for this workload; where a setting was found to help them, they have
it. bench/README.md says how each is driven.
"""
