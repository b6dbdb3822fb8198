"""Definitions of norms and activations against torch's own and against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from poot_executor.errors import GraphError
from poot_executor.ir import DType, TensorType
from poot_executor.ops import Clamp, Gelu, LayerNorm, XIelu


@pytest.mark.parametrize(("weight", "bias"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("shape", [(5, 24), (4, 3, 24)])
def test_layer_norm_is_torchs(shape: tuple[int, ...], weight: bool, bias: bool) -> None:
    noise = torch.Generator().manual_seed(5)
    x = torch.randn(shape, generator=noise) * 2 + 7
    w, b = (torch.randn(24, generator=noise) if there else None for there in (weight, bias))
    given = [value for value in (w, b) if value is not None]
    (found,) = LayerNorm(1e-5, weight=weight, bias=bias).reference(x, *given)
    torch.testing.assert_close(found, functional.layer_norm(x, (24,), w, b, 1e-5), rtol=1e-5, atol=1e-5)


def test_layer_norm_of_heads_with_weights_of_their_own() -> None:
    x = torch.tensor([[[1.0, 3.0], [2.0, -2.0]]])
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    # Both heads become (-1, 1) and (1, -1) but for eps.
    (found,) = LayerNorm(1e-12).reference(x, weight)
    torch.testing.assert_close(found, torch.tensor([[[-1.0, 2.0], [3.0, -4.0]]]))


@pytest.mark.parametrize("weights", [((8,),), ((2,),), ((2, 8),), ((3, 16),), ((16,), (2, 16)), ((16,), (8,))])
def test_a_weight_that_does_not_fit_is_refused(weights: tuple[tuple[int, ...], ...]) -> None:
    given = [TensorType(weight, DType.F32) for weight in weights]
    with pytest.raises(GraphError, match="does not fit"):
        LayerNorm(1e-5, bias=len(given) > 1).infer(TensorType((4, 2, 16), DType.ACT), *given)


def test_a_norm_has_as_many_weights_as_it_says() -> None:
    x, weight = TensorType((4, 16), DType.ACT), TensorType((16,), DType.F32)
    for op, given in ((LayerNorm(1e-5), 0), (LayerNorm(1e-5, bias=True), 1), (LayerNorm(1e-5, weight=False), 1)):
        with pytest.raises(GraphError, match=f"{given} weights and biases given"):
            op.infer(x, *[weight] * given)


def test_gelu_and_clamp_by_hand() -> None:
    (exact,) = Gelu("erf").reference(torch.tensor([-1.0, 0.0, 2.0]))
    # x Phi(x), with Phi(-1) = 0.15865525 and Phi(2) = 0.97724987.
    torch.testing.assert_close(exact, torch.tensor([-0.15865525, 0.0, 1.95449974]))
    (close,) = Gelu("tanh").reference(torch.tensor([2.0]))
    inner = math.sqrt(2 / math.pi) * (2 + 0.044715 * 8)
    assert close.item() == pytest.approx(1 + math.tanh(inner), rel=1e-6)
    (clamped,) = Clamp(0.5).reference(torch.tensor([-3.0, -0.25, 0.5, 0.75]))
    assert clamped.tolist() == [-0.5, -0.25, 0.5, 0.5]


def test_xielu_by_hand() -> None:
    op = XIelu(alpha_p=2.0, alpha_n=3.0, beta=0.5, eps=-0.125)
    (found,) = op.reference(torch.tensor([2.0, 0.0, -0.0625, -1.0]))
    # Between eps and zero the exponential stays where it is at eps; at zero too.
    least = math.expm1(-0.125)
    wanted = [2 * 4 + 1, 3 * least, 3 * (least + 0.0625) - 0.03125, 3 * (math.expm1(-1) + 1) - 0.5]
    assert found.tolist() == pytest.approx(wanted, rel=1e-6)
