"""poot-guided: what a constraint on a model's output is. Its public types; the automata behind them are to come.

The package stands alone: it takes a vocabulary, not a tokenizer, and imports no torch.
"""

from poot_guided.errors import ConstraintError, GuidedError
from poot_guided.limits import Limits
from poot_guided.spec import Choice, Constraint, Grammar, JsonObject, JsonSchema, Regex, check
from poot_guided.vocabulary import Vocabulary

__all__ = [
    "Choice",
    "Constraint",
    "ConstraintError",
    "Grammar",
    "GuidedError",
    "JsonObject",
    "JsonSchema",
    "Limits",
    "Regex",
    "Vocabulary",
    "check",
]
__version__ = "0.1.0"
