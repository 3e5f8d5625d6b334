"""The small model that answers where no other one can be fetched: its text, its training and its weights."""
