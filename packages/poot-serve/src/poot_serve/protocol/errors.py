"""The one table from exception to wire error, and the wire shape of an error.

Shape of the body: https://platform.openai.com/docs/guides/error-codes. A client's mistake is never a 5xx, which
client libraries would retry.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from poot_batch import errors as engine
from poot_models import errors as models
from poot_serve import errors as serve

INVALID = "invalid_request_error"
SERVER = "server_error"
BUSY = "rate_limit_error"


class WireError(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, frozen=True):
    error: WireError


@dataclass(frozen=True, slots=True)
class Rule:
    """HTTP status, wire type and wire code (None: the class's own `code`) of an exception class and its children."""

    status: int
    type: str
    code: str | None = None


RULES: MappingProxyType[type[Exception], Rule] = MappingProxyType(
    {
        serve.ClientError: Rule(400, INVALID),
        serve.HeadTooLargeError: Rule(431, INVALID),
        serve.WrongHostError: Rule(421, INVALID),
        serve.LengthRequiredError: Rule(411, INVALID),
        serve.MediaTypeError: Rule(415, INVALID),
        serve.BodyTooLargeError: Rule(413, INVALID),
        serve.BodyTimeoutError: Rule(408, INVALID),
        serve.AuthenticationError: Rule(401, INVALID),
        serve.OriginError: Rule(403, INVALID),
        serve.ModelNotFoundError: Rule(404, INVALID),
        serve.RouteNotFoundError: Rule(404, INVALID),
        serve.MethodError: Rule(405, INVALID),
        serve.ClientGoneError: Rule(499, INVALID),
        serve.BusyError: Rule(429, BUSY),
        serve.UnavailableError: Rule(503, SERVER),
        engine.RequestError: Rule(400, INVALID, serve.FieldError.code),
        engine.ContextLengthError: Rule(400, INVALID),
        engine.InvalidTokenError: Rule(400, INVALID),
        engine.EngineDeadError: Rule(503, SERVER),
        engine.EngineDrainingError: Rule(503, SERVER, "draining"),
        engine.EngineFaultError: Rule(500, SERVER),
        models.TextRefusal: Rule(400, INVALID),
        # A template that cannot render this conversation is no reason for a client to try again.
        models.TemplateError: Rule(400, INVALID, "template_error"),
    }
)
FALLBACK = Rule(500, SERVER, "internal_error")
# Errors of the engine process reach this one as a code in the last output, not as an exception.
ENGINE_CLASSES: tuple[type[engine.EngineError], ...] = (
    engine.RequestError,
    engine.ContextLengthError,
    engine.InvalidTokenError,
    engine.EngineFaultError,
    engine.NonFiniteLogitsError,
    engine.EngineDeadError,
    engine.EngineDrainingError,
)


def wire_error(error: Exception) -> tuple[int, WireError]:
    """HTTP status and wire error of `error`. An exception without a rule tells the client nothing of itself."""
    kind: type[Exception] = type(error)
    code: str = getattr(kind, "code", "")
    if isinstance(error, serve.GenerationError):
        code = error.engine_code
        kind = next((kind for kind in ENGINE_CLASSES if kind.code == code), engine.EngineFaultError)
    rule = _rule_of(kind)
    if rule is FALLBACK:
        return rule.status, WireError("the server failed on this request", rule.type, None, "internal_error")
    param = getattr(error, "param", None)
    return rule.status, WireError(str(error), rule.type, param, rule.code or code)


def _rule_of(kind: type[Exception]) -> Rule:
    return next((RULES[base] for base in kind.__mro__ if base in RULES), FALLBACK)
