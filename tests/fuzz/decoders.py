"""Coverage-guided fuzzing of everything that decodes bytes from outside.

    python -m tests.fuzz.decoders session -runs=100000          one target, or several with commas; any libFuzzer option
    make fuzz                                                   all of them, a minute each

A target may refuse its input by the errors that it documents. Anything else is a finding, which libFuzzer writes to a
file `crash-*` in `test-artifacts/`; give it that file to see it again.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any

import atheris

with atheris.instrument_imports(include=["gateway", "engine.wire", "engine.checkpoint"], enable_loader_override=False):
    import msgspec

    from engine.checkpoint.errors import CheckpointError
    from engine.checkpoint.opening import open_checkpoint
    from engine.client.conversation import AnswerPart, ArgumentsPart, TextPart
    from engine.wire import decode_client_frame, decode_server_frame
    from gateway.errors import ApiError, InvalidRequest
    from gateway.protocol.chat_completion_create import parse_chat_completion_create
    from gateway.protocol.codec import JsonCodec, MsgpackCodec
    from gateway.protocol.completion_create import parse_completion_create
    from gateway.protocol.conversation_create import parse_items
    from gateway.protocol.response_create import (
        parse_input_tokens,
        parse_response_compact,
        parse_response_create,
    )
    from gateway.protocol.session import Session, SessionLimits
    from gateway.tools.formats import FORMATS
    from gateway.tools.parser import CallParser

ARTIFACTS = Path(__file__).parent.parent.parent / "test-artifacts"


def bodies(data: bytes) -> None:
    """Decode request bodies of all endpoints."""
    try:
        body = JsonCodec().decode(data)
    except InvalidRequest:
        return
    parsers: list[Callable[[dict[str, Any]], object]] = [
        parse_response_create,
        parse_input_tokens,
        lambda body: parse_response_compact(body, "Summarise."),
        lambda body: parse_items([body]),
        parse_chat_completion_create,
        parse_completion_create,
    ]
    for parse in parsers:
        try:
            parse(body)
        except ApiError as error:
            assert error.message


def session(data: bytes) -> None:
    """Feed messages of one WebSocket, separated by zeros, in both codecs."""
    now = 0.0
    for codec in (JsonCodec(), MsgpackCodec()):
        connection = Session(codec, SessionLimits(max_message_bytes=4096), now)
        for message in data.split(b"\0"):
            now += 1.0
            for _ in connection.receive(message, now):
                pass
            connection.tick(now)
        connection.disconnected()


def frames(data: bytes) -> None:
    """Decode the frames between engines and gateways."""
    for decode in (decode_client_frame, decode_server_frame):
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            decode(data)


def checkpoints(data: bytes) -> None:
    """Read everything of a GGUF file."""
    path = ARTIFACTS / f"fuzz-{os.getpid()}.gguf"
    path.write_bytes(data)
    with contextlib.suppress(CheckpointError):
        found = open_checkpoint(path)
        for read in (lambda: found.config, found.tokenizer, lambda: list(found.tensors()), lambda: found.templates):
            with contextlib.suppress(CheckpointError):
                read()


def calls(data: bytes) -> None:
    """Parse answers in all formats of tool calls: cut anywhere, they must read as if they were whole."""
    text = data[1:].decode(errors="replace")
    step = 1 + (data[0] if data else 0) % 7
    pieces = [text[start : start + step] for start in range(0, len(text), step)]
    for format in FORMATS:
        assert _read(format.parser, pieces) == _read(format.parser, [text]), format.name


def _read(make: Callable[[list[str]], CallParser], pieces: list[str]) -> list[object]:
    """Return what was read, with neighbouring texts and arguments joined."""
    parser = make(["get_weather", "f"])
    found: list[AnswerPart] = [event for piece in pieces for event in parser.push(piece)]
    found += parser.finish()
    joined: list[object] = []
    for event in found:
        before = joined[-1] if joined else None
        if isinstance(event, TextPart | ArgumentsPart) and isinstance(before, type(event)):
            joined[-1] = type(event)(before.text + event.text)
        else:
            joined.append(event)
    return joined


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (bodies, session, frames, calls, checkpoints)
}


def _gguf() -> bytes:
    """The smallest file with a model: two keys of each kind, a vocabulary of two tokens and one tensor."""

    def text(value: str) -> bytes:
        return pack("<Q", len(value)) + value.encode()

    names = "block_count context_length embedding_length feed_forward_length attention.key_length"
    keys = [text(f"llama.{name}") + pack("<II", 4, 8) for name in names.split()]
    keys += [text("llama.attention.head_count") + pack("<II", 4, 1)]
    keys += [text("llama.attention.layer_norm_rms_epsilon") + pack("<If", 6, 1e-5)]
    words = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"}
    keys += [text(key) + pack("<I", 8) + text(value) for key, value in words.items()]
    keys += [text("tokenizer.chat_template") + pack("<I", 8) + text("{{ messages }}")]
    keys += [text("tokenizer.ggml.tokens") + pack("<IIQ", 9, 8, 3) + text("a") + text("b") + text("ab")]
    keys += [text("tokenizer.ggml.merges") + pack("<IIQ", 9, 8, 1) + text("a b")]
    keys += [text("tokenizer.ggml.token_type") + pack("<IIQ3i", 9, 5, 3, 1, 4, 3)]
    header = b"GGUF" + pack("<IQQ", 3, 1, len(keys)) + b"".join(keys)
    header += text("blk.0.attn_q.weight") + pack("<IQQIQ", 2, 8, 8, 0, 0)
    return header + bytes(-len(header) % 32) + bytes(256)


SEEDS: dict[str, list[bytes]] = {
    "bodies": [
        b'{"model":"auto","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}],"tools":[{"type":'
        b'"function","name":"f","parameters":{"type":"object"}}],"text":{"format":{"type":"json_object"}}}',
        b'{"model":"auto","messages":[{"role":"user","content":"hi"}],"n":2,"stop":["a"],"logprobs":true}',
        b'{"model":"small","prompt":[[1,2],[3]],"echo":true,"logit_bias":{"5":-1.5}}',
    ],
    "session": [
        b'{"type":"response.create","input":"hi","stream_id":"a"}\0{"type":"response.cancel","response_id":"resp_1"}\0'
        b'{"type":"response.resume","response_id":"resp_1","starting_after":3}',
    ],
    "frames": [b"\x83\xa4type\xa8generate\xa2id\xa11\xa6prompt\x93\x01\x02\x03"],
    "checkpoints": [_gguf()],
    "calls": [
        b'\x01\x00<tool_call>{"name": "f", "arguments": {"a": [1, "x"]}}</tool_call>',
        b'\x01\x00[TOOL_CALLS] [{"name": "f", "arguments": {}}]',
        b"\x01\x00[f(a=1, b='x')]",
    ],
}


def main() -> None:
    targets = sys.argv.pop(1).split(",") if len(sys.argv) > 1 else []
    if not targets or not {*targets} <= TARGETS.keys():
        raise SystemExit(f"{__doc__}\nTargets: {', '.join(TARGETS)}")
    for target in targets[1:]:
        # Each target ends its process. All together they import what they fuzz once.
        child = os.fork()
        if child == 0:
            fuzz(target)
        elif status := os.waitpid(child, 0)[1]:
            raise SystemExit(f"{target}: {os.waitstatus_to_exitcode(status)}")
    fuzz(targets[0])


def fuzz(target: str) -> None:
    ARTIFACTS.mkdir(exist_ok=True)
    corpus = ARTIFACTS / "fuzz" / target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[target]):
        (corpus / f"seed-{number}").write_bytes(seed)
    atheris.Setup([*sys.argv, str(corpus), f"-artifact_prefix={ARTIFACTS}/"], TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
