"""The flags of HTTP: what is taken, how much of it and how fast, who may ask, and how it is told."""

from __future__ import annotations

from poot_serve.errors import SettingsError
from poot_serve.flags import Fields, Flag, integer, items, read_file
from poot_serve.limits.host import AllowedHost, parse_host
from poot_serve.limits.keys import KEY, MAX_KEY_BYTES, MAX_KEYS, ApiKeys
from poot_serve.limits.origins import ANY, MAX_ORIGINS, as_sent

DAY_SECONDS = 86_400
MAX_KEY_FILE_BYTES = 1 << 20
MAX_NAMES = 16
MAX_NAME_CHARS = 256
MAX_HOSTS = 64
MEBIBYTE = 1 << 20
LOG_FORMATS = ("text", "json")


def _key_file(path: str) -> Fields:
    flag = "--api-key-file"
    raw = read_file(flag, path, MAX_KEY_FILE_BYTES)
    # No message may show what is in the file.
    if not raw.isascii():
        raise SettingsError(f"{flag}: {path!r} holds bytes that are not ASCII")
    lines = [(number, line.strip()) for number, line in enumerate(raw.splitlines(), 1)]
    keys = {key: number for number, key in lines if key}
    for key, number in keys.items():
        if KEY.fullmatch(key) is None:
            raise SettingsError(
                f"{flag}: line {number} of {path!r} is no key: 1 to {MAX_KEY_BYTES} visible characters without spaces"
            )
    if not keys:
        raise SettingsError(f"{flag}: {path!r} holds no key; write one a line")
    if len(keys) > MAX_KEYS:
        raise SettingsError(f"{flag}: {path!r} holds {len(keys)} keys; at most {MAX_KEYS} are taken")
    return {"api_keys": ApiKeys.of(keys)}


def _names(text: str) -> Fields:
    flag = "--served-model-name"
    names = items(flag, text, MAX_NAMES)
    for name in names:
        if len(name) > MAX_NAME_CHARS or not name.isprintable() or " " in name:
            raise SettingsError(f"{flag}: {name[:64]!r} is no name: up to {MAX_NAME_CHARS} characters without spaces")
    return {"model_name": names[0], "other_names": tuple(names[1:])}


def _hosts(text: str) -> Fields:
    flag = "--allowed-hosts"
    hosts: list[AllowedHost] = []
    for item in items(flag, text, MAX_HOSTS):
        host = parse_host(item.encode("utf-8", "replace"))
        if host is None or host.port == 0:
            raise SettingsError(f"{flag}: {item!r} is not HOST or HOST:PORT")
        if host in hosts:
            raise SettingsError(f"{flag} names {item!r} twice")
        hosts.append(host)
    for host in hosts:
        if host.port is not None and AllowedHost(host.name) in hosts:
            raise SettingsError(f"{flag}: {host.name!r} lets in every port; leave out either it or its ports")
    return {"allowed_hosts": tuple(hosts)}


def _origins(text: str) -> Fields:
    flag = "--cors-origin"
    origins = items(flag, text, MAX_ORIGINS)
    if ANY in origins:
        if len(origins) > 1:
            raise SettingsError(f"{flag}: {ANY} lets in every origin; give it alone, or only the others")
        return {"cors_origins": (ANY,)}
    for origin in origins:
        sent = as_sent(origin)
        if sent is None:
            raise SettingsError(
                f"{flag}: {origin!r} is no origin of a page, which is SCHEME://HOST or SCHEME://HOST:PORT; {ANY} alone "
                "lets in every origin"
            )
        if sent != origin:
            raise SettingsError(f"{flag}: {origin!r} is no origin as browsers send it; give {sent!r}")
    return {"cors_origins": tuple(origins)}


def _log_format(text: str) -> Fields:
    if text not in LOG_FORMATS:
        raise SettingsError(f"--log-format takes one of {', '.join(LOG_FORMATS)}, not {text!r}")
    return {"log_format": text}


def _limit(name: str, text: str, field: str, low: int, high: int, *, unit: int = 1) -> Flag:
    return Flag(name, "N", text, integer(name, field, low, high, unit=unit))


HTTP_FLAGS: tuple[Flag, ...] = (
    Flag("--served-model-name", "NAMES", "names of the model in the API, with commas; answers carry the first", _names),
    Flag("--api-key-file", "FILE", "API keys, one a line; every route but /health then asks for one", _key_file),
    Flag("--allowed-hosts", "HOSTS", "further HOST[:PORT]s that a request may name, with commas", _hosts),
    Flag("--cors-origin", "ORIGINS", "origins whose web pages may use the API, with commas, or * [none]", _origins),
    _limit("--rate-limit-rpm", "POSTs a minute of one address; 0 is no limit [0]", "rate_limit_rpm", 0, 1_000_000),
    _limit("--max-connections", "open connections; 0 is no limit [4096]", "max_connections", 0, 1_000_000),
    _limit("--max-pending-requests", "POSTs answered at once [256]", "max_pending_requests", 1, 1_000_000),
    _limit("--max-receiving-requests", "of them, those still sending [64]", "max_receiving_requests", 1, 1_000_000),
    _limit("--max-queue-wait-secs", "seconds to wait for the engine [60]", "queue_wait_seconds", 1, DAY_SECONDS),
    _limit("--max-body-mib", "largest body, in MiB [4]", "max_body_bytes", 1, 1024, unit=MEBIBYTE),
    _limit("--request-timeout-secs", "seconds to send a request [30]", "request_timeout_seconds", 1, DAY_SECONDS),
    _limit("--write-timeout-secs", "seconds to take a piece of answer [30]", "write_timeout_seconds", 1, DAY_SECONDS),
    Flag("--log-format", "FORMAT", f"{' or '.join(LOG_FORMATS)}, an object a line [text]", _log_format),
)
