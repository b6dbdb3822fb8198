"""A report as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from poot_models.inspection.report import BackendFacts, LayerKind, Report, Sizes

_MOST_UNUSED = 20
_WIDTH = 14


def lines(report: Report) -> list[str]:
    """What `poot-models inspect` prints."""
    return [f"{name:<{_WIDTH}}{value}".rstrip() for name, value in _pairs(report)]


def _pairs(report: Report) -> Iterator[tuple[str, str]]:
    yield "model", f"{report.model} ({report.format})"
    family = f" (family {report.family})" if report.family else ""
    yield "architecture", f"{report.architecture or 'not stated'}{family}"
    yield "parameters", f"{report.parameters / 1e6:,.1f} million in {_mb(report.nbytes)}"
    for use in report.encodings:
        yield "encoding", f"{use.encoding}: {use.tensors} tensors, {_mb(use.nbytes)}"
    for key, value in report.stated.items():
        yield "stated", f"{key} = {value}"
    if report.sizes is not None:
        yield from _sizes(report.sizes)
    yield from _text(report)
    for facts in report.backends:
        yield from _backend(facts)


def _sizes(sizes: Sizes) -> Iterator[tuple[str, str]]:
    yield (
        "vocabulary",
        f"{sizes.vocabulary}, {'the head is the embedding table' if sizes.tied else 'a head of its own'}",
    )
    yield "positions", f"{sizes.positions}, rotary scaling: {sizes.rotary}"
    yield "layers", f"{sum(len(kind.layers) for kind in sizes.layers)}, hidden {sizes.hidden}"
    for kind in sizes.layers:
        yield "", f"{_ranges(kind.layers)}: {_layer(kind)}"
    for group in sizes.groups:
        yield (
            "KV group",
            f"{group.name}: {group.layers} layers, {group.kv_heads} heads of {group.head_dim}, "
            f"{group.elements} elements a token",
        )
    for name in sizes.unused[:_MOST_UNUSED]:
        yield "unused", name
    if len(sizes.unused) > _MOST_UNUSED:
        yield "unused", f"and {len(sizes.unused) - _MOST_UNUSED} more"


def _layer(kind: LayerKind) -> str:
    heads = f"{kind.heads} heads of {kind.head_dim}, {kind.kv_heads} for keys and values"
    parts = [heads if kind.kv_heads else "no attention", f"feed-forward {kind.ff}" if kind.ff else "no feed-forward"]
    if kind.kv_heads:
        parts += [f"window {kind.window}" if kind.window else "sees all", f"rotary {kind.rotary}"]
    return ", ".join(parts)


def _text(report: Report) -> Iterator[tuple[str, str]]:
    text = report.text
    if text.problem is not None:
        yield "tokenizer", f"{text.kind}: not usable: {text.problem}"
        return
    ends = ", ".join(f"{name!r} ({token})" for token, name in text.ends.items())
    yield "tokenizer", f"{text.kind}: {text.vocabulary} tokens, ends of text: {ends or 'none'}"
    template = text.template if text.template in ("usable", "none") else f"not usable: {text.template}"
    yield "chat template", template


def _backend(facts: BackendFacts) -> Iterator[tuple[str, str]]:
    here = f"here: {'; '.join(facts.devices)}" if facts.closed is None else f"not here: {facts.closed}"
    if facts.refusal is not None:
        yield f"on {facts.backend}", f"cannot run: {facts.refusal} ({here})"
        return
    yield (
        f"on {facts.backend}",
        f"weights {_mb(facts.weights)}, KV {facts.kv_token} bytes a token ({facts.activation}); {here}",
    )
    for place in facts.placements:
        reason = f": {place.reason}" if place.reason else ""
        yield "", f"{place.encoding}: {place.tensors} tensors {place.held}, {_mb(place.nbytes)}{reason}"


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"


def _ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 -> "0-2, 5"; cut where it is long."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    said = ["-".join(map(str, part)) for part in parts]
    return ", ".join(said[:4]) + (", ..." if len(said) > 4 else "")
