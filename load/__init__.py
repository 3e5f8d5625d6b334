"""A load test of any OpenAI-compatible server: turns that arrive whether or not the server keeps up, and their texts.

`load.command` is the command line, `load.run` sends one plan's turns, `load.report` writes what came of it.
"""
