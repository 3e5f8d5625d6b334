"""Routing: a turn's route, tier and replica, and what is learnt from its outcome."""
