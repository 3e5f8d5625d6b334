"""The client of Redis, and the heartbeat by which gateways know of each other."""
