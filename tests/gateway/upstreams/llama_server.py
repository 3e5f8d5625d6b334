"""llama.cpp's own server, as the package xllamacpp carries it, in a process of its own.

python -m tests.gateway.upstreams.llama_server MODEL PORT [KEY]
"""

from __future__ import annotations

import signal
import sys

SLOTS, CONTEXT = 4, 1024
"""Requests at the same time, and tokens of each."""


def main(model: str, port: str, *keys: str) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames, params.port = ["127.0.0.1"], int(port)
    params.n_parallel, params.n_ctx = SLOTS, SLOTS * CONTEXT
    params.kv_unified = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics = params.endpoint_slots = True
    params.api_keys = list(keys)
    params.warmup = False
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
