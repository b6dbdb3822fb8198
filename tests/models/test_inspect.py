"""`poot-models inspect`: what it says of real and of small models, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from poot_executor.backends.cpu.native import load_library
from poot_executor.devices import open_device
from poot_executor.runtime import EntryKey, compile_graphs, prepare
from poot_models import __version__, cli, load
from poot_models.blocks import StepShape
from poot_models.inspection import inspect_model, lines
from poot_models.inspection.backends import _paper_device

Inspect = Callable[..., tuple[int, str, str]]


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str]) -> Inspect:
    """(arguments) -> exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.main(["inspect", *map(str, arguments)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Path]:
    """(architecture, **tensors beside or instead of the usual) -> a GGUF file of two layers that differ."""

    def write(architecture: str = "llama", *, heads: int = 4, **extra: tuple[int, ...]) -> Path:
        path = tmp_path / "tiny.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_context_length(256)
        writer.add_embedding_length(64)
        writer.add_block_count(2)
        writer.add_feed_forward_length([96, 128])
        writer.add_head_count(heads)
        writer.add_head_count_kv([2, 4])
        writer.add_layer_norm_rms_eps(1e-5)
        shapes = {"token_embd": (40, 64), "output": (40, 64), "output_norm": (64,)}
        for index, (kv, ff) in enumerate(((32, 96), (64, 128))):
            layer = {"attn_norm": (64,), "ffn_norm": (64,), "attn_q": (64, 64), "attn_output": (64, 64)}
            layer |= {"attn_k": (kv, 64), "attn_v": (kv, 64), "ffn_gate": (ff, 64), "ffn_up": (ff, 64)}
            shapes |= {f"blk.{index}.{name}": shape for name, shape in (layer | {"ffn_down": (64, ff)}).items()}
        for name, shape in {**shapes, **extra}.items():
            half = name.startswith("blk.0.ffn")
            writer.add_tensor(f"{name}.weight", np.ones(shape, np.float16 if half else np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def test_smollm2(smollm2_path: Path, inspect: Inspect) -> None:
    code, said, wrong = inspect("--json", smollm2_path)
    assert (code, wrong) == (0, "")
    found = json.loads(said)
    assert (found["architecture"], found["family"], found["format"], found["refusal"]) == (
        "llama",
        "llama",
        "gguf",
        None,
    )
    # 134.5 million parameters; the file's tensors as the gguf package counts them.
    reader = gguf.GGUFReader(smollm2_path)
    assert found["parameters"] == sum(tensor.n_elements for tensor in reader.tensors) == 134515008
    assert found["nbytes"] == sum(tensor.n_bytes for tensor in reader.tensors)
    assert {use["encoding"]: use["tensors"] for use in found["encodings"]} == {"Q4_1": 210, "Q8_0": 1, "F32": 61}
    sizes = found["sizes"]
    assert (sizes["vocabulary"], sizes["hidden"], sizes["positions"], sizes["tied"]) == (49152, 576, 8192, True)
    (kind,) = sizes["layers"]
    assert kind["layers"] == list(range(30))
    assert (kind["heads"], kind["kv_heads"], kind["head_dim"], kind["ff"], kind["window"]) == (9, 3, 64, 1536, None)
    assert kind["rotary"] == "64 of 64 columns, interleaved"
    # Keys and values of 30 layers, 3 heads of 64.
    assert [group["elements"] for group in sizes["groups"]] == [2 * 30 * 3 * 64]
    text = found["text"]
    assert (text["kind"], text["vocabulary"], text["template"]) == ("gpt2, smollm", 49152, "usable")
    assert text["ends"]["2"] == "<|im_end|>"


def test_what_would_run_where(smollm2_path: Path, inspect: Inspect) -> None:
    backends = {facts["backend"]: facts for facts in json.loads(inspect("--json", smollm2_path)[1])["backends"]}
    assert backends.keys() == {"cpu", "ptx", "rocm"}
    cpu, ptx = backends["cpu"], backends["ptx"]
    assert cpu["devices"]
    assert (cpu["kv_token"], ptx["kv_token"]) == (4 * 11520, 2 * 11520)
    held = {place["encoding"]: place for place in cpu["placements"]}
    if not isinstance(load_library(), str):
        assert (held["Q4_1"]["held"], held["Q4_1"]["reason"]) == ("packed", "")
        assert cpu["weights"] < 101e6
    if ptx["refusal"] is None:  # Triton is there
        held = {place["encoding"]: place for place in ptx["placements"]}
        assert held["F32"]["held"] == "as stored"
        assert sum(place["tensors"] for place in ptx["placements"]) == 272
        assert ptx["weights"] == sum(place["nbytes"] for place in ptx["placements"])


def test_the_paper_device_has_the_cpus_kernels() -> None:
    paper, device = _paper_device("cpu"), open_device("cpu")
    assert paper.kernels is device.kernels
    assert paper.activation is device.activation
    with pytest.raises(ImportError):
        _paper_device("other")


def test_the_weights_are_what_a_device_holds(tiny: Callable[..., Path]) -> None:
    path = tiny()
    handle, device = load(path), open_device("cpu")
    shape = StepShape(8, 1, 32, 16, (2, 2), (2, 2))
    graphs = {EntryKey("step", 8): handle.step(shape), EntryKey("head", 1): handle.head(1, shape)}
    prepare(device, compile_graphs(device, graphs), handle.weights)
    (cpu,) = (facts for facts in inspect_model(path).backends if facts.backend == "cpu")
    assert cpu.weights == sum(place.nbytes for place in cpu.placements) == device.account.of("weights")


def test_layers_that_differ_are_told_apart(tiny: Callable[..., Path], inspect: Inspect) -> None:
    code, said, wrong = inspect(tiny(extra=(3,)))
    assert (code, "tokenizer" in wrong) == (1, True)  # no server starts without one
    assert "0: 4 heads of 16, 2 for keys and values, feed-forward 96, sees all" in said
    assert "1: 4 heads of 16, 4 for keys and values, feed-forward 128, sees all" in said
    assert "full: 1 layers, 2 heads of 16, 64 elements a token" in said
    assert "unused        extra.weight" in said
    assert "tokenizer     none: not usable" in said


def test_an_unknown_family_still_says_what_the_file_says(tiny: Callable[..., Path], inspect: Inspect) -> None:
    path = tiny("mamba9")
    code, said, wrong = inspect(path)
    assert code == 1
    assert wrong.startswith(f"poot-models: {path}: architecture 'mamba9' is not supported")
    assert wrong.count("\n") == 1
    for line in ("architecture  mamba9", "F16: 4 tensors", "stated        mamba9.embedding_length = 64"):
        assert line in said
    found = json.loads(inspect("--json", path)[1])
    assert found["refusal"] in wrong
    assert (found["sizes"], found["backends"], found["stated"]["mamba9.block_count"]) == (None, [], 2)


def test_a_safetensors_directory_that_is_refused(tmp_path: Path, inspect: Inspect) -> None:
    from safetensors.numpy import save_file

    save_file({"w": np.ones((2, 3), np.float16)}, tmp_path / "model.safetensors")
    config: dict[str, Any] = {"architectures": ["New"], "hidden_size": 8, "rope_scaling": {"type": "yarn"}, "a": [1]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, said, wrong = inspect(tmp_path)
    assert code == 1
    assert "'New' is not supported" in wrong
    assert "stated        hidden_size = 8" in said
    assert "F16: 1 tensors" in said


def test_a_tokenizer_that_cannot_be_used_is_a_refusal(tiny: Callable[..., Path], inspect: Inspect) -> None:
    path = tiny()
    code, said, wrong = inspect("--json", path)
    found = json.loads(said)
    assert (code, found["refusal"]) == (1, found["text"]["problem"])
    assert wrong == f"poot-models: {found['refusal']}\n"
    # What its family makes of it is there all the same.
    assert (found["family"], found["sizes"]["hidden"], found["stated"]) == ("llama", 64, {})


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_what_a_terminal_cannot_show_is_escaped(tmp_path: Path, encoding: str) -> None:
    from safetensors.numpy import save_file

    save_file({"w": np.ones((2, 3), np.float16)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["\u65b0"], "a": "\u2581"}))
    command = [sys.executable, "-c", "from poot_models import cli; raise SystemExit(cli.main())", "inspect", tmp_path]
    environment = os.environ | {"PYTHONUTF8": "0", "PYTHONIOENCODING": encoding}
    run = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert (run.returncode, "Traceback" in run.stderr) == (1, False)
    assert "architecture  \\u65b0" in run.stdout
    assert "a = \\u2581" in run.stdout


def test_an_empty_path_is_not_the_current_directory(inspect: Inspect) -> None:
    code, said, wrong = inspect("")
    assert (code, said) == (1, "")
    assert wrong.startswith("poot-models: the model's path is empty")


def test_a_file_that_does_not_open(tmp_path: Path, inspect: Inspect) -> None:
    (tmp_path / "x.gguf").write_bytes(b"x")
    for arguments in ((tmp_path / "x.gguf",), ("--json", tmp_path / "x.gguf")):
        code, said, wrong = inspect(*arguments)
        assert (code, said) == (1, "")
        assert wrong.startswith("poot-models: ") and "no GGUF file" in wrong


def test_a_hub_id(smollm2_path: Path, inspect: Inspect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poot_models.hub.local_model", {"org/m:Q4_1": smollm2_path}.__getitem__)
    code, said, _ = inspect("org/m:Q4_1")
    assert code == 0
    assert str(smollm2_path) in said


def test_lines_are_short_where_much_is_unused(tiny: Callable[..., Path]) -> None:
    report = inspect_model(tiny(**{f"extra{index}": (2,) for index in range(30)}))
    said = lines(report)
    assert sum(line.startswith("unused") for line in said) == 21
    assert "unused        and 10 more" in said


def test_refusals_and_help_import_no_torch(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"x")
    code = (
        "import sys; from poot_models import cli\n"
        "assert cli.main(['inspect', sys.argv[1]]) == 1\n"
        "assert not {'torch', 'huggingface_hub'} & sys.modules.keys()"
    )
    run = subprocess.run([sys.executable, "-c", code, tmp_path / "x.gguf"], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"poot-models {__version__}\n"
