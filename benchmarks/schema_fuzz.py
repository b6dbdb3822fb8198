"""Requests made from /openapi.json by schemathesis, against the demonstration model on the CPU.

    python benchmarks/schema_fuzz.py           print what it found
    python benchmarks/schema_fuzz.py --check   also print PASS or FAIL, and exit 1 on FAIL

Half of the time is for requests of the document as it is, most of which are refused, half for a narrower one whose
requests the engine runs. No request may end in a 5xx, with a status, a header or a body that the document does not
have, or never; afterwards nothing is in flight and the server gives the same answer as before. schemathesis is no
dependency: install it where you like and name its command with --schemathesis.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
from live_server import LiveServer, demonstration_model

# Short sequences: the largest n with the most tokens is among what is asked.
FLAGS = ("--backend", "cpu", "--rows", "32", "--max-seq", "48", "--default-max-tokens", "4")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
)
REQUEST_SECONDS = 60


def say(url: str) -> str:
    """The server's answer to a fixed greedy request."""
    body = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=REQUEST_SECONDS)
    answer.raise_for_status()
    text: str = answer.json()["choices"][0]["text"]
    return text


def narrowed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with requests alone that a small server can run: short, and with tokens of its vocabulary."""
    made = copy.deepcopy(document)
    schemas = made["components"]["schemas"]
    text = {"type": "string", "minLength": 1, "maxLength": 6}
    token = {"type": "integer", "minimum": 0, "maximum": 1000}
    tokens = {"type": "array", "items": token, "minItems": 1, "maxItems": 6}
    prompts = [{"type": "array", "items": one, "minItems": 1, "maxItems": 3} for one in (text, tokens)]
    roles = {"enum": ["user", "assistant", "system"]}
    message = {"type": "object", "properties": {"role": roles, "content": text}, "required": ["role", "content"]}
    common: dict[str, Any] = {
        "max_tokens": {"type": "integer", "minimum": 1, "maximum": 4},
        "n": {"type": "integer", "minimum": 1, "maximum": 3},
        "min_tokens": {"type": "integer", "minimum": 0, "maximum": 1},
        "logit_bias": {"type": "object", "propertyNames": {"pattern": "^[1-9]{1,3}$"}, "maxProperties": 4,
                       "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}},
        "stop": {"anyOf": [text, {"type": "array", "items": text, "maxItems": 4}]},
        "stop_token_ids": {**tokens, "minItems": 0},
        "stream": {"type": "boolean"},
    }  # fmt: skip
    chat = {
        "messages": {"type": "array", "items": message, "minItems": 1, "maxItems": 2},
        "logprobs": {"const": True},
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
        "max_completion_tokens": common["max_tokens"],
    }
    completion = {"prompt": {"anyOf": [text, tokens, *prompts]}, "logprobs": {**common["n"], "minimum": 0}}
    left_out = ("model", "best_of", "stream_options", "chat_template_kwargs", "continue_final_message")
    for name, changes in (("ChatRequest", chat), ("CompletionRequest", completion)):
        properties = schemas[name]["properties"]
        properties.update({**common, **changes})
        for field in left_out:
            properties.pop(field, None)
        schemas[name]["required"] = [*schemas[name]["required"], "max_tokens"]
        if name == "ChatRequest":
            schemas[name]["required"] += ["logprobs", "max_completion_tokens"]
    paths = made["paths"]
    made["paths"] = {path: paths[path] for path in paths if path.startswith("/v1/") and path.endswith("completions")}
    return made


def fuzz(command: str, document: str, url: str, seconds: int, seed: int) -> int:
    """The exit code of schemathesis, which prints what it does. `document` is a file's path or an address."""
    return subprocess.run(
        [
            command, "run", document, "--url", url, "--checks", ",".join(CHECKS), "--seed", str(seed),
            "--max-time", str(seconds), "--request-timeout", str(REQUEST_SECONDS), "--continue-on-failure",
            "--generation-database", "none", "--no-color", "--warnings", "off",
        ],
        check=False,
    ).returncode  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--seed", type=int, default=1)
    beside = str(Path(sys.executable).parent)
    parser.add_argument("--schemathesis", default=shutil.which("schemathesis", path=beside) or "schemathesis")
    options = parser.parse_args()
    if shutil.which(options.schemathesis) is None:
        print(f"{options.schemathesis}: there is no such command; install schemathesis, or name it with --schemathesis")
        return 2
    with LiveServer.of(demonstration_model(), *FLAGS).ready() as server:
        before = say(server.url)
        address, half = f"{server.url}/openapi.json", max(1, options.seconds // 2)
        code = fuzz(options.schemathesis, address, server.url, half, options.seed)
        refused = server.idle()["poot_requests_completed_total"]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "narrowed.json"
            file.write_text(json.dumps(narrowed(httpx.get(address).json())), "utf-8")
            code |= fuzz(options.schemathesis, str(file), server.url, half, options.seed)
        served = server.idle()["poot_requests_completed_total"]
        after = say(server.url)
        faults = [line for _, line in server.lines if " ERROR " in line]
    print(*faults[:20], sep="")
    print(f"generations: {refused:.0f} of the document as it is, {served - refused:.0f} of the narrower one")
    lines = {
        "every answer is as documented, and none a 5xx": code == 0,
        "the server gives the same answer afterwards": before == after,
        "the server logged no error": not faults,
    }
    if options.check:
        for line, held in lines.items():
            print(f"{'PASS' if held else 'FAIL'}: {line}")
    return 0 if all(lines.values()) or not options.check else 1


if __name__ == "__main__":
    raise SystemExit(main())
