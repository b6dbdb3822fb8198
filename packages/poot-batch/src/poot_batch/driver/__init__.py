"""The driver: owns the prepared programs and the row table, turns plans into steps and steps into results."""

from poot_batch.driver.interface import Driver, Ticket
from poot_batch.driver.model_driver import ModelDriver
from poot_batch.driver.startup import Prepared, prepare_model, prompt_step_ms

__all__ = ["Driver", "ModelDriver", "Prepared", "Ticket", "prepare_model", "prompt_step_ms"]
