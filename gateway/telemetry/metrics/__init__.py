"""Prometheus metrics of one gateway process: one module per area, served at `/metrics`."""
