"""POST /v1/chat/completions."""

from __future__ import annotations

from poot_serve.emit.chat import ChatAnswer
from poot_serve.lower.chat import lower_chat
from poot_serve.lower.generation import Lowered
from poot_serve.lower.unbuilt import CHAT
from poot_serve.protocol.chat import ChatRequest
from poot_serve.routes.generation import Api
from poot_serve.service import Service


def _lower(wire: ChatRequest, service: Service) -> Lowered:
    return lower_chat(wire, text=service.text, info=service.engine.info)


CHAT_API = Api(kind=ChatRequest, unbuilt=CHAT, id_prefix="chatcmpl-", lower=_lower, answer=ChatAnswer, renders=True)
