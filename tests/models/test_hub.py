"""Models by their hub id, against a small server of the hub's API on this machine."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from poot_models import load
from poot_models.errors import (
    CheckpointFormatError,
    CheckpointMissingError,
    HubAccessError,
    HubChoiceError,
    HubError,
    HubMissingError,
    HubUnavailableError,
)
from poot_models.hub import Hub, HubId, fetch, local_model, parse_hub_id

INDEX = "model.safetensors.index.json"


def commit(revision: str) -> str:
    return hashlib.sha1(revision.encode(), usedforsecurity=False).hexdigest()


class FakeHub(ThreadingHTTPServer):
    """Repositories as file names and contents, and what was asked for.

    `fault`: repo -> (status, X-Error-Code). The files of `gated` ones are refused, their names are not.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Mapping[str, bytes]] = {}
        self.fault: dict[str, tuple[int, str]] = {}
        self.gated: set[str] = set()
        self.revisions = {"main", "v2"}
        self.fetched: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        found = re.fullmatch(
            r"/(api/models/)?(?P<repo>[^/]+/[^/]+)(/(revision|tree|resolve)/(?P<revision>[^/]+))?(/(?P<file>.+))?", path
        )
        assert found is not None, path
        repo, revision = found["repo"], found["revision"] or "main"
        commits = {commit(name) for name in self.server.revisions}
        if repo in self.server.fault:
            self._send(*self.server.fault[repo])
        elif repo not in self.server.repos:
            self._send(404, "RepoNotFound")
        elif revision not in self.server.revisions | commits:
            self._send(404, "RevisionNotFound")
        elif repo in self.server.gated and not found[1]:
            self._send(403, "GatedRepo")
        elif path.startswith("/api/models/"):
            self._describe(self.server.repos[repo], revision, tree="/tree/" in path)
        else:
            self._file(self.server.repos[repo], revision, found["file"])

    def _describe(self, files: Mapping[str, bytes], revision: str, *, tree: bool) -> None:
        listed = [
            {"type": "file", "path": name, "size": len(data), "oid": commit(name)} for name, data in files.items()
        ]
        about = {"id": "x", "sha": commit(revision), "siblings": [{"rfilename": name} for name in files]}
        self._send(200, body=json.dumps(listed if tree else about).encode())

    def _file(self, files: Mapping[str, bytes], revision: str, name: str) -> None:
        if name not in files:
            self._send(404, "EntryNotFound")
            return
        if self.command == "GET":
            self.server.fetched.append(name)
        sha = revision if len(revision) == 40 else commit(revision)
        tag = hashlib.sha1(files[name], usedforsecurity=False).hexdigest()
        self._send(200, body=files[name], headers={"ETag": f'"{tag}"', "X-Repo-Commit": sha})

    def _send(self, status: int, code: str = "", body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture(scope="module")
def running() -> Iterator[FakeHub]:
    with FakeHub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def server(running: FakeHub) -> FakeHub:
    running.repos, running.fault, running.gated, running.fetched = {}, {}, set(), []
    return running


@pytest.fixture
def hub(server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.chdir(tmp_path)
    return Hub(endpoint=server.url, cache=tmp_path / "cache", token=False)


@pytest.fixture
def refusal(server: FakeHub, hub: Hub) -> Callable[..., str]:
    """(id, files of org/m, kind) -> the one line of the HubError."""

    def message(text: str, files: Mapping[str, bytes] | None, kind: type[HubError] = HubChoiceError) -> str:
        if files is not None:
            server.repos["org/m"] = files
        found = parse_hub_id(text)
        assert found is not None
        with pytest.raises(HubError) as caught:
            fetch(found, hub)
        assert type(caught.value) is kind, caught.value
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return message


def files(*names: str) -> dict[str, bytes]:
    """Each file holds its name."""
    return {name: name.encode() for name in names}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/repo", HubId("org/repo")),
        ("Qwen/Qwen2.5-0.5B-Instruct-GGUF:q4_k_m", HubId("Qwen/Qwen2.5-0.5B-Instruct-GGUF", None, "q4_k_m")),
        ("org/repo@main", HubId("org/repo", "main")),
        ("org/repo@refs/pr/3:Q8_0", HubId("org/repo", "refs/pr/3", "Q8_0")),
        *((text, None) for text in ("repo", "/org/repo", "./repo", "../repo", "~/repo", "a/b/c", "org/repo/", "org/")),
        *((text, None) for text in ("org/m.gguf", "org/M.GGUF", "org/m.safetensors", "org/pytorch_model.bin")),
        *((text, None) for text in ("org/a b", "org/ä", "org/repo:", "org/repo@", "org/repo@../x", "org/..", "a\n/b")),
        *((text, None) for text in ("127.0.0.1:8080", "C:/model", "org/x--y", "http://org/repo", "org/" + "r" * 200)),
    ],
)  # fmt: skip
def test_what_has_the_form_of_an_id(text: str, expected: HubId | None) -> None:
    found = parse_hub_id(text)
    assert found == expected
    assert found is None or str(found) == text


def test_a_path_that_exists_goes_before_an_id(server: FakeHub, hub: Hub, tmp_path: Path) -> None:
    server.repos["org/m"] = files("m-Q8_0.gguf")
    (tmp_path / "org").mkdir()
    assert local_model("org/m", hub).is_file()
    (tmp_path / "org" / "m").mkdir()
    assert local_model("org/m", hub) == Path("org/m")
    assert local_model(Path("org/other"), hub) == Path("org/other")
    assert local_model("x" * 5000, hub) == Path("x" * 5000)
    with pytest.raises(CheckpointMissingError, match="path is empty"):
        local_model("", hub)


def test_a_directory_needs_few_files(server: FakeHub, hub: Hub) -> None:
    needed = ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors"]
    needed += ["chat_template.json", "additional_chat_templates/tool_use.jinja"]
    other = [
        "README.md",
        "pytorch_model.bin",
        "modeling_x.py",
        "consolidated.safetensors",
        "onnx/model.onnx",
        "m.gguf",
        "a/b.jinja",
    ]
    server.repos["org/m"] = files(*needed, *other)
    folder = fetch(HubId("org/m"), hub)
    there = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    assert sorted(there) == sorted(needed) == sorted(server.fetched)
    assert fetch(HubId("org/m"), hub) == folder
    assert len(server.fetched) == len(needed)


def test_shards_are_those_of_the_index(server: FakeHub, hub: Hub, refusal: Callable[..., str]) -> None:
    index = json.dumps({"weight_map": {"a": "m-[1].safetensors", "b": "m-2.safetensors"}}).encode()
    shards = ["m-[1].safetensors", "m-2.safetensors"]
    server.repos["org/m"] = {
        **files("config.json", *shards, "m-3.safetensors", "consolidated.safetensors"),
        INDEX: index,
    }
    folder = fetch(HubId("org/m"), hub)
    assert sorted(path.name for path in folder.iterdir()) == sorted(["config.json", INDEX, *shards])
    server.revisions = {"main", "v2"}
    assert "has no m-2.safetensors, which its" in refusal(
        "org/m@v2", {**files("config.json", "m-[1].safetensors"), INDEX: index}
    )


def test_an_index_may_not_lead_elsewhere(server: FakeHub, hub: Hub) -> None:
    index = json.dumps({"weight_map": {"a": "../../x.safetensors"}}).encode()
    server.repos["org/m"] = {**files("config.json"), INDEX: index}
    with pytest.raises(CheckpointFormatError, match=r"^org/m: .* only plain names"):
        fetch(HubId("org/m"), hub)


GGUFS = files(
    "README.md",
    "m-Q4_K_M.gguf",
    "m.q8_0.gguf",
    "m-UD-Q4_K_XL.gguf",
    "m-IQ4_XS.gguf",
    "mmproj-m-F16.gguf",
    "imatrix.gguf",
    "BF16/m-BF16-00001-of-00002.gguf",
    "BF16/m-BF16-00002-of-00002.gguf",
)


@pytest.mark.parametrize(
    ("quantisation", "expected"),
    [
        ("q4_k_m", ["m-Q4_K_M.gguf"]),
        ("Q8_0", ["m.q8_0.gguf"]),
        ("Q4_K_XL", ["m-UD-Q4_K_XL.gguf"]),
        ("UD-q4_k_xl", ["m-UD-Q4_K_XL.gguf"]),
        ("iq4_xs", ["m-IQ4_XS.gguf"]),
        ("m-IQ4_XS.gguf", ["m-IQ4_XS.gguf"]),
        ("bf16", ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"]),
    ],
)
def test_a_gguf_file_by_its_quantisation(server: FakeHub, hub: Hub, quantisation: str, expected: list[str]) -> None:
    server.repos["org/m"] = GGUFS
    path = fetch(HubId("org/m", None, quantisation), hub)
    assert path.as_posix().endswith(expected[0])
    assert sorted(server.fetched) == sorted(expected)


def test_choices_are_listed(refusal: Callable[..., str]) -> None:
    choices = "BF16, IQ4_XS, Q4_K_M, UD-Q4_K_XL, q8_0"
    assert refusal("org/m", GGUFS).endswith(f"several GGUF files; name one after a colon: {choices}")
    assert refusal("org/m:Q5_K_M", GGUFS).endswith(f"no GGUF file of Q5_K_M; name one after a colon: {choices}")
    same = files("a-Q8_0.gguf", "b-Q8_0.gguf")
    assert refusal("org/m:q8_0", same).endswith("several GGUF files; name one after a colon: a-Q8_0, b-Q8_0")
    assert refusal("org/m:q8_0", files("config.json", "model.safetensors")).endswith("so leave out :q8_0")
    assert "no GGUF file of a language model" in refusal("org/m", files("mmproj-F16.gguf"))
    assert "lacks part 2 of the 2" in refusal("org/m", files("m-Q8_0-00001-of-00002.gguf"))
    assert "only in pickles such as pytorch_model.bin" in refusal("org/m", files("config.json", "pytorch_model.bin"))
    assert "holds no model" in refusal("org/m", files("config.json", "adapter_model.safetensors"))


def test_revisions(server: FakeHub, hub: Hub, refusal: Callable[..., str]) -> None:
    server.repos["org/m"] = files("m-Q8_0.gguf")
    assert commit("v2") in str(fetch(HubId("org/m", "v2"), hub))
    assert commit("main") in str(fetch(HubId("org/m"), hub))
    assert commit("v2") in str(fetch(HubId("org/m", commit("v2")), hub))
    assert "org/m has no revision 'v3'" in refusal("org/m@v3", None, HubMissingError)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ((404, "RepoNotFound"), HubMissingError, "there is no path 'org/m', and the hub has no org/m (404)"),
        ((401, "RepoNotFound"), HubAccessError, "org/m is not on the hub, or private: check its name, or log in"),
        ((401, "GatedRepo"), HubAccessError, "org/m is gated: ask for access on its page, then log in"),
        ((403, "GatedRepo"), HubAccessError, "org/m is gated"),
        ((403, ""), HubAccessError, "the hub refuses org/m to this user"),
        ((429, ""), HubUnavailableError, "the hub answers 429; try again later"),
        ((500, ""), HubUnavailableError, "the hub answers 500; try again later"),
    ],
)
def test_refusals_of_the_hub(
    server: FakeHub,
    refusal: Callable[..., str],
    fault: tuple[int, str],
    kind: type[HubError],
    words: str,
) -> None:
    server.fault["org/m"] = fault
    assert words in refusal("org/m", None, kind)


@pytest.mark.parametrize("held", [["m-Q8_0.gguf"], ["config.json", "model.safetensors"]])
def test_a_gated_repository_lists_its_files(server: FakeHub, refusal: Callable[..., str], held: list[str]) -> None:
    server.gated.add("org/m")
    assert "org/m is gated" in refusal("org/m", files(*held), HubAccessError)


def test_without_a_network_an_earlier_run_is_enough(server: FakeHub, hub: Hub, tmp_path: Path) -> None:
    server.repos["org/m"] = GGUFS
    server.repos["org/d"] = files("config.json", "model.safetensors", "README.md")
    before = [fetch(HubId("org/m", None, "bf16"), hub), fetch(HubId("org/d"), hub)]
    closed = socket.socket()
    closed.bind(("127.0.0.1", 0))  # taken, and not listened on
    gone = Hub(endpoint=f"http://127.0.0.1:{closed.getsockname()[1]}", cache=hub.cache, token=False)
    assert [fetch(HubId("org/m", None, "BF16"), gone), fetch(HubId("org/d"), gone)] == before
    for other in (HubId("org/m", None, "Q8_0"), HubId("org/m", "v2"), HubId("org/other")):
        with pytest.raises(HubUnavailableError, match=r"cannot be reached \(.*refused.*no earlier run has fetched it"):
            fetch(other, gone)
    closed.close()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(HubUnavailableError, match=r"no path 'org/m'.*pip install 'poot-models\[hub\]'"):
        load("org/m")


def test_what_was_fetched_loads(server: FakeHub, hub: Hub, smollm2_path: Path) -> None:
    server.repos["org/m"] = {"SmolLM2-135M-Instruct.Q4_1.gguf": smollm2_path.read_bytes()}
    model = load(local_model("org/m:Q4_1", hub))
    assert (model.architecture, model.vocab_size) == ("llama", 49152)
    assert model.text.tokenizer.vocab_size == 49152


def test_progress_is_on_stderr(server: FakeHub, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    from huggingface_hub.utils import enable_progress_bars

    enable_progress_bars()  # transformers, whose bars other tests switch off, switches off the hub's with them
    server.repos["org/m"] = files("m-Q8_0.gguf")
    fetch(HubId("org/m"), hub)
    said = capsys.readouterr()
    assert said.out == ""
    assert "1/1" in said.err
