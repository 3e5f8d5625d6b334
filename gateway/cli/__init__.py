"""The `roundhouse` command."""
