"""A GGUF file with its matrices in another encoding, by the gguf package: more encodings to test on a real model.

python benchmarks/reencode.py MODEL.gguf Q8_0 OUT.gguf
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import gguf

# What the gguf package can encode.
ENCODINGS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def reencode(source: Path, encoding: str, target: Path) -> None:
    """Write `target`: all of `source`, its quantised matrices in `encoding`."""
    kind = gguf.GGMLQuantizationType[encoding]
    reader = gguf.GGUFReader(source)
    architecture = reader.get_field(gguf.Keys.General.ARCHITECTURE)
    assert architecture is not None
    writer = gguf.GGUFWriter(target, architecture.contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == gguf.Keys.General.ARCHITECTURE:
            continue
        part = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], part)
    for tensor in reader.tensors:
        data = tensor.data
        if tensor.tensor_type.name in {"F32", "F16", "BF16"}:
            writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
        else:
            writer.add_tensor(
                tensor.name, gguf.quantize(gguf.dequantize(data, tensor.tensor_type), kind), raw_dtype=kind
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("encoding", choices=ENCODINGS)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    reencode(arguments.source, arguments.encoding, arguments.target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
