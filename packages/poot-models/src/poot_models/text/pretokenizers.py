"""Pre-tokenizers of BPE vocabularies, by their GGUF name.

A GGUF file names its pre-tokenizer in ``tokenizer.ggml.pre``. The patterns are those of the models' own
``tokenizer.json`` files, as llama.cpp states them (``llm_tokenizer_bpe``; the model that a name comes from stands in
its ``convert_hf_to_gguf_update.py``), and the grouping of names is llama.cpp's (``llama_vocab::impl::load``). A name
that is not here is refused: a wrong pattern gives plausible, wrong token ids. Of llama.cpp's names only ``whitespace``
is not here: its encoder drops what it does not know.

A pattern looks at each character a bounded number of times, whatever the text: the server runs it on text of clients.
"""

from __future__ import annotations

from dataclasses import dataclass

from poot_models.errors import TokenizerError

__all__ = ["KNOWN", "Pretokenizer", "pretokenizer"]

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_QWEN35 = (
    _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}" + _CASED_TAIL
_CASED = rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTION}?|"
_GPT4O = _CASED + r"\p{N}{1,3}" + _CASED_TAIL
# Kimi K2 (tokenization_kimi.py): Chinese characters are runs of their own, and no part of a word.
_NOT_HAN_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_NOT_HAN_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI_K2 = (
    rf"\p{{Han}}+|{_LEAD}{_NOT_HAN_UPPER}*{_NOT_HAN_LOWER}+{_CONTRACTION}?"
    rf"|{_LEAD}{_NOT_HAN_UPPER}+{_NOT_HAN_LOWER}*{_CONTRACTION}?|\p{{N}}{{1,3}}" + _TAIL
)
# Digits in threes from the right, where they end a word (Tiny Aya). The model's own pattern,
# \d{1,3}(?=(?:\d{3})*\b), looks at the rest of the digits again for every three of them; these two look once: the first
# isolates the digits, the second cuts off the one or two that are over, and the pattern after them counts threes.
_TINY_AYA = (r"(?<!\d)\d++\b", r"\A\d{1,2}(?=(?:\d{3})*+\z)", _GPT4O)
_YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    _CASED + r"\p{N}" + _CASED_TAIL,
)
# The lookbehind is not in the model's own pattern. After white space that is no newline, none can follow in that run:
# it would have been in the piece before. Looking for one would read the rest of the run for each of its pieces.
_JAIS2 = (
    _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|(?<![^\S\r\n])\s*[\r\n]+"
    r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)"
    r"|\s{1,2}(?!\S)|\s{1}"
)
_MINICPM5 = (r"\p{N}{1,3}", _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+" + _TAIL)
# Ling writes its quantifiers possessive, which changes no match here.
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_EXAONE_MOE = (
    _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_UFAKZEKA = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_SEED_CODER = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
# Cased letters of Unicode 11 or so, as DeepSeek's file lists them; escaped, for an editor that normalises text would
# change some of them.
_DEEPSEEK_LETTERS = (
    "["
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
    "]"
)
_DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LLM = (
    "[\r\n]",
    r"\s?" + _DEEPSEEK_LETTERS + "+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    # \s+$ in the model's own pattern, which would read the rest of a run of spaces again for each of them.
    r"(?<!\s)\s++\z",
    _DEEPSEEK_CJK,
    r"\p{N}+",
)
_DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")
_MARK_AND_WORD = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)
_MARKED = _MARK_AND_WORD + r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CHINESE_JAPANESE = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_V3 = (r"\p{N}{1,3}", _CHINESE_JAPANESE, _MARKED)
_SPARK = (r"\p{N}{1,3}", _CHINESE_JAPANESE, _MARK_AND_WORD + r"|[\r\n]|\s+(?!\S)|\s+", r"\p{N}")
# Trinity: digits in threes from the right, each run of them counted once.
_AFMOE = (
    r"\p{N}+",
    r"\A\p{N}{1,2}(?=(?:\p{N}{3})*+\z)",
    r"\p{N}{3}",
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
    _MARKED,
)
# Its lookahead reads the rest of the digits at each of them, so a run is cut at 300.
_SUPERBPE = (r"\p{N}{1,300}", r"(?=(?:\d{3})+(?!\d))")
_CHAMELEON = (
    "<sentinel:[0-9]+>",
    "IMGIMG[A-I]{1,4}Z",
    "[\t\n]|    |  ",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)
_LINES = (r"[^\n]+|\n+",)
# llama.cpp's own fallback, also for files that name none.
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True)
class Pretokenizer:
    """How text is cut before BPE merges run inside each piece.

    ``patterns`` apply in turn, each inside the pieces left by the one before; what a pattern does not match stays a
    piece. ``ignore_merges``: a piece that is itself a token is that token. ``add_bos``: the default of
    ``tokenizer.ggml.add_bos_token``. ``byte_level``: tokens are written in GPT-2's byte alphabet; otherwise as
    SentencePiece does, with a visible space and byte tokens like ``<0x41>``. ``whole_lines``: a run of newlines that is
    a token is that token.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    byte_level: bool = True
    whole_lines: bool = False


_GROUPS: tuple[tuple[Pretokenizer, tuple[str, ...]], ...] = (
    (Pretokenizer(_DEFAULT), ("", "default")),
    (
        Pretokenizer((_GPT2,)),
        (
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
            "modern-bert",
            "roberta-bpe",
        ),
    ),
    (
        Pretokenizer((r"\p{N}", _GPT2)),
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
    ),
    (
        Pretokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
    ),
    (Pretokenizer((_LLAMA3,)), ("dbrx", "chatglm-bpe")),
    # "smaug-bpe" is what a converter calls Llama 3's vocabulary where no BOS is added (SmolLM3). llama.cpp only merges
    # it, and so never makes several hundred tokens that such a model was trained on.
    (Pretokenizer((_LLAMA3,), ignore_merges=True), ("smaug-bpe", "glm4", "glm5")),
    (
        Pretokenizer((_QWEN2,)),
        ("qwen2", "deepseek-r1-qwen", "f2llmv2", "kormo", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"),
    ),
    (Pretokenizer((_QWEN35,)), ("qwen35",)),
    (Pretokenizer(_DEEPSEEK_LLM), ("deepseek-llm",)),
    (Pretokenizer(_DEEPSEEK_CODER), ("deepseek-coder",)),
    (Pretokenizer(_DEEPSEEK_V3), ("deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm")),
    (Pretokenizer(_SPARK), ("spark2_5",)),
    (Pretokenizer((_TEKKEN,), ignore_merges=True, add_bos=True), ("tekken",)),
    (Pretokenizer((_GPT4O,)), ("gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie")),
    (Pretokenizer((_GPT4O,), ignore_merges=True), ("granite-embed-multi-97m",)),
    (Pretokenizer((_KIMI_K2,)), ("kimi-k2",)),
    (Pretokenizer(_TINY_AYA), ("tiny_aya", "cohere2moe")),
    (Pretokenizer(_YOUTU, ignore_merges=True), ("youtu",)),
    (Pretokenizer((_JAIS2,)), ("jais-2",)),
    (Pretokenizer(_MINICPM5, ignore_merges=True), ("minicpm5",)),
    (Pretokenizer((_BAILING,)), ("bailingmoe", "bailingmoe2", "llada-moe")),
    (Pretokenizer((_EXAONE_MOE,)), ("exaone-moe",)),
    (Pretokenizer((_UFAKZEKA,)), ("ufakzeka",)),
    (Pretokenizer((r"[^\n]+|[\n]+", _QWEN2)), ("laguna",)),
    (Pretokenizer((_BLOOM,)), ("bloom", "gpt3-finnish", "poro-chat")),
    (Pretokenizer((_BLOOM, r"\p{N}")), ("viking",)),
    (Pretokenizer((_SEED_CODER,)), ("seed-coder",)),
    (Pretokenizer(_FALCON), ("falcon",)),
    (Pretokenizer(_AFMOE), ("afmoe",)),
    (Pretokenizer(_SUPERBPE), ("superbpe",)),
    (Pretokenizer(_CHAMELEON, add_bos=True), ("chameleon",)),
    (
        Pretokenizer(_LINES, add_bos=True, byte_level=False, whole_lines=True),
        ("gemma4", "granite-embed-multi-311m"),
    ),
    (Pretokenizer(_LINES, byte_level=False), ("sarvam-moe",)),
)

KNOWN: tuple[str, ...] = tuple(sorted(name for _, names in _GROUPS for name in names))


def pretokenizer(name: str) -> Pretokenizer:
    """The pre-tokenizer that ``tokenizer.ggml.pre`` names ("" when the file names none).

    Raises ``TokenizerError`` for a name that poot does not know.
    """
    for found, names in _GROUPS:
        if name in names:
            return found
    known = ", ".join(filter(None, KNOWN))
    raise TokenizerError(
        f"tokenizer.ggml.pre names the pre-tokenizer {name[:64]!r}, which poot does not know (it knows: {known}); "
        "use the safetensors form of the model, whose tokenizer.json describes its pre-tokenizer itself"
    )
