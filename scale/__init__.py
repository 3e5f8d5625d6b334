"""How many replicas each pool has: pure functions of what was measured, and a simulation that they are tested with."""
