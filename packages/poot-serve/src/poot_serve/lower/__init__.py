"""From wire request to engine request, or a typed refusal: pure, and safe to run in a worker thread."""
