"""`python -m gateway.cli`: the `roundhouse` command."""

from gateway.cli.root import main

if __name__ == "__main__":
    main()
