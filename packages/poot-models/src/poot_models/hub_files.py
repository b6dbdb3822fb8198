"""Which files of a model hub's repository are a model's, by their names alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from poot_models.errors import HubChoiceError

_PART = re.compile(r"-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})$")
# What people end the names of quantised files with; "UD-" is a maker's mark for a mixture.
_QUANTISATION = re.compile(
    r"(?:^|[-._])(?P<name>(?:UD-)?(?:I?Q[0-9]|BF16|FP?16|FP?32|MXFP[0-9]|NVFP[0-9]|TQ[0-9])(?:_[A-Z0-9]+)*)$",
    re.IGNORECASE,
)
# Parts of other things: image encoders, statistics of a calibration.
_NOT_A_MODEL = re.compile(r"mmproj|imatrix", re.IGNORECASE)
_TEXT = (
    *("config.json", "generation_config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"),
    "chat_template.json",
)
_TEMPLATE_FOLDERS = (PurePosixPath(), PurePosixPath("additional_chat_templates"))
_LISTED = 24
_MOST_PARTS = 1024


def beside_weights(file: str) -> bool:
    """Whether a safetensors directory needs it beside its weights: configuration, tokenizer, templates."""
    path = PurePosixPath(file)
    return file in _TEXT or (path.suffix == ".jinja" and path.parent in _TEMPLATE_FOLDERS)


def is_pickle(file: str) -> bool:
    return file.endswith((".bin", ".pt", ".pth", ".ckpt"))


def choose_gguf(model: str, files: Sequence[str], quantisation: str | None) -> list[str]:
    """The file, or all parts of the split one, whose quantisation is asked for; the only one if none is.

    `model` is for messages. HubChoiceError: none or several fit (it lists what there is), or parts are missing.
    """
    found = _models(files)
    if quantisation is None:
        fitting = list(found)
    else:
        wanted = quantisation.lower()
        # The whole name of a file goes before what it ends with.
        fitting = [name for name in found if PurePosixPath(name).name.lower() == wanted.removesuffix(".gguf")]
        fitting = fitting or [name for name in found if _label(name).lower() == wanted]
        fitting = fitting or [name for name in found if _label(name).lower() == f"ud-{wanted}"]
    if not found:
        raise HubChoiceError(f"{model} has no GGUF file of a language model")
    if len(fitting) != 1:
        what = "several GGUF files" if fitting or quantisation is None else f"no GGUF file of {quantisation}"
        raise HubChoiceError(f"{model} has {what}; name one after a colon: {_offered(fitting or list(found))}")
    parts = found[fitting[0]]
    if None in parts:
        raise HubChoiceError(
            f"{model}: the repository lacks part {parts.index(None) + 1} of the {len(parts)} of {fitting[0]}"
        )
    return [part for part in parts if part is not None]


def _models(files: Sequence[str]) -> dict[str, list[str | None]]:
    """Each GGUF model's path without its ending -> its parts in order, None for one that is not there."""
    found: dict[str, list[str | None]] = {}
    for file in sorted(files):
        path = PurePosixPath(file)
        if path.suffix != ".gguf" or ".." in path.parts or path.is_absolute() or _NOT_A_MODEL.search(path.name):
            continue
        part = _PART.search(path.stem)
        if part is None:
            found[file.removesuffix(".gguf")] = [file]
            continue
        number, count = int(part["number"]), int(part["count"])
        if 1 <= number <= count <= _MOST_PARTS:
            name = file.removesuffix(part[0] + ".gguf")
            parts = found.setdefault(name, [None] * count)
            if len(parts) == count:
                parts[number - 1] = file
    return found


def _offered(names: Sequence[str]) -> str:
    labels = {_label(name) for name in names}
    # Whole names where one quantisation is there more than once.
    shown = sorted(labels if len(labels) == len(names) else {PurePosixPath(name).name for name in names})
    more = f" and {len(shown) - _LISTED} more" if len(shown) > _LISTED else ""
    return ", ".join(shown[:_LISTED]) + more


def _label(name: str) -> str:
    """The quantisation that a model's path ends with; its last name where none is known."""
    last = PurePosixPath(name).name
    known = _QUANTISATION.search(last)
    return known["name"] if known else last
