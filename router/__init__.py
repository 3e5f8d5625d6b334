"""Which tier and which replica answers a request: pure functions of a snapshot."""
