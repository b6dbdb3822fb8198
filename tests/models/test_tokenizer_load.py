"""The text side of a whole checkpoint."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from poot_models.errors import TokenizerError
from poot_models.text import Tokenizer, load_text, open_text

CHAT = [{"role": "user", "content": "Hi"}]


@dataclass(frozen=True)
class Source:
    format: str
    path: Path
    metadata: Mapping[str, Any] = field(default_factory=dict)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Library(models.BPE({char: id for id, char in enumerate(alphabet)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<bos>", "<eos>", "<img>"])
    library.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def configured(folder: Path, **config: Any) -> Source:
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>", "eos_token": "<eos>"} | config))
    return Source("safetensors", folder)


def test_smollm2(smollm2_path: Path) -> None:
    text = open_text(smollm2_path)
    assert text.template_problem is None
    assert text.chat_template is not None
    assert text.special_tokens == {
        **{"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
        **{"unk_token": "<|endoftext|>", "pad_token": "<|im_end|>"},
    }
    prompt = text.chat_template.render([{"role": "user", "content": text.tokenizer.guard("say <|im_end|>")}])
    ids = text.tokenizer.encode(prompt, parse_special=True)
    assert [text.tokenizer.token_text(id) for id in ids if id in text.tokenizer.eog_ids] == ["<|im_end|>"] * 2
    assert text.tokenizer.decode(ids).endswith("user\nsay <|im_end|>\nassistant\n")


@pytest.mark.parametrize("model", ["smollm2_path", "gemma_path"])
def test_a_decoder_decodes_alike(
    model: str, request: pytest.FixtureRequest, check_decoder: Callable[[Tokenizer, Tokenizer], None]
) -> None:
    path = request.getfixturevalue(model)
    whole, decoder = open_text(path), open_text(path, encodes=False)
    check_decoder(whole.tokenizer, decoder.tokenizer)
    assert decoder.special_tokens == whole.special_tokens
    assert decoder.chat_template is None
    assert "was not read" in str(decoder.template_problem)


def test_a_template_in_tokenizer_config(folder: Path) -> None:
    source = configured(
        folder,
        chat_template="{{ bos_token }}{{ messages[0].content }}{{ image_token }}",
        extra_special_tokens={"image_token": "<img>"},
    )
    text = load_text(source)
    assert text.chat_template is not None
    prompt = text.chat_template.render(CHAT)
    assert prompt == "<bos>Hi<img>"
    assert text.tokenizer.encode(prompt, parse_special=True) == [256, *text.tokenizer.encode("Hi"), 258]


def test_named_templates(folder: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}, {"name": 3}, "x"]
    template = load_text(configured(folder, chat_template=named)).chat_template
    assert template is not None
    assert template.render(CHAT) == "plain"
    assert template.render(CHAT, tools=[{"type": "function"}]) == "tools"
    text = load_text(configured(folder, chat_template=[{"name": "rag", "template": "x"}]))
    assert text.chat_template is None
    assert "named rag, but none named default" in str(text.template_problem)


def test_a_template_file_goes_before(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("from the file")
    template = load_text(configured(folder, chat_template="from the config")).chat_template
    assert template is not None
    assert template.render(CHAT) == "from the file"


def test_templates_in_files_of_their_own(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("plain")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    template = load_text(configured(folder, chat_template="from the config")).chat_template
    assert template is not None
    assert (template.render(CHAT), template.render(CHAT, tools=[{}])) == ("plain", "tools")


def test_the_template_of_an_older_processor(folder: Path) -> None:
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "from the processor"}))
    template = load_text(configured(folder)).chat_template
    assert template is not None
    assert template.render(CHAT) == "from the processor"
    template = load_text(configured(folder, chat_template="from the config")).chat_template
    assert template is not None
    assert template.render(CHAT) == "from the config"


def test_a_template_that_cannot_be_read_leaves_a_tokenizer(folder: Path) -> None:
    (folder / "chat_template.json").write_text("{")
    text = load_text(configured(folder))
    assert text.chat_template is None
    assert "chat_template.json is not JSON" in str(text.template_problem)
    assert text.tokenizer.encode("a") != []


def test_a_template_that_does_not_compile_leaves_a_tokenizer(folder: Path) -> None:
    text = load_text(configured(folder, chat_template="{% if %}"))
    assert text.chat_template is None
    assert "does not compile" in str(text.template_problem)
    assert text.tokenizer.decode(text.tokenizer.encode("ok")) == "ok"


def test_a_template_file_that_is_too_large(folder: Path) -> None:
    with (folder / "chat_template.jinja").open("wb") as file:
        file.truncate(1 << 30)
    assert "characters; the most is" in str(load_text(configured(folder)).template_problem)


def test_unknown_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="'onnx'"):
        load_text(Source("onnx", tmp_path))


def test_gguf_named_templates() -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b"],
        "tokenizer.ggml.merges": [],
        "tokenizer.chat_template": "{{ bos_token is defined }}",
        "tokenizer.chat_template.tool_use": "tools",
    }
    template = load_text(Source("gguf", Path("x.gguf"), metadata)).chat_template
    assert template is not None
    assert (template.render(CHAT), template.render(CHAT, tools=[{}])) == ("False", "tools")


def test_text_needs_no_torch(smollm2_path: Path) -> None:
    code = (
        "import sys; from poot_models.text import open_text; before = set(sys.modules)\n"
        "open_text(sys.argv[1]); heavy = {'torch', 'transformers', 'triton', 'granian'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert 'jinja2' not in before\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(smollm2_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
