"""Anthropic's Messages API: its bodies, stream events and errors, translated from and to what every endpoint shares."""
