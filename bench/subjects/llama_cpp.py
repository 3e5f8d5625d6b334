"""llama.cpp through its C interface: one `llama_decode` per step, batched over requests as its server does it."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.subjects.interface import Clock, Precision, RequestBatch, Subject, SubjectSetup, Trace

_BATCH = 2048
"""Most tokens of a step; its default."""
_ROUND = 256
"""Tokens of which llama.cpp's caches have a multiple."""
_FILE = "model.gguf"


def convert(checkpoint: Path, precision: Precision, directory: Path) -> None:
    """Write a GGUF file without a vocabulary, quantised by `llama_model_quantize`."""
    import llama_cpp

    directory.mkdir(parents=True)
    whole = directory / "whole.gguf"
    _write(checkpoint, whole)
    if precision == "bf16":
        whole.rename(directory / _FILE)
        return
    settings = llama_cpp.llama_model_quantize_default_params()
    # Rows of Q4_K are a multiple of 256 long; llama.cpp would otherwise mix in larger types.
    rows = json.loads((checkpoint / "config.json").read_text())["hidden_size"]
    four_bits = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M if rows % 256 == 0 else llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
    settings.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0 if precision == "int8" else four_bits
    failed = llama_cpp.llama_model_quantize(
        str(whole).encode(), str(directory / _FILE).encode(), ctypes.byref(settings)
    )
    if failed:
        raise RuntimeError(f"llama.cpp could not quantise the model ({failed})")
    whole.unlink()


def _write(checkpoint: Path, path: Path) -> None:
    """Write the checkpoint as GGUF in bf16, with norms in fp32."""
    import gguf
    import torch
    from safetensors.torch import load_file

    config = json.loads((checkpoint / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        # llama.cpp rotates neighbouring elements, Hugging Face's Llama halves.
        if "q_proj" in name or "k_proj" in name:
            rotated = tensor.view(heads if "q_proj" in name else kv_heads, 2, -1, tensor.shape[1])
            tensor = rotated.transpose(1, 2).reshape(tensor.shape)
        target = names.get_name(name, try_suffixes=(".weight",))
        assert target is not None, name
        if tensor.dim() == 1:
            writer.add_tensor(target, tensor.float().numpy())
        else:
            raw = tensor.contiguous().view(torch.uint8).numpy()
            writer.add_tensor(target, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@contextlib.contextmanager
def load(setup: SubjectSetup) -> Iterator[Subject]:
    """Load the model. Each request has a cache of its own, as in the server without `--kv-unified`."""
    import llama_cpp

    llama_cpp.llama_backend_init()
    sizes = llama_cpp.llama_model_default_params()
    sizes.n_gpu_layers = 0
    sizes.use_mmap = False
    path = Path(setup.model) if setup.precision == "stored" else Path(setup.model) / _FILE
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), sizes)
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = setup.requests * -(-setup.tokens // _ROUND) * _ROUND
    settings.n_seq_max = setup.requests
    settings.n_batch = _BATCH
    settings.n_threads = settings.n_threads_batch = setup.threads
    settings.kv_unified = False
    context = llama_cpp.llama_init_from_model(model, settings)
    if not context:
        raise RuntimeError("llama.cpp could not make a context")
    yield Subject.here(_Generation(model, context).run)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)


class _Generation:
    """Runs steps of up to `_BATCH` tokens: one of each request that decodes, then prompts in their order."""

    def __init__(self, model: Any, context: Any) -> None:
        import llama_cpp
        import numpy as np

        self._llama, self._np, self._context = llama_cpp, np, context
        self._memory = llama_cpp.llama_get_memory(context)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)
        self._token = np.ctypeslib.as_array(batch.token, (_BATCH,))
        self._position = np.ctypeslib.as_array(batch.pos, (_BATCH,))
        self._wanted = np.ctypeslib.as_array(batch.logits, (_BATCH,))
        np.ctypeslib.as_array(batch.n_seq_id, (_BATCH,))[:] = 1
        self._held: list[list[int]] = []
        """Tokens in each request's cache."""

    def run(self, batch: RequestBatch) -> list[Trace]:
        clock = Clock(len(batch.prompts))
        done = self._reuse(batch.prompts)
        if batch.shared_tokens:
            self._llama.llama_memory_clear(self._memory, False)
            # As its `parallel` example does with a system prompt; the server would compute it for every request.
            shared = batch.prompts[0][: batch.shared_tokens]
            for first in range(0, len(shared), _BATCH):
                self._step([(0, shared[first : first + _BATCH], first)], [])
            for index in range(1, len(batch.prompts)):
                self._llama.llama_memory_seq_cp(self._memory, 0, index, -1, -1)
            done = [batch.shared_tokens] * len(batch.prompts)
        lengths = [len(prompt) for prompt in batch.prompts]
        running = list(range(len(batch.prompts)))
        while running:
            parts: list[tuple[int, list[int], int]] = []
            sampled, room = [], _BATCH
            for index in running:
                if done[index] >= lengths[index]:
                    parts.append((index, clock.traces[index].tokens[-1:], done[index]))
                    sampled.append(index)
                    done[index] += 1
                    room -= 1
            for index in running:
                if done[index] < lengths[index] and room > 0:
                    part = batch.prompts[index][done[index] : done[index] + room]
                    parts.append((index, part, done[index]))
                    done[index] += len(part)
                    room -= len(part)
                    if done[index] == lengths[index]:
                        sampled.append(index)
            tokens = self._step(parts, sampled)
            now = clock.now()
            for index, token in zip(sampled, tokens, strict=True):
                clock.add(index, [token], now)
            running = [index for index in running if len(clock.traces[index].tokens) < batch.new_tokens]
        # The last token has been chosen, not run.
        self._held = [prompt + trace.tokens[:-1] for prompt, trace in zip(batch.prompts, clock.traces, strict=True)]
        return clock.traces

    def _reuse(self, prompts: list[list[int]]) -> list[int]:
        """Keep of each request's cache what begins its next prompt, as the server does -> tokens kept of each."""
        kept = []
        for index, held in enumerate(self._held):
            prompt = prompts[index] if index < len(prompts) else []
            pairs = zip(held, prompt[:-1], strict=False)
            same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            self._llama.llama_memory_seq_rm(self._memory, index, same, -1)
            kept.append(same)
        return (kept + [0] * len(prompts))[: len(prompts)]

    def _step(self, parts: list[tuple[int, list[int], int]], sampled: list[int]) -> list[int]:
        """Decode (request, tokens, first position) of each part; returns `sampled`'s greedy tokens, in parts' order."""
        at, wanted = 0, set(sampled)
        for request, tokens, position in parts:
            end = at + len(tokens)
            self._token[at:end] = tokens
            self._position[at:end] = self._np.arange(position, position + len(tokens))
            self._wanted[at:end] = 0
            self._wanted[end - 1] = request in wanted
            for slot in range(at, end):
                self._batch.seq_id[slot][0] = request
            at = end
        self._batch.n_tokens = at
        status = self._llama.llama_decode(self._context, self._batch)
        if status:
            raise RuntimeError(f"llama_decode ended with {status}")
        if not sampled:
            return []
        shape = (len(sampled), self._vocabulary)
        logits = self._np.ctypeslib.as_array(self._llama.llama_get_logits(self._context), shape)
        chosen: list[int] = logits.argmax(axis=1).tolist()
        return chosen
