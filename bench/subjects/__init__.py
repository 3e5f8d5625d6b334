"""The measured subjects: our engine and its peers, each behind the interface of `bench.subjects.interface`.

Peers are set up as their own documentation advises for this workload, with settings that were found to help them.
bench/README.md says how each is driven.
"""
