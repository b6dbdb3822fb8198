"""Which passes' results are taken: those for whose ops the device has kernels."""

from __future__ import annotations

from typing import Any

import pytest

from poot_executor.devices import open_device
from poot_executor.ir.graph import Op
from poot_executor.kernels import KernelTable, WeightForm
from poot_executor.ops import (
    AddRmsNorm,
    GatedLinear,
    Linear,
    LinearAddRmsNorm,
    NormedGatedLinear,
    NormedLinear,
    ResidualLinear,
    Scale,
    all_ops,
)
from poot_executor.passes import PASSES, defer_norms, fuse_product_norm
from poot_executor.runtime import EntryKey, compile_graphs

DEFERRED = (ResidualLinear, NormedLinear, NormedGatedLinear)
KEY = EntryKey("g", 4)


class Willing:
    """A kernel for anything, or one that says why not."""

    name = "willing"
    refusal: str | None = None

    def accepts(self, site: Any) -> str | None:
        return self.refusal

    def forms(self, site: Any) -> tuple[WeightForm, ...]:
        return ()

    def workspace(self, site: Any) -> int:
        return 0

    def bind(self, site: Any, operands: Any, device: Any) -> Any:
        raise TypeError("only compiled")


class Unwilling(Willing):
    refusal = "not today"


def compiled_ops(table: KernelTable, model: Any) -> set[type[Op]]:
    device = open_device("cpu")
    device.kernels = table
    return {type(node.op) for node in compile_graphs(device, {KEY: model.step(4)}).entries[KEY].graph.nodes}


@pytest.mark.parametrize("unwilling", [None, *DEFERRED], ids=str)
def test_norms_are_put_off_where_there_are_kernels_for_all_of_it(decoder: Any, unwilling: type[Op] | None) -> None:
    table = KernelTable("third")
    for op in all_ops():
        table.register(op)(Unwilling if op is unwilling else Willing)
    made = compiled_ops(table, decoder())
    assert made & {AddRmsNorm, LinearAddRmsNorm, *DEFERRED} == (
        set(DEFERRED) if unwilling is None else {LinearAddRmsNorm}
    )


def test_products_and_norms_stay_apart_where_no_kernel_does_both(decoder: Any) -> None:
    table = KernelTable("third")
    for op in all_ops():
        table.register(op)(Unwilling if op in {ResidualLinear, LinearAddRmsNorm} else Willing)
    assert compiled_ops(table, decoder()) & {AddRmsNorm, LinearAddRmsNorm, *DEFERRED} == {AddRmsNorm}


def test_the_cpu_norms_at_once(decoder: Any) -> None:
    made = compiled_ops(open_device("cpu").kernels, decoder())
    assert AddRmsNorm in made
    assert made.isdisjoint({LinearAddRmsNorm, *DEFERRED})


def test_products_and_norms_come_together_last_and_where_they_were_not_put_off() -> None:
    assert [step.run for step in PASSES[-2:]] == [defer_norms, fuse_product_norm]
    assert set(PASSES[-2].makes) == set(DEFERRED)


def test_a_table_that_prefers_another_has_both_and_leaves_them_as_they_were() -> None:
    one, other = KernelTable("one"), KernelTable("other")
    one.register(Linear)(Willing)
    one.register(Scale)(Willing)
    other.register(Linear)(Unwilling)
    other.register(GatedLinear)(Unwilling)
    both = one.preferring(other)
    kinds = {op: [type(kernel) for kernel in both.of(op)] for op in both}
    assert kinds == {Linear: [Unwilling, Willing], GatedLinear: [Unwilling], Scale: [Willing]}
    assert both.backend == "one"
    both.register(Scale)(Unwilling)
    assert (len(one.of(Linear)), len(other.of(Linear)), len(one.of(Scale))) == (1, 1, 1)
