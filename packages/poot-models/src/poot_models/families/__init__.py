"""Model families, one file each, found by the architecture a checkpoint names and imported when needed."""

from poot_models.families.family import Family, find_family, known_architectures, text_architecture

__all__ = ["Family", "find_family", "known_architectures", "text_architecture"]
