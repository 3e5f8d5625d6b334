"""What `roundhouse ray drain` waits for, whatever the cluster tells."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

pytest.importorskip("ray", reason="needs Ray: pip install 'roundhouse[ray]'")

from deploy.ray import cluster, command
from gateway.scaling.actuator import StartedReplica

NODE, ELSEWHERE = "192.0.2.3", "192.0.2.4"


def replica(name: str, node: str) -> cluster.RayReplica:
    told = StartedReplica(name=name, pool="small", state="ready", since=0.0)
    return cluster.RayReplica(told=told, node=node)


def test_an_engine_that_has_moved_or_comes_meanwhile_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One ends, one is restarted by Ray on another node, and a third one starts where there is room again."""
    before = {"first": replica("first", NODE), "second": replica("second", NODE), "third": replica("third", "")}
    moved = {**before, "second": replica("second", ELSEWHERE)}
    ended = {**moved, "first": cluster.RayReplica(told=None, node=NODE), "third": replica("third", NODE)}
    looks = iter([before, moved, ended])
    drained: list[str] = []
    monkeypatch.setattr(cluster, "join", lambda address, namespace: None)
    monkeypatch.setattr(cluster, "look", lambda: next(looks))
    monkeypatch.setattr(command, "drain", drained.append)
    monkeypatch.setattr(command, "_LOOK_SECONDS", 0.0)
    done = CliRunner().invoke(command.main, ["drain", "--node", NODE])
    assert done.output == f"2 engines on {NODE} have ended\n"
    assert sorted(drained) == ["first", "second"]
