"""Models of given shapes with random weights, engines over them, and rows brought to decoding: no checkpoint needed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from here import require_gpu

from poot_batch.driver import ModelDriver, prepare_model, prompt_step_ms
from poot_batch.engine import Engine
from poot_batch.kv import KvSpace
from poot_batch.request import EngineInfo, GenerateRequest, SamplingParams
from poot_batch.schedule import Sequence as Running
from poot_executor.backends.cuda.device import CudaDevice
from poot_executor.backends.triton.device import TritonDevice
from poot_executor.backends.triton.memory import TorchAllocation
from poot_executor.backends.triton.packed import Segment, packed_room
from poot_executor.encodings import Dense, Encoding, Ggml
from poot_executor.ir.types import DType
from poot_executor.kernels import WeightForm
from poot_executor.memory.account import MemoryClass
from poot_executor.ops import RotarySpec
from poot_models.blocks import DecoderConfig, LayerSpec, kv_groups
from poot_models.families.family import find_family
from poot_models.handle import ModelHandle

WEIGHT_STD = 0.02
LONGEST = 131072
BACKENDS = ("ptx", "interpreter")


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    packed: bool = False  # as a Q4_K_M file, else bfloat16

    def kv_bytes(self, element: int = 2) -> int:
        """Bytes of keys and values of one position in one layer."""
        return 2 * self.kv_heads * self.head_dim * element


SHAPES = {
    "8b": Shape(32, 4096, 14336, 32, 8, 128, 128256, False),
    "135m": Shape(30, 576, 1536, 9, 3, 64, 49152, True),
    "tiny": Shape(2, 256, 512, 4, 2, 64, 1024, False),
}
SHAPES |= {f"{name}-q4km": replace(SHAPES[name], packed=True) for name in ("8b", "tiny")}


@dataclass(frozen=True)
class Absent:
    """A weight by name and shape alone: the device makes it up."""

    name: str
    shape: tuple[int, ...]
    encoding: Encoding


class RandomDevice(Protocol):
    """A device whose weights and KV pools are noise. `matrices` are those it holds, by the names side by side in them;
    `packed` are the bytes of those that are packed.

    Noise and not zeros: what data toggles decides the power a GPU takes, and with it the clocks.
    """

    matrices: dict[tuple[str, ...], torch.Tensor]
    packed: dict[tuple[str, ...], int]


def _noise(device: TritonDevice, form: WeightForm, sources: Sequence[Any]) -> torch.Tensor:
    device.account.add("weights", form.nbytes)
    rows, rest = sum(source.shape[0] for source in sources), sources[0].shape[1:]
    if form.layout == "vector":
        return torch.ones(rows, *rest, device=device.torch_device)
    element = torch.float32 if device.activation is DType.F32 else torch.bfloat16
    made = torch.empty(rows, *rest, dtype=element, device=device.torch_device)
    return made.normal_(std=WEIGHT_STD)


def _filled(device: TritonDevice, kind: MemoryClass, made: TorchAllocation) -> TorchAllocation:
    if kind == "kv":
        made.tensor.view(torch.float32 if device.activation is DType.F32 else torch.bfloat16).normal_()
    return made


def _packed_noise(device: TritonDevice, form: WeightForm, sources: Sequence[Any]) -> tuple[Segment, ...]:
    """Random codes; scales for which weights are about as large as those of `_noise`."""
    device.account.add("weights", form.nbytes)
    segments = packed_room(sources, device.torch_device)
    for segment in segments:
        for plane in segment.planes:
            bits = torch.iinfo(plane.dtype)
            plane.random_(bits.min, bits.max)
        assert segment.unit is not None
        if segment.layout.minimum:
            segment.scale.random_(0, 2**14).bitwise_and_(0x3F3F)
            halves = torch.tensor([1.4e-4, 1e-3], dtype=torch.float16).view(torch.int32)
            segment.unit.fill_(int(halves))
        else:
            segment.scale.random_(-128, 127)
            segment.unit.fill_(1.5e-5)
    return segments


def _hold(device: RandomCuda | RandomInterpreter, form: WeightForm, sources: Sequence[Any]) -> Any:
    if form.layout == "packed":
        device.packed[form.names] = form.nbytes
        return _packed_noise(device, form, sources)
    made = _noise(device, form, sources)
    if made.dim() == 2:
        device.matrices[form.names] = made
    return made


class RandomCuda(CudaDevice):
    """See RandomDevice."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices: dict[tuple[str, ...], torch.Tensor] = {}
        self.packed: dict[tuple[str, ...], int] = {}

    hold = _hold

    def allocate(self, kind: MemoryClass, nbytes: int) -> TorchAllocation:
        return _filled(self, kind, super().allocate(kind, nbytes))


class RandomInterpreter(TritonDevice):
    """See RandomDevice. Kernels run under Triton's interpreter: to find plain mistakes without a GPU."""

    def __init__(self) -> None:
        super().__init__("cpu", "interpreter", DType.F32)
        self.matrices: dict[tuple[str, ...], torch.Tensor] = {}
        self.packed: dict[tuple[str, ...], int] = {}

    hold = _hold

    def allocate(self, kind: MemoryClass, nbytes: int) -> TorchAllocation:
        return _filled(self, kind, super().allocate(kind, nbytes))


def open_random(backend: str = "ptx") -> RandomCuda | RandomInterpreter:
    """A RandomDevice. "interpreter" wants TRITON_INTERPRET=1 in the environment."""
    require_gpu(backend)
    return RandomCuda() if backend == "ptx" else RandomInterpreter()


def weights(shape: Shape) -> Mapping[str, Absent]:
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes: dict[str, tuple[int, ...]] = {"token_embd": (shape.vocabulary, shape.hidden), "output_norm": (shape.hidden,)}
    if not shape.tied:
        sizes["output"] = (shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        sizes |= {
            f"blk.{layer}.attn_norm": (shape.hidden,),
            f"blk.{layer}.attn_q": (q, shape.hidden),
            f"blk.{layer}.attn_k": (kv, shape.hidden),
            f"blk.{layer}.attn_v": (kv, shape.hidden),
            f"blk.{layer}.attn_output": (shape.hidden, q),
            f"blk.{layer}.ffn_norm": (shape.hidden,),
            f"blk.{layer}.ffn_gate": (shape.ff, shape.hidden),
            f"blk.{layer}.ffn_up": (shape.ff, shape.hidden),
            f"blk.{layer}.ffn_down": (shape.hidden, shape.ff),
        }
    made = (Absent(f"{name}.weight", size, _encoding(shape, name, size)) for name, size in sizes.items())
    return {weight.name: weight for weight in made}


def _encoding(shape: Shape, name: str, size: tuple[int, ...]) -> Encoding:
    """What llama.cpp's quantiser takes for Q4_K_M (`llama_tensor_get_type`): Q6_K for the head, and in half of the
    layers for values and the feed-forward network's way back."""
    if not shape.packed or len(size) == 1:
        return Dense("BF16")
    if name == "output":
        return Ggml("Q6_K")
    if name.endswith(("attn_v", "ffn_down")):
        layer, eighth = int(name.split(".")[1]), shape.layers // 8
        if layer < eighth or layer >= 7 * shape.layers // 8 or (layer - eighth) % 3 == 2:
            return Ggml("Q6_K")
    return Ggml("Q4_K")


def handle(name: str) -> ModelHandle:
    shape = SHAPES[name]
    spec = LayerSpec(shape.heads, shape.kv_heads, shape.head_dim, shape.ff, RotarySpec.plain(shape.head_dim, 5e5))
    config = DecoderConfig(
        shape.vocabulary, shape.hidden, LONGEST, 1e-5, (spec,) * shape.layers, "silu", "half",
        shape.head_dim**-0.5, tied=shape.tied,
    )  # fmt: skip
    held: Any = weights(shape)
    return ModelHandle(Path(name), "llama", find_family("llama"), config, held, kv_groups(config), ())


def engine(name: str, device: RandomCuda | RandomInterpreter, rows: int, max_seq: int) -> Engine:
    """An engine over the shape `name`, without a tokenizer and without end tokens."""
    model = handle(name)
    started = time.perf_counter()
    prepared = prepare_model(model, device, rows=rows, max_seq=max_seq, ends=())
    found = prepared.fit
    notes = "".join(f"; {reason}" for reason in found.reasons)
    print(f"{name} prepared in {time.perf_counter() - started:.1f} s, {found.rows} rows of {found.max_seq}{notes}")
    info = EngineInfo(
        model=name, architecture="llama", backend=device.backend, device=device.name, rows=found.rows,
        max_seq=found.max_seq, vocab_size=model.vocab_size, eos_ids=(), kv_block_size=16,
        kv_blocks=sum(found.blocks), weight_bytes=0, kv_bytes=0, workspace_bytes=0, device_total_bytes=0,
        decode_dispatches=0, decode_activation_peak_bytes=0, prefill_dispatches=0, prefill_activation_peak_bytes=0,
    )  # fmt: skip
    kv = KvSpace(prepared.shape.block, found.blocks, prepared.shape.tables)
    driver, most = ModelDriver(prepared), prepared.shape.tokens
    return Engine(driver, kv, info, None, capacity=most, prompt_step_ms=prompt_step_ms(device))


@contextmanager
def _prompts_read(running: Engine) -> Iterator[None]:
    """Prompts admitted meanwhile count as read but for their last tokens."""
    scheduler = running._scheduler
    admit = scheduler.admit

    def admit_read() -> tuple[Running, ...]:
        admitted = admit()
        for sequence in admitted:
            sequence.scheduled = sequence.prompt_length - 1
        return admitted

    scheduler.admit = admit_read  # type: ignore[method-assign]
    try:
        yield
    finally:
        scheduler.admit = admit  # type: ignore[method-assign]


def start(running: Engine, rows: int, context: int, *, read: bool = True, tokens: int | None = None) -> None:
    """Bring `rows` greedy rows, of ids 1 to `rows`, to decoding after `context` tokens; they end after `tokens` more.

    Without `read` the noise in the KV pool stands in for the prompts' keys and values. The device does the same work on
    the steps that follow, and hours of reading are saved.
    """
    generator = torch.Generator().manual_seed(rows)
    greedy = SamplingParams(temperature=0.0)
    for index in range(rows):
        prompt = torch.randint(0, running.info.vocab_size, (context,), generator=generator).tolist()
        running.submit(GenerateRequest(id=index + 1, prompt=tuple(prompt), sampling=greedy, max_tokens=tokens))
    with nullcontext() if read else _prompts_read(running):
        _until_decoding(running, rows)


def _until_decoding(running: Engine, rows: int) -> None:
    waiting = set(range(1, rows + 1))
    while waiting:
        outputs = running.step()
        failed = [output.error_message for output in outputs if output.finish is not None]
        if failed:
            raise RuntimeError(f"a row ended while its prompt was read: {failed[0]}")
        waiting -= {output.request_id for output in outputs}
    for _ in range(4):
        running.step()


def stop(running: Engine, rows: int) -> None:
    for index in range(rows):
        running.cancel(index + 1)
    while running.busy:
        running.step()
