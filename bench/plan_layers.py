"""The planner's roofline beside layers of Llama 2 that Vidur has measured on A100 and H100, on one to eight devices."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from pathlib import Path

import msgspec

from bench.report import table
from engine.step_times import StepWork
from scale.planning.devices import known_devices
from scale.planning.shape import known_shapes
from scale.planning.step_cost import Roofline

FILE = Path(__file__).with_name("vidur_layers.csv")


class MeasuredLayer(msgspec.Struct, frozen=True):
    """One decoder layer without attention's reading of keys and values, and without all-reduces."""

    device: str
    model: str
    devices: int
    tokens: int
    seconds: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.seconds - 1


def measured_layers() -> list[MeasuredLayer]:
    lines = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
    found = []
    for row in csv.DictReader(lines):
        shape = msgspec.structs.replace(known_shapes()[row["model"]], layers=1)
        roofline = Roofline(shape=shape, device=known_devices()[row["device"]], devices=int(row["devices"]))
        work = StepWork(float(row["tokens"]))
        predicted = roofline.seconds(work) - roofline.parts(work)["network"]
        seconds = float(row["microseconds"]) * 1e-6
        found.append(
            MeasuredLayer(row["device"], row["model"], roofline.devices, int(row["tokens"]), seconds, predicted)
        )
    return found


def markdown() -> list[str]:
    groups: defaultdict[tuple[str, str, int], list[float]] = defaultdict(list)
    for layer in measured_layers():
        groups[layer.device, layer.model, layer.devices].append(layer.error)
    return table(
        "device | model | devices | median distance | furthest below | furthest above",
        (
            f"{device} | {model} | {devices} | {statistics.median(map(abs, errors)):.1%} | {min(errors):+.1%} | "
            f"{max(errors):+.1%}"
            for (device, model, devices), errors in groups.items()
        ),
        words=2,
    )
