"""Cross-entropy of chosen tokens, computed in chunks so that only a few thousand rows of logits exist at a time."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch

LOGITS: Final = 1 << 28
"""Largest number of logits in a chunk."""
_LOGITS_ON_CPU: Final = 1 << 22
"""The same on a CPU, where a larger block would be allocated from the system each time."""


class _LinearCrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """Weighted sum of the losses, and the loss of each row.

    The forward pass computes the gradient too, because the logits of a chunk exist only then.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, shares: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `linear_cross_entropy`."""
        for_hidden, for_weight = ctx.needs_input_grad[:2]
        losses = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        hidden_gradient = torch.empty_like(hidden) if for_hidden else None
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if for_weight else None
        chunk_logits = LOGITS if hidden.is_cuda else min(LOGITS, _LOGITS_ON_CPU)
        rows = max(1, chunk_logits // len(weight))
        chunk_losses = _chunk_function(hidden.is_cuda)
        for part in (slice(start, start + rows) for start in range(0, len(hidden), rows)):
            # Copies, because the compiler would compile again for tensors that begin inside of others.
            chunk = targets[part].clone(), shares[part].clone()
            losses[part], gradient = chunk_losses(hidden[part] @ weight.T, *chunk)
            if hidden_gradient is not None:
                torch.mm(gradient, weight, out=hidden_gradient[part])
            if weight_gradient is not None:
                weight_gradient += gradient.T @ hidden[part]
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        ctx.weight_dtype = weight.dtype
        ctx.mark_non_differentiable(losses)
        return (losses * shares).sum(), losses

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
        """Scale the gradients that the forward pass computed."""
        hidden, weight = ctx.saved_tensors
        return (
            None if hidden is None else hidden * gradient.to(hidden.dtype),
            None if weight is None else (weight * gradient).to(ctx.weight_dtype),
            None,
            None,
        )


def linear_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, shares: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of shares · losses, and the losses: each row's hidden state predicts the token in `targets`."""
    if not torch.is_grad_enabled():
        hidden, weight = hidden.detach(), weight.detach()
    result: tuple[torch.Tensor, torch.Tensor] = _LinearCrossEntropy.apply(hidden, weight, targets, shares)
    return result


def _losses_and_gradient(
    logits: torch.Tensor, targets: torch.Tensor, shares: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = logits.float()
    sums = torch.logsumexp(scores, dim=-1)
    losses = sums - scores.gather(1, targets[:, None])[:, 0]
    is_target = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    probabilities = torch.exp(scores - sums[:, None])
    gradient = torch.where(is_target, probabilities - 1, probabilities) * shares[:, None]
    return losses, gradient.to(logits.dtype)


@cache
def _chunk_function(is_compiled: bool) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    compiled: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    compiled = torch.compile(_losses_and_gradient, dynamic=True) if is_compiled else _losses_and_gradient
    return compiled
