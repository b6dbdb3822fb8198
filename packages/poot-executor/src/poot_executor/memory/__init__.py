"""What a prepared model needs, before anything is allocated: lifetimes to offsets, the fit, the account."""

from poot_executor.memory.account import Account
from poot_executor.memory.fit import Demand, Fit, Pool, fit
from poot_executor.memory.plan import ArenaPlan, Placement, plan_arena

__all__ = ["Account", "ArenaPlan", "Demand", "Fit", "Placement", "Pool", "fit", "plan_arena"]
