"""What `deploy/` and the guides say of the command line is taken by it, and agrees with it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from poot_serve.http_flags import HTTP_FLAGS
from poot_serve.limits.host import AllowedHost, check_host
from poot_serve.listen import SPARE_FILES
from poot_serve.settings import FLAGS, parse

ROOT = Path(__file__).parents[2]
GUIDES = ["limits.md", "behind-nginx.md", "systemd.md", "container.md"]


def lines_of(name: str) -> list[str]:
    text = (ROOT / "deploy" / name).read_text("utf-8").replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "api-keys").write_bytes(b"a-key\n")
    return tmp_path / "model.gguf"


def test_the_systemd_unit(model):
    unit = dict(line.split("=", 1) for line in lines_of("poot-serve.service") if "=" in line)
    program, *arguments = shlex.split(unit["ExecStart"].replace("%d", str(model.parent)))
    assert program.endswith("/poot-serve")
    settings = parse([argument.replace("/srv/models/model.gguf", str(model)) for argument in arguments])
    assert settings.api_keys is not None and settings.log_format == "json"
    assert int(unit["TimeoutStopSec"]) == settings.drain_timeout_seconds + 15
    assert int(unit["LimitNOFILE"]) >= settings.max_connections + SPARE_FILES


def test_the_container(model):
    told = dict(line.split(" ", 1) for line in lines_of("Containerfile") if line.startswith(("ENTRYPOINT", "CMD")))
    program, *flags = json.loads(told["ENTRYPOINT"])
    path, address = json.loads(told["CMD"])
    assert program == "poot-serve" and path.startswith("/models/")
    settings = parse([*flags, str(model), address])
    (check,) = (line for line in lines_of("Containerfile") if line.startswith("HEALTHCHECK"))
    host = re.search(r"http://([^/]+)/health'", check)
    assert host is not None
    # Also where other names are allowed.
    check_host([host[1].encode()], settings.listener, [AllowedHost("api.example.com")])


def test_nginx_passes_a_host_that_is_allowed(model):
    told = [line.split() for line in lines_of("nginx.conf")]
    (name,) = (words[1].rstrip(";") for words in told if words[0] == "server_name")
    (upstream,) = (words[1].rstrip(";") for words in told if words[0] == "server" and words[1] != "{")
    settings = parse(["--allowed-hosts", name, str(model), upstream])
    check_host([name.encode()], settings.listener, settings.allowed_hosts)
    (size,) = (words[1] for words in told if words[0] == "client_max_body_size")
    assert int(size.removesuffix("m;")) << 20 == settings.max_body_bytes
    (idle,) = (words[1] for words in told if words[0] == "keepalive_timeout")
    assert int(idle.removesuffix("s;")) < settings.request_timeout_seconds
    (silence,) = (words[1] for words in told if words[0] == "proxy_read_timeout")
    assert int(silence.removesuffix("s;")) > 2 * settings.queue_wait_seconds


@pytest.mark.parametrize("guide", GUIDES)
def test_guides_name_flags_that_exist(guide):
    text = (ROOT / "docs" / guide).read_text("utf-8")
    known = {flag.name for flag in FLAGS} | {"--help", "--version"}
    of_others = {"--rm", "--device", "--gpus", "--build-arg", "--secret", "--time", "--read-only", "--tmpfs", "--now"}
    assert set(re.findall(r"--[a-z][a-z-]+", text)) <= known | of_others


def test_every_flag_of_http_is_in_the_guides():
    text = "".join((ROOT / "docs" / guide).read_text("utf-8") for guide in ("limits.md", "serving.md"))
    assert [flag.name for flag in HTTP_FLAGS if f"`{flag.name} " not in text] == []


def test_the_table_of_limits_is_right(model):
    """The defaults and ranges that the table gives are those of the command line."""
    from poot_serve.errors import SettingsError

    text = (ROOT / "docs" / "limits.md").read_text("utf-8")
    rows = re.findall(r"^\| `(--[a-z-]+) N` \| (\d+)[^|]*\| ([\d,]+)[^|]* to ([\d,]+) \|", text, re.MULTILINE)
    assert len(rows) == 9
    for name, default, *ends in rows:
        low, high = (int(number.replace(",", "")) for number in ends)
        assert parse([str(model), name, default]) == parse([str(model)])
        for value in (low, high):
            parse([str(model), name, str(value)])
        for value in (low - 1, high + 1):
            with pytest.raises(SettingsError):
                parse([str(model), name, str(value)])
