"""The gateway's side of an engine: one connection, many generations. No torch."""
