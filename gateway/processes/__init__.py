"""The processes of `roundhouse serve`: started, watched, told to reload, and ended in order."""
