"""Speculative decoding: tokens are guessed, and one step of the model confirms as many of them as are right."""
