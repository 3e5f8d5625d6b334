"""Clients that others wrote, run unchanged against a real server: `make test-clients` runs all of clients.toml."""
