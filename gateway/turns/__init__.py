"""Turns: the server-owned life of one answer, which outlives its sockets and can be followed from any gateway.

with await turns.start(request, principal) as viewer:
    async for entry in viewer:
        ...
"""

from gateway.turns.turn import Turn, TurnState, Viewer
from gateway.turns.turns import TurnPipeline, Turns

__all__ = ["Turn", "TurnPipeline", "TurnState", "Turns", "Viewer"]
