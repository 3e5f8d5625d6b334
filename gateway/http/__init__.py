"""The HTTP endpoints: thin adapters between a request body, a turn and a response."""
