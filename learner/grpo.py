"""Group-relative policy optimisation, as pure functions of arrays.

For a group of G attempts at one task with rewards r, every sampled token of attempt i has the advantage

    A_i = (r_i - mean(r)) / (std(r) + 1e-6)                      std over G - 1, as in the published run

(rule 15), and with the ratio rho = pi(token) / pi_behaviour(token) the update minimises

    sum over sampled tokens of  -min(rho A, clip(rho, 1 - low, 1 + high) A)  /  number of sampled tokens,

where a negative advantage bounds the loss by -c A (dual clip, c = 3): one token that has become far likelier
can't dominate the batch. The denominator counts the whole update (rule 14). There is no reference model and no
KL term. Tokens were sampled by the actor and a batch gets one update, so the old policy's log-probabilities are
the actor's, and rho also carries what actor and learner compute differently.

With truncated importance weights (loss.truncated_is = C) the two are told apart: the old policy is the learner
itself before the update (rho is 1, with the same gradient), and each token's loss is weighted by
min(pi_learner / pi_behaviour, C), through which no gradient flows. That is how tokens of older policy versions
(rollout.max_staleness) are learnt from: pi_behaviour is the version that sampled each.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from protocol.config import Loss

LOG_RATIO_BOUND = 20.0
"""Of |log rho|, so that a token the actor found all but impossible gives a finite number."""


def group_advantages(rewards: Sequence[float], groups: Sequence[Hashable], voting=None) -> np.ndarray:
    """Advantage of each trajectory, float32 [N], from the group named by ``groups`` [N].

    ``voting`` bool [N]: trajectories that count in their group's mean and deviation; the others get 0.
    A group of exactly equal rewards, or of one, has no advantage: exactly 0.
    """
    rewards = np.asarray(rewards, np.float64)
    voting = np.ones(len(rewards), bool) if voting is None else np.asarray(voting, bool)
    out = np.zeros(len(rewards))
    for group in dict.fromkeys(groups):
        members = np.array([g == group for g in groups]) & voting
        values = rewards[members]
        if len(values) > 1 and (values != values[0]).any():
            out[members] = (values - values.mean()) / (values.std(ddof=1) + 1e-6)
    return out.astype(np.float32)


class TokenSums(NamedTuple):
    """Sums over sampled tokens, float32 scalars: added over microbatches, divided by the token count once.

    ``entropy`` in nats; ``kl`` the k3 estimate rho - 1 - log rho of KL(behaviour || learner); ``difference``
    |learner - behaviour| log-probability, ``largest`` its maximum (the one that is not a sum); ``truncated`` counts
    tokens whose importance weight was cut at ``loss.truncated_is``.
    """

    loss: jax.Array
    ratio: jax.Array
    clipped: jax.Array
    kl: jax.Array
    difference: jax.Array
    entropy: jax.Array
    truncated: jax.Array
    largest: jax.Array

    def merge(self, other: TokenSums) -> TokenSums:
        sums = TokenSums(*(a + b for a, b in zip(self, other, strict=True)))
        return sums._replace(largest=jnp.maximum(self.largest, other.largest))


def policy_loss(logprobs, behaviour, advantages, entropy, valid, loss: Loss) -> TokenSums:
    """Summed token losses and metrics. All arrays have one shape; ``valid`` selects the sampled tokens.

    Masks select (rule 16): inputs at masked places are replaced before any arithmetic, so a NaN there reaches
    neither the loss nor its gradient.
    """
    logprobs = jnp.where(valid, logprobs, 0.0)
    behaviour = jnp.where(valid, behaviour, 0.0)
    advantages = jnp.where(valid, advantages, 0.0)
    log_ratio = jnp.clip(logprobs - behaviour, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    importance = jnp.exp(log_ratio)
    ratio, truncated = importance, jnp.zeros_like(importance)
    if loss.truncated_is is not None:
        truncated = importance > loss.truncated_is
        ratio = jnp.exp(logprobs - jax.lax.stop_gradient(logprobs))

    plain = -ratio * advantages
    clipped = -jnp.clip(ratio, 1 - loss.clip_low, 1 + loss.clip_high) * advantages
    losses = jnp.maximum(plain, clipped)
    if loss.dual_clip is not None:
        losses = jnp.where(advantages < 0, jnp.minimum(losses, -loss.dual_clip * advantages), losses)
    if loss.truncated_is is not None:
        losses = losses * jax.lax.stop_gradient(jnp.minimum(importance, loss.truncated_is))

    def total(x):
        return jnp.sum(jnp.where(valid, x, 0.0))

    difference = jnp.where(valid, jnp.abs(logprobs - behaviour), 0.0)
    return TokenSums(
        loss=total(losses),
        ratio=total(importance),
        clipped=total(clipped > plain),
        kl=total(importance - 1 - log_ratio),
        difference=jnp.sum(difference),
        entropy=total(entropy),
        truncated=total(truncated),
        largest=jnp.max(difference, initial=0.0),
    )
