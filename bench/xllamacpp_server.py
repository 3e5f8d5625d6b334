"""llama.cpp's own server, as the package xllamacpp carries it, in a process of its own.

python -m bench.xllamacpp_server MODEL PORT [--key KEY] [--lora FILE] [--own-template]
"""

from __future__ import annotations

import argparse
import signal

SLOTS, CONTEXT = 4, 1024
"""Requests at the same time, and tokens of each."""
TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] + '\\n\\n' }}{%- endif %}
    {{- 'You may call one or more of these functions:\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools>\\n\\nFor each call, return a JSON object with name and arguments within tags:\\n<tool_call>\\n' }}
    {{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}
    {%- for _ in range(3) %}
        {{- '<|im_start|>user\\nWhat time is it?<|im_end|>\\n<|im_start|>assistant\\n<tool_call>\\n' }}
        {{- '{"name": "now", "arguments": {"zone": "UTC"}}\\n</tool_call><|im_end|>\\n' }}
    {%- endfor %}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message['role'] == 'user' or (message['role'] == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
    {%- elif message['role'] == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message['content'] %}{{- '\\n' + message['content'] }}{%- endif %}
        {%- for call in message['tool_calls'] or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call['function']['name'] + '", "arguments": ' }}
            {{- call['function']['arguments'] | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message['role'] == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message['content'] + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""Chat template with functions: the server gives none to a model whose own template knows none. Without the examples
the smallest models call none: where a call is required, the server lets them say something before it."""


def main() -> None:
    import xllamacpp

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("port", type=int)
    parser.add_argument("--key", action="append", default=[])
    parser.add_argument("--lora", action="append", default=[], help="adapters in GGUF, repeatable")
    parser.add_argument("--own-template", action="store_true", help="the model's, which may know no functions")
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
    if not chosen.own_template:
        params.chat_template = TEMPLATE
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
