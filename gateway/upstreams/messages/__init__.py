"""Servers that answer conversations: text and calls come back, and the server counts its tokens."""
