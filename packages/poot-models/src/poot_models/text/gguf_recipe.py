"""What a kind of GGUF vocabulary is made of, beside its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poot_models.text.encoders import ByteFallback

if TYPE_CHECKING:
    from tokenizers.models import Model
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

__all__ = ["Recipe"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """``model``: makes the library's, from whose text no control token comes; this takes most of the time of a
    tokenizer, and only encoding needs it. It raises ``TokenizerError`` for what does not make one. ``pieces``,
    ``strip_space`` and ``longest`` as in ``Vocabulary``; ``normalizers``, ``pre_tokenizer`` and ``fallback`` as in
    ``build_encoders``.

    ``bos``, ``eos``, ``add_bos`` and ``add_eos`` hold where the file has no key for them; ``always_bos``: a key that
    says no is wrong. ``separator``: the token that ends a text, unless the file says otherwise.
    """

    model: Callable[[], Model]
    pieces: list[bytes]
    longest: int
    strip_space: bool = False
    normalizers: Sequence[Normalizer] = ()
    pre_tokenizer: PreTokenizer | None = None
    fallback: ByteFallback | None = None
    bos: int | None = None
    eos: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    always_bos: bool = False
    separator: int | None = None
