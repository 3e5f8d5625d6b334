"""Stored questions and what is known of their answers, in Redis, and where look-ups get their hints. No decisions."""
