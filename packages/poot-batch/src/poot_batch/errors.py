"""Errors of poot-batch.

EngineError                       "engine_error"
├── RequestError                  "invalid_request"          the client's mistake; `param` names the field
│   ├── ContextLengthError        "context_length_exceeded"  prompt (and max_tokens) can never fit
│   └── InvalidTokenError         "invalid_token"            a token id outside the vocabulary
├── EngineFaultError              "engine_fault"             the server's fault: this request ends, the engine goes on
│   └── NonFiniteLogitsError      "non_finite_logits"
├── EngineDeadError               "engine_dead"              the engine process is gone
│   └── EngineRestartingError     "engine_restarting"        it is silent or being started again: later it may serve
├── EngineDrainingError           "engine_draining"          the engine takes no new requests
├── StartError                    "start_failed"             the engine could not start; carries the engine's own code
├── InvariantError                "broken_invariant"         the simulator found the engine's host logic at fault
└── CampaignError                 "campaign_failed"          a process that played seeds ended badly
"""

from __future__ import annotations

from typing import ClassVar


class EngineError(Exception):
    """Root of the errors of this package; `code` is stable across releases."""

    code: ClassVar[str] = "engine_error"


class RequestError(EngineError):
    """A request the engine refuses before it runs. `param` is the wire name of the field at fault."""

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(RequestError):
    code = "context_length_exceeded"


class InvalidTokenError(RequestError):
    code = "invalid_token"


class EngineFaultError(EngineError):
    code = "engine_fault"


class NonFiniteLogitsError(EngineFaultError):
    code = "non_finite_logits"


class EngineDeadError(EngineError):
    code = "engine_dead"


class EngineRestartingError(EngineDeadError):
    code = "engine_restarting"


class EngineDrainingError(EngineError):
    code = "engine_draining"


class StartError(EngineError):
    """The engine did not start. `reason_code` is the code of the error raised inside the engine process."""

    code = "start_failed"

    def __init__(self, message: str, *, reason_code: str = "start_failed") -> None:
        super().__init__(message)
        self.reason_code = reason_code


class InvariantError(EngineError):
    """What must always hold did not, in a simulated world."""

    code = "broken_invariant"


class CampaignError(EngineError):
    """A process of a campaign failed: nothing is known of its seeds."""

    code = "campaign_failed"
