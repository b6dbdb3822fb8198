"""The poot HTTP server: an OpenAI-compatible API over the poot engine, hosted by Granian."""

__version__ = "0.1.0"
