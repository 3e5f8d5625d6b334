"""Runs the clients of tests/clients/clients.toml against real servers: `python -m tests.clients [--only NAME]`.

Each client has an environment of its own at pinned versions, which is installed when it is first needed and kept.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

from gateway.models.catalogue import catalogue
from gateway.models.store import ModelStore, default_folder
from tests.clients import page
from tests.clients.client import Client, clients
from tests.clients.environments import UnavailableError, environment
from tests.clients.running import Outcome, Server, run
from tests.e2e.conftest import KEY, NAMES, installation

_EMBEDDER = "all-MiniLM-L6-v2"
_CONTEXT = 32768
"""Tokens of a coding agent's prompt and its answer; one request gets at most half of the KV cache."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(clients()), help="run these; all by default")
    parser.add_argument("--write", action="store_true", help="write the table of docs/clients.md")
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers end with this process, as with Ctrl-C
    chosen = {name: client for name, client in clients().items() if name in (arguments.only or clients())}
    outcomes: dict[str, Outcome] = {}
    by_model = sorted(chosen, key=lambda name: chosen[name].model)
    for model, names in itertools.groupby(by_model, key=lambda name: chosen[name].model):
        outcomes |= _run_all(model, {name: chosen[name] for name in names})
    if arguments.write:
        page.write(outcomes)
    return _conclude(chosen, outcomes)


def _run_all(model: str, chosen: Mapping[str, Client]) -> dict[str, Outcome]:
    """Run clients against one server: two at a time, or one where each request takes all cores for long."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(_serving(model))
        except UnavailableError as error:
            return {name: _said(name, Outcome(skipped=str(error))) for name in chosen}
        with ThreadPoolExecutor(1 if model else 2) as pool:
            return dict(zip(chosen, pool.map(lambda name: _run_one(name, server), chosen), strict=True))


@contextlib.contextmanager
def _serving(model: str) -> Iterator[Server]:
    """Start `roundhouse serve` with a model of the catalogue, or with this repository's own and the embedder."""
    if not model:
        with installation(tiers=["small"], ROUNDHOUSE_EMBEDDER_ENABLED="true") as running:
            # The embedder starts after the chat.
            OpenAI(base_url=running.api, api_key=KEY, max_retries=150).embeddings.create(model=_EMBEDDER, input="hello")
            yield Server(running.url, KEY, NAMES["small"], _EMBEDDER)
        return
    [wanted] = [each for each in catalogue() if each.name == model]
    file = ModelStore(default_folder()).path(wanted)
    if not file.exists():
        raise UnavailableError(f"{model} is not here; fetch it with: roundhouse models pull {model}")
    pool = f'\n[[pools]]\ntier = "large"\nname = "{model}"\nmodel = "{file}"\nkv_tokens = {2 * _CONTEXT}\nthreads = 2\n'
    with installation(tiers=[], tables=pool) as running:
        yield Server(running.url, KEY, model)


def _run_one(name: str, server: Server) -> Outcome:
    client = clients()[name]
    try:
        place = environment(name, client, _say)
    except UnavailableError as error:
        return _said(name, Outcome(skipped=str(error)))
    _say(f"{name}: running")
    return _said(name, run(client, place, server))


def _said(name: str, outcome: Outcome) -> Outcome:
    """Print what came of a client."""
    if outcome.skipped:
        _say(f"{name}: NOT RUN: {outcome.skipped}")
    else:
        _say(f"{name}: {outcome.passed} of {len(outcome.checks)} checks passed")
    for surprise in outcome.surprises(clients()[name]):
        _say(f"{name}: {surprise}")
    return outcome


def _say(line: str) -> None:
    print(line, flush=True)


def _conclude(chosen: Mapping[str, Client], outcomes: Mapping[str, Outcome]) -> int:
    """Print the table's rows and what was not run; 1 if a client did not behave as clients.toml says."""
    _say("")
    for name, client in chosen.items():
        if not outcomes[name].skipped:
            _say(page.row(name, client, outcomes[name]))
    unexpected = [name for name, client in chosen.items() if outcomes[name].surprises(client)]
    skipped = [name for name in chosen if outcomes[name].skipped]
    _say(f"\n{len(chosen) - len(unexpected) - len(skipped)} clients as expected, {len(unexpected)} not: {unexpected}")
    _say(f"{len(skipped)} not run: {skipped}")
    return bool(unexpected)


if __name__ == "__main__":
    sys.exit(main())
