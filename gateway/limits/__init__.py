"""Limits of tenants: a token bucket in Redis, reserved before a turn and settled after it."""
