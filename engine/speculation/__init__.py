"""Speculative decoding: tokens are guessed, and a step of the model confirms as many of them as are right."""
