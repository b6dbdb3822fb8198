"""The CPU backend: float32 activations over torch, only the live work of each step."""
