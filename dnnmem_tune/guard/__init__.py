"""The decision that every host shares: does this configuration fit, before it is launched?"""

from dnnmem_tune.guard.formula import FormulaTracers
from dnnmem_tune.guard.guard import MemoryGuard, Observation

__all__ = ["FormulaTracers", "MemoryGuard", "Observation"]
