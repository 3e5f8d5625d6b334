"""`python -m load`: the same as `roundhouse load`."""

from load.command import command

if __name__ == "__main__":
    command(prog_name="python -m load")
