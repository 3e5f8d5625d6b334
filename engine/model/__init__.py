"""A checkpoint as a decoder: its config, files, weights and layers."""
