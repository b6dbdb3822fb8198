"""Weights to device memory: pieces, decoding on the way, threads and what they do about errors. No GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable

import gguf
import numpy as np
import pytest
import torch

from poot_executor.backends.triton import weights
from poot_executor.backends.triton.device import TritonDevice
from poot_executor.backends.triton.upload import Uploader
from poot_executor.backends.triton.weights import Piece, pieces, room
from poot_executor.encodings import Dense, Ggml, WeightSource
from poot_executor.ir import DType
from poot_executor.kernels import WeightForm

GENERATOR = np.random.default_rng(5)


def bf16(rows: int, columns: int) -> tuple[WeightSource, torch.Tensor]:
    values = torch.from_numpy(GENERATOR.standard_normal((rows, columns), np.float32)).bfloat16()
    data = values.view(torch.uint8).reshape(-1).numpy()
    return WeightSource("w", (rows, columns), Dense("BF16"), data), values


def packed(rows: int, columns: int, name: str) -> tuple[WeightSource, torch.Tensor]:
    """With ggml's own Python package as the definition."""
    kind = gguf.GGMLQuantizationType[name]
    data = gguf.quantize(GENERATOR.standard_normal((rows, columns), np.float32), kind)
    values = torch.from_numpy(gguf.dequantize(data, kind))
    return WeightSource("w", (rows, columns), Ggml(name), data.reshape(-1).view(np.uint8)), values.bfloat16()


class HostLane:
    """Copies at once; writes down how much each piece had, and fails at those of `fails`."""

    def __init__(self, log: list[int], fails: Callable[[Piece], bool] = lambda piece: False) -> None:
        self.log, self.fails = log, fails
        self.waits = 0

    def carry(self, piece: Piece) -> None:
        if self.fails(piece):
            raise RuntimeError("the bus is gone")
        self.log.append(piece.data.size)
        piece.deliver(torch.from_numpy(piece.data.copy()))

    def wait(self) -> None:
        self.waits += 1


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PIECE_BYTES", 1000)
    monkeypatch.setattr(weights, "_PIECE_ELEMENTS", 500)


@pytest.mark.usefixtures("small_pieces")
def test_weights_lie_behind_each_other_whatever_their_encoding() -> None:
    given = [bf16(7, 96), packed(5, 96, "Q8_0"), packed(3, 96, "Q4_0"), bf16(1, 96)]
    sources = [source for source, _ in given]
    form = WeightForm("dense", tuple("abcd"), 2 * 16 * 96)
    log: list[int] = []
    uploader = Uploader(lambda: HostLane(log), 3)
    held = room(form, sources, torch.bfloat16, "cpu")
    uploader.put(pieces(held, sources))
    uploader.finish()
    assert torch.equal(held, torch.cat([values for _, values in given]))
    assert max(log) <= 1000
    assert sum(log) == sum(source.data.size for source in sources)
    assert len(log) == 2 + 1 + 1 + 1


@pytest.mark.usefixtures("small_pieces")
def test_the_device_without_a_gpu_holds_the_same() -> None:
    source, values = bf16(20, 96)
    device = TritonDevice("cpu", "host", DType.BF16)
    assert torch.equal(device.hold(WeightForm("dense", ("w",), 2 * 20 * 96), [source]), values)
    vector = WeightSource("v", (20,), Dense("BF16"), source.data[:40])
    held = device.hold(WeightForm("vector", ("v",), 4 * 20), [vector])
    assert (held.dtype, held.tolist()) == (torch.float32, values.reshape(-1)[:20].float().tolist())
    assert device.account.of("weights") == 2 * 20 * 96 + 4 * 20


@pytest.mark.usefixtures("small_pieces")
def test_the_first_error_is_raised_and_nothing_waits_for_ever() -> None:
    source, _ = bf16(50, 96)
    log: list[int] = []
    held = room(WeightForm("dense", ("w",), 0), [source], torch.bfloat16, "cpu")
    uploader = Uploader(lambda: HostLane(log, lambda piece: len(log) >= 2), 2)
    uploader.put(pieces(held, [source]))
    with pytest.raises(RuntimeError, match="the bus is gone"):
        uploader.finish()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("upload")]
    uploader.finish()  # what failed is not reported twice


@pytest.mark.usefixtures("small_pieces")
def test_an_uploader_waits_for_every_lane_and_can_begin_again() -> None:
    made: list[HostLane] = []
    log: list[int] = []

    def lane() -> HostLane:
        made.append(HostLane(log))
        return made[-1]

    uploader = Uploader(lane, 2)
    uploader.finish()
    assert made == []
    for _ in range(2):
        source, values = bf16(30, 96)
        held = room(WeightForm("dense", ("w",), 0), [source], torch.bfloat16, "cpu")
        uploader.put(pieces(held, [source]))
        uploader.finish()
        assert torch.equal(held, values)
    assert [lane.waits for lane in made] == [1] * 8
