"""A device with no hardware: plans, fits and prepares like any other, computes nothing."""
