"""The engines behind this gateway: pools, connections, placement of turns, and the adapters they serve."""
