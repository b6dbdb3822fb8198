"""POST /v1/completions."""

from __future__ import annotations

from poot_serve.emit.completions import CompletionAnswer
from poot_serve.lower.completions import lower_completion
from poot_serve.lower.generation import Lowered
from poot_serve.lower.unbuilt import COMPLETION
from poot_serve.protocol.completions import CompletionRequest
from poot_serve.routes.generation import Api
from poot_serve.service import Service


def _lower(wire: CompletionRequest, service: Service) -> Lowered:
    return lower_completion(wire, tokenizer=service.text.tokenizer, info=service.engine.info)


COMPLETION_API = Api(
    kind=CompletionRequest, unbuilt=COMPLETION, id_prefix="cmpl-", lower=_lower, answer=CompletionAnswer
)
