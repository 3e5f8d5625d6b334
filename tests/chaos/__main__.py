"""Breaks a running installation in every way that a seed draws: `python -m tests.chaos`, or `make chaos`."""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys
from collections.abc import Sequence

import uvloop

from tests.chaos import report
from tests.chaos.faults import Kind
from tests.chaos.run import Outcome, Plan, chaos, rolling_update


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    # Processes end with this one, as with Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # connections are lost on purpose
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    print(f"seed: {seed} (again with: make chaos SEED={seed})", flush=True)
    plan = Plan(
        seed=seed,
        clients=arguments.clients,
        faults=arguments.faults,
        kinds=tuple(Kind(name) for name in arguments.only),
        minutes=arguments.minutes,
        on_redis_down=arguments.on_redis_down,
    )
    outcomes: dict[str, Outcome] = {}
    if arguments.faults:
        outcomes["Random faults"] = uvloop.run(chaos(plan, _say))
    if arguments.turns:
        outcomes["A rolling update of everything"] = uvloop.run(rolling_update(plan, arguments.turns, _say))
    print(report.page(outcomes))
    if arguments.write:
        report.write(outcomes)
    problems = [problem for outcome in outcomes.values() for problem in outcome.problems]
    for line in report.grouped(problems):
        print(f"WRONG: {line}")
    for outcome in outcomes.values():
        if outcome.folder:
            print(f"All logs, and everything that is wrong, are in {outcome.folder}")
    return 1 if problems else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="draw the faults of this seed again; default: a new one")
    parser.add_argument("--faults", type=int, default=100, help="number of faults; 0: none")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="inject no more faults after this time")
    parser.add_argument("--clients", type=int, default=64, help="clients, each of which has one turn at a time")
    parser.add_argument("--turns", type=int, default=0, help="then replace everything until so many turns have ended")
    parser.add_argument("--only", nargs="+", default=[], metavar="KIND", help="inject these kinds of fault, once each")
    parser.add_argument("--on-redis-down", choices=("deny", "allow_local"), default="deny")
    parser.add_argument("--write", action="store_true", help="write bench/results/chaos.md")
    return parser.parse_args(argv)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
