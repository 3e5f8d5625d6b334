"""llama.cpp's own server, as the package xllamacpp carries it, in a process of its own.

python -m bench.xllamacpp_server MODEL PORT [--key KEY] [--lora FILE]
"""

from __future__ import annotations

import argparse
import signal

SLOTS, CONTEXT = 4, 1024
"""Requests at the same time, and tokens of each."""


def main() -> None:
    import xllamacpp

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("port", type=int)
    parser.add_argument("--key", action="append", default=[])
    parser.add_argument("--lora", action="append", default=[], help="adapters in GGUF, repeatable")
    chosen = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = chosen.model
    params.hostnames, params.port = ["127.0.0.1"], chosen.port
    params.n_parallel, params.n_ctx = SLOTS, SLOTS * CONTEXT
    params.kv_unified = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics = params.endpoint_slots = True
    params.api_keys = chosen.key
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path) for path in chosen.lora]
    params.warmup = False
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
