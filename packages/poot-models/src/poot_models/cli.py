"""`poot-models`: look into a checkpoint."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

from poot_models.errors import ModelError


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 1 for a checkpoint that cannot be used."""
    parser = argparse.ArgumentParser(prog="poot-models", description="Look into model checkpoints.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser("inspect", help="architecture, sizes, encodings, tokenizer and template of a model")
    inspect.add_argument("model", help="a GGUF file or a safetensors directory")
    options = parser.parse_args(arguments)
    try:
        for line in _inspect(options.model):
            print(line)
    except ModelError as error:
        print(f"poot-models: {error}", file=sys.stderr)
        return 1
    return 0


def _inspect(path: str) -> list[str]:
    from poot_models import load

    model = load(path)
    config, layer = model.config, model.config.layers[0]
    sizes = Counter[str]()
    parameters = 0
    for source in model.weights.values():
        sizes[str(source.encoding)] += len(source.data)
        count = 1
        for size in source.shape:
            count *= size
        parameters += count
    lines = [
        f"model         {model.path}",
        f"architecture  {model.architecture} (family {model.family.name})",
        f"parameters    {parameters / 1e6:.1f} million",
        f"layers        {len(config.layers)}, hidden {config.hidden}, feed-forward {layer.ff}",
        f"heads         {layer.heads} of {layer.head_dim}, {layer.kv_heads} for keys and values",
        f"vocabulary    {config.vocabulary}",
        f"positions     {config.max_positions}",
        f"KV groups     {', '.join(f'{group.name}: {len(group.layers)} layers' for group in model.groups)}",
    ]
    lines += [f"encoding      {name}: {size / 1e6:.1f} MB" for name, size in sizes.most_common()]
    lines += [f"unused        {name}" for name in model.ignored]
    return [*lines, *_text_lines(path)]


def _text_lines(path: str) -> list[str]:
    from poot_models.text import open_text

    try:
        text = open_text(path)
    except ModelError as error:
        return [f"tokenizer     not usable: {error}"]
    tokenizer = text.tokenizer
    ends = ", ".join(f"{tokenizer.token_text(token)!r} ({token})" for token in sorted(tokenizer.eog_ids))
    template = "usable" if text.chat_template is not None else f"none ({text.template_problem or 'the model has none'})"
    return [f"tokenizer     {tokenizer.vocab_size} tokens, ends of text: {ends}", f"chat template {template}"]
