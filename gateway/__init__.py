"""The front door: connections, protocol, identity, limits, turns, web page and command line."""
