"""Errors of poot-models.

ModelError                          "model_error"
├── CheckpointError                 "checkpoint"                a checkpoint that cannot be used
│   ├── CheckpointMissingError      "checkpoint_missing"        a path, file or shard that is not there
│   ├── CheckpointFormatError       "checkpoint_format"         bytes that break the format they claim to be
│   ├── UnsupportedEncodingError    "unsupported_encoding"      a weight encoding that no decoder reads
│   ├── UnsupportedArchitectureError "unsupported_architecture" a model family that is not there
│   ├── TensorMissingError          "tensor_missing"            a weight that the family needs
│   └── HubError                    "hub"                       a model hub's repository that cannot be had
│       ├── HubUnavailableError     "hub_unavailable"           no package for it, no network, a fault of the hub
│       ├── HubAccessError          "hub_access"                the hub lets this user not read it
│       ├── HubMissingError         "hub_missing"               no such repository or revision
│       └── HubChoiceError          "hub_choice"                which of its files to take: none fits, or several do
└── TextError                       "text"
    ├── TokenizerError              "tokenizer"                 a vocabulary that cannot be used
    ├── TemplateError               "template"                  a chat template that does not compile
    │   └── TemplateRenderError     "template_render"           one that fails on this conversation (the client's 400)
    └── TextRefusal                 "text_refusal"              the client's branch: the request is at fault
        ├── InvalidTextError        "invalid_text"              text that is not Unicode (a lone surrogate)
        └── TemplateRefusal         "template_refusal"          a conversation that the template itself refuses
"""

from __future__ import annotations

from typing import ClassVar


class ModelError(Exception):
    """Root of the errors of this package; `code` is stable across releases."""

    code: ClassVar[str] = "model_error"


class CheckpointError(ModelError):
    code = "checkpoint"


class CheckpointMissingError(CheckpointError):
    code = "checkpoint_missing"


class CheckpointFormatError(CheckpointError):
    code = "checkpoint_format"


class UnsupportedEncodingError(CheckpointError):
    code = "unsupported_encoding"


class UnsupportedArchitectureError(CheckpointError):
    code = "unsupported_architecture"


class TensorMissingError(CheckpointError):
    code = "tensor_missing"


class HubError(CheckpointError):
    code = "hub"


class HubUnavailableError(HubError):
    code = "hub_unavailable"


class HubAccessError(HubError):
    code = "hub_access"


class HubMissingError(HubError):
    code = "hub_missing"


class HubChoiceError(HubError):
    code = "hub_choice"


class TextError(ModelError):
    code = "text"


class TokenizerError(TextError):
    code = "tokenizer"


class TemplateError(TextError):
    code = "template"


class TemplateRenderError(TemplateError):
    code = "template_render"


class TextRefusal(TextError):
    code = "text_refusal"


class InvalidTextError(TextRefusal):
    code = "invalid_text"


class TemplateRefusal(TextRefusal):
    code = "template_refusal"
