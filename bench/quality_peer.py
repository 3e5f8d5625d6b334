"""llama.cpp's logits at every position of texts, in its own process and Python environment.

Each line of standard input is a JSON list of token ids; the answer is their logits in fp32, [tokens, vocabulary], on
standard output. Whatever llama.cpp prints goes to standard error. `bench.quality` starts it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys


def main(path: str, tokens: int, threads: int) -> None:
    """Answer until the input ends. `tokens`: most of one text."""
    import llama_cpp
    import numpy as np

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    llama_cpp.llama_backend_init()
    sizes = llama_cpp.llama_model_default_params()
    sizes.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(path.encode(), sizes)
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = settings.n_batch = tokens
    settings.n_threads = settings.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, settings)
    if not context:
        raise RuntimeError(f"llama.cpp could not load {path}")
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(tokens, 0, 1)
    for line in sys.stdin:
        ids = json.loads(line)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        batch.n_tokens = len(ids)
        for position, token in enumerate(ids):
            batch.token[position], batch.pos[position] = token, position
            batch.n_seq_id[position], batch.seq_id[position][0] = 1, 0
            batch.logits[position] = 1
        status = llama_cpp.llama_decode(context, batch)
        if status:
            raise RuntimeError(f"llama_decode ended with {status}")
        logits = llama_cpp.llama_get_logits(context)
        whole = np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (len(ids), vocabulary))
        answers.write(whole.tobytes())
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
