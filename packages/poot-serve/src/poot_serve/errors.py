"""Errors of poot-serve.

ServeError                       "serve_error"
├── StartUpError                 "start_up"               the server cannot start (exit code 1)
│   ├── SettingsError            "bad_settings"           a flag or argument is wrong (exit code 2)
│   └── AddressError             "address_unavailable"    the listener cannot be opened
├── ClientError                  "invalid_request"        the client's mistake; `param` names the field at fault
│   ├── HeadTooLargeError        "head_too_large"         request head over its cap
│   ├── BadHostError             "bad_host"               no Host, several, or a malformed one
│   ├── WrongHostError           "host_not_allowed"       a Host that does not name the listener
│   ├── TransferEncodingError    "transfer_encoding"      a body without a stated length
│   ├── OriginError              "origin_not_allowed"     a web page of an origin that is not let in
│   ├── AuthenticationError      "invalid_api_key"        no API key, or one that is not known
│   ├── LengthRequiredError      "length_required"        no Content-Length
│   ├── BadLengthError           "bad_content_length"     a Content-Length that is not one plain number
│   ├── MediaTypeError           "unsupported_media_type" a body that is not application/json in UTF-8
│   ├── BodyTooLargeError        "body_too_large"         Content-Length over the cap
│   ├── BodyTimeoutError         "body_timeout"           the body did not arrive in time
│   ├── BodyIncompleteError      "body_incomplete"        the body is not as long as stated
│   ├── BadJsonError             "invalid_json"           not UTF-8, not JSON, or JSON this server does not take
│   ├── FieldError               "invalid_value"          a field with a wrong type or value
│   │   ├── UnsupportedFieldError "unsupported_value"     a field that asks for something this server does not do
│   │   └── UnknownFieldError     "unknown_field"         a field that this server does not know, if it is strict
│   ├── ModelNotFoundError       "model_not_found"
│   ├── RouteNotFoundError       "not_found"
│   └── MethodError              "method_not_allowed"
├── ClientGoneError              "client_closed_request"  the client left before its answer
├── BusyError                    "busy"                   more than the server takes at once; worth trying again
│   ├── RateLimitError           "rate_limit_exceeded"    too many requests of one address
│   ├── PendingLimitError        "too_many_requests"      too many requests are being answered
│   └── ReceivingLimitError      "too_many_uploads"       too many requests are sending their body
├── UnavailableError             "unavailable"            the server takes no work now
│   ├── DrainingError            "draining"               it is shutting down
│   ├── RestartingError          "engine_restarting"      the engine is silent, or is being started again
│   └── QueueWaitError           "queue_timeout"          the engine had no room for the request in time
└── GenerationError              "generation_failed"      the engine ended a request with an error of its own code
"""

from __future__ import annotations

from typing import ClassVar

# When what this server does not take now is worth another try, if nothing better is known.
RETRY_SECONDS = 5


class ServeError(Exception):
    """Root of the errors of this package; `code` is stable across releases."""

    code: ClassVar[str] = "serve_error"


class StartUpError(ServeError):
    code = "start_up"


class SettingsError(StartUpError):
    code = "bad_settings"


class AddressError(StartUpError):
    code = "address_unavailable"


class ClientError(ServeError):
    """A request that is refused. `param` is the wire name of the field at fault, such as `messages[0].content`."""

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class HeadTooLargeError(ClientError):
    code = "head_too_large"


class BadHostError(ClientError):
    code = "bad_host"


class WrongHostError(ClientError):
    code = "host_not_allowed"


class TransferEncodingError(ClientError):
    code = "transfer_encoding"


class LengthRequiredError(ClientError):
    code = "length_required"


class OriginError(ClientError):
    code = "origin_not_allowed"


class AuthenticationError(ClientError):
    code = "invalid_api_key"


class BadLengthError(ClientError):
    code = "bad_content_length"


class MediaTypeError(ClientError):
    code = "unsupported_media_type"


class BodyTooLargeError(ClientError):
    code = "body_too_large"


class BodyTimeoutError(ClientError):
    code = "body_timeout"


class BodyIncompleteError(ClientError):
    code = "body_incomplete"


class BadJsonError(ClientError):
    code = "invalid_json"


class FieldError(ClientError):
    code = "invalid_value"


class UnsupportedFieldError(FieldError):
    code = "unsupported_value"


class UnknownFieldError(FieldError):
    code = "unknown_field"


class ModelNotFoundError(ClientError):
    code = "model_not_found"


class RouteNotFoundError(ClientError):
    code = "not_found"


class MethodError(ClientError):
    """`allow` is the value of the answer's Allow header."""

    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str = "") -> None:
        super().__init__(message)
        self.allow = allow


class ClientGoneError(ServeError):
    code = "client_closed_request"


class BusyError(ServeError):
    """`retry_after` is how many seconds to wait before another try."""

    code = "busy"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimitError(BusyError):
    code = "rate_limit_exceeded"


class PendingLimitError(BusyError):
    code = "too_many_requests"


class ReceivingLimitError(BusyError):
    code = "too_many_uploads"


class UnavailableError(ServeError):
    """`retry_after` is how many seconds to wait before another try."""

    code = "unavailable"

    def __init__(self, message: str, *, retry_after: int = RETRY_SECONDS) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueWaitError(UnavailableError):
    code = "queue_timeout"


class DrainingError(UnavailableError):
    code = "draining"


class RestartingError(UnavailableError):
    code = "engine_restarting"


class GenerationError(ServeError):
    """The engine ended a request with finish "error". `engine_code` is the code of its error class."""

    code = "generation_failed"

    def __init__(self, message: str, *, engine_code: str) -> None:
        super().__init__(message)
        self.engine_code = engine_code
