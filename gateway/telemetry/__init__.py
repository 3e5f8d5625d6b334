"""What operators see: Prometheus metrics and structured logs. Neither ever holds prompt text."""
