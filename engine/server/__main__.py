"""`python -m engine.server`: one engine process."""

from engine.server.command import main

main()
