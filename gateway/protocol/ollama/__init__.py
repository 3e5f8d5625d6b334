"""Ollama's API: its bodies and answers, translated from and to what every endpoint shares."""
