"""From the names and numbers that checkpoints use to the executor's weight encodings."""
