"""`python -m deploy.ray`: what `roundhouse ray` runs."""

from deploy.ray.command import main

main(prog_name="roundhouse ray")
