"""The process around a core: sockets, the step thread, options and the command line made from them."""
