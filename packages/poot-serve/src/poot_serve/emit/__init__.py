"""From engine outputs to wire answers: one path for streamed and buffered, so that deltas add up to the same text."""
