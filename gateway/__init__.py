"""The front door: connections, protocol, identity, limits, turns, web page and command line."""

from __future__ import annotations

from importlib.metadata import version

__version__ = version("roundhouse")
