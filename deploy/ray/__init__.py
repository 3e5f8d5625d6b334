"""Engines on a Ray cluster: which node runs each, and `roundhouse ray`. Nothing else imports Ray."""
