"""The process around a core: sockets, the step thread, the command line."""
