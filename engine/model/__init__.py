"""The decoder: layers, rotary embedding, weights read into place."""
