"""ResMerge: a consensus of what is left of each task vector without its leading direction.

"ResMerge: Residual-based Spectral Merging of Large Language Models", https://arxiv.org/abs/2606.02252. For each matrix,
T agents, Frobenius norms, cos over whole matrices:

    H[t] = the `rank_topk` leading singular triples of tau[t];   R[t] = tau[t] - H[t]
    q[t] = R[t] / norm R[t];   s = mean over i < j of cos(q[i], q[j]);   Q = sum of q[t];   c = mean of cos(q[t], Q)
    A    = mean of R[t]                                                  where c <= 1 / sqrt(T): the fall-back
         = c^beta * (mean of norm R[t]) * Q / norm Q                     else: the consensus
    beta = beta_max - (beta_max - beta_min) * ((s + 1)/2 + (c + 1)/2) / 2
    g    = mean over i < j of max(0, cos(H[i], H[j]))
    C    = head_ratio_budget * g * norm A * (mean of H) / norm(mean of H)
    merged = base + A + C;   every other tensor: the mean of the agents

Two rules stand in the public code and not in its README, and hold here too. *The fall-back*: c follows from s,
c = sqrt((1 + (T - 1) s) / T), so the consensus is taken just where s > 0 (with Z tails of nothing, where
s > Z / (T (T - 1))). For unrelated agents s is about 0, and chance decides: at s = 0 the weights of the agents jump
from 1 / T to ones inverse to their norms, so that an agent of density 3 % is kept whole in one matrix and cut to a
third in the next. s is measured in float64 here (the public code's c is wrong by up to 3e-3 at 3584 x 18944 on
processors), and the record tells for how many matrices it lies within three standard deviations of what unrelated
agents give. *The family rule*: outside of attention and MLP, by name, beta is beta_max.

It is computed in its exact streamed form. A is a weighting of the task vectors but for the heads, so all that is needed
of a matrix are three tables [T, T] and the leading pairs, in float64:

    G[i,j] = <tau[i], tau[j]>;   L[i,j] = <H[i], tau[j]>;   K[i,j] = <H[i], H[j]>;   N = G - L - L^T + K = <R[i], R[j]>
    M = sum of a[t] tau[t] + sum of (h - a[t]) H[t]        a[t] = c^beta * mean r / (norm Q * r[t]), or 1 / T
    r[t] = sqrt(N[t,t]);   h = head_ratio_budget * g * norm A / (T * norm(mean of H))

A tail of N[t,t] <= 1e-12 G[t,t] counts as nothing; the public code, in float32, scales up its rounding. The leading
pair is found by Golub-Kahan-Lanczos (methods/lanczos.py); a tie s[k] = s[k + 1] leaves it undefined. With rank_topk 0
nothing is a head: a weighting alone, which keeps sparse updates sparse and costs no more than reading. That is not the
paper's, but the cheap variant of it. One agent gives A = R, C = budget * norm R * H / norm H: not the agent. A weight
multiplies tau before everything else; in the consensus it changes mean r alone.

Which tensors: every matrix but those whose name holds embed_tokens, wte, lm_head, word_embeddings, norm or ln_, as in
the public code (`excluded`), so routers and score heads are merged too; of a stack of experts each matrix, where the
public code fails. Against the public code in float64 the golden set differs by 2e-7 to 1e-6.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from agentmerge.methods import lanczos, spectra
from agentmerge.methods.globs import SmallGlobs  # noqa: TC001 - pydantic reads the annotation
from agentmerge.methods.spectral import Spectral, place_of
from agentmerge.survey.reported import report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.methods.arrays import Arrays
    from agentmerge.methods.spectra import Factors
    from agentmerge.methods.vectors import Vectors
    from agentmerge.tensors import Array

TINY = 1e-8
"""The public code's: added to norms that divide; a head or a mean of them below it is none."""
NO_TAIL = 1e-12
"""Share of a task vector's energy up to which its tail is rounding."""
DEVIATIONS = 3.0
"""Of the mean cosine of unrelated agents, within which chance decides."""
FAMILIES = (
    *("self_attn", ".attn.", "attention", "q_proj", "k_proj", "v_proj", "o_proj"),
    *("mlp", "ffn", "feed_forward", "gate_proj", "up_proj", "down_proj"),
)
"""Parts of names, in small letters, of attention and MLP; elsewhere beta is beta_max."""


class Tables(NamedTuple):
    """Inner products over one matrix, float64 [T, T] each; 0 of an agent that changed nothing."""

    products: Array
    """<tau[i], tau[j]>."""
    across: Array
    """<H[i], tau[j]>."""
    heads: Array
    """<H[i], H[j]>."""


class Shares(NamedTuple):
    """What M is made of."""

    tails: Array
    """a of each agent, float64 [T]."""
    head: float
    """h, of every head."""
    s: float
    """The mean cosine of the tails, less where the fall-back ends: above 0 is consensus."""
    consensus: bool


class ResMerge(Spectral):
    """The consensus of the tails, and a bounded share of the heads."""

    about: ClassVar[Mapping[str, str]] = {
        "resmerge": "ResMerge: the consensus of the task vectors without their leading direction; made for RL experts."
    }
    meanings: ClassVar[Mapping[str, tuple[str, str]]] = {
        "by_chance": (
            "in {} the agents agree as little as unrelated ones",
            "chance chose between their mean and their consensus there, which weighs them by their norms.",
        )
    }
    in_words: ClassVar[str] = "by matrix: 1 / N, or inverse to the size of the agent's change"

    name: Literal["resmerge"] = "resmerge"
    rank_topk: int = Field(default=1, ge=0)
    """Leading directions that are the head; 0 is the cheap variant, a weighting of the task vectors alone."""
    beta_min: float = Field(default=0.7, ge=0)
    """How much agents that agree fully are shrunk by their coherence c: c^beta; src_beta_min of the public code."""
    beta_max: float = Field(default=1.0, ge=0)
    """The same of agents that agree in nothing, and of matrices outside of attention and MLP."""
    head_ratio_budget: float = Field(default=0.2, ge=0)
    """The most that the heads bring, as a share of the tails; it is multiplied by their agreement g."""
    excluded: SmallGlobs = ("*embed_tokens*", "*wte*", "*lm_head*", "*word_embeddings*", "*norm*", "*ln_*")
    """Globs, in small letters, of matrices that are merged as the other tensors are."""

    def update(self, vectors: Vectors, arrays: Arrays) -> Any:
        """The definition of one matrix, float64 [out, in]."""
        if not len(vectors):
            return None
        place, name = place_of(vectors.stack), vectors.stack.block.tensor.name.lower()
        taus = list(vectors)
        heads = [self._head(tau, arrays) for tau in taus]
        betas = (self.beta_min if any(part in name for part in FAMILIES) else self.beta_max, self.beta_max)
        found = shares(tables_of(taus, heads, vectors, arrays), betas, self.head_ratio_budget)
        report("consensus" if found.consensus else "mean", place, found.s)
        if vectors.agents > 1 and abs(found.s) <= noise(taus[0].shape, vectors.agents):
            report("by_chance", place, found.s)
        return combined(taus, heads, found.tails[list(vectors.changed)], found.head, arrays)

    def _head(self, tau: Any, arrays: Arrays) -> Factors:
        if self.rank_topk:
            return lanczos.first(arrays.put(tau, "float64"), self.rank_topk, arrays)
        rows, columns = tau.shape
        return spectra.Factors(*(arrays.put(np.zeros(shape), "float64") for shape in ((rows, 0), 0, (columns, 0))))

    def matrix_flop(self, rows: int, columns: int, agents: int) -> float:
        """The leading pairs, and what is element by element."""
        pairs = agents * lanczos.first_flop(rows, columns) if self.rank_topk else 0.0
        return pairs + rows * columns * agents * (agents + 1.0 + 4.0 * self.rank_topk * agents)

    def matrix_bytes(self, rows: int, columns: int, agents: int) -> int:
        """The task vectors in float32, one in float64 or the result, and what finds a leading pair."""
        matrix = 4 * agents * rows * columns + 8 * (2 * rows * columns + min(spectra.BLOCK, rows * columns))
        return matrix + (lanczos.first_bytes(rows, columns) if self.rank_topk else 0)


def tables_of(taus: Sequence[Any], heads: Sequence[Factors], vectors: Vectors, arrays: Arrays) -> Tables:
    """The tables of task vectors, float32 [out, in] each, and their heads.

    Args:
        taus: of the agents that changed something.
        heads: theirs.
        vectors: tells whose they are.
        arrays: the library that computes.
    """
    count, xp = len(taus), arrays.xp
    products, across, between = (np.zeros((count, count)) for _ in range(3))
    for part in row_blocks(taus[0].shape, count):
        rows = xp.stack([arrays.put(tau[part], "float64").reshape(-1) for tau in taus])
        products += numbers(rows @ rows.T)
        for i, head in enumerate(heads):
            mine = ((head.left[part] * head.values) @ head.right.T).reshape(-1)
            across[i] += numbers(rows @ mine)
    for i, one in enumerate(heads):
        for j, other in enumerate(heads[: i + 1]):
            lefts, rights = one.left.T @ other.left, one.right.T @ other.right
            between[i, j] = between[j, i] = float((one.values[:, None] * lefts * rights * other.values).sum())
    return Tables(*(_among_all(table, vectors) for table in (products, across, between)))


def _among_all(table: Array, vectors: Vectors) -> Array:
    found = np.zeros((vectors.agents, vectors.agents))
    found[np.ix_(vectors.changed, vectors.changed)] = table
    return found


def shares(tables: Tables, betas: tuple[float, float], budget: float) -> Shares:
    """What each task vector and the heads are multiplied by.

    Args:
        tables: of one matrix.
        betas: least and most.
        budget: head_ratio_budget.
    """
    agents = len(tables.products)
    between = tables.products - tables.across - tables.across.T + tables.heads
    none = np.diag(between) <= NO_TAIL * np.diag(tables.products)
    between[none] = between[:, none] = 0
    r = np.sqrt(np.diag(between))
    unit = np.where(none, 0, 1 / np.where(none, 1, r))
    cosines = between * unit[:, None] * unit
    pairs = max(agents * (agents - 1), 1)
    s = float(cosines.sum() - np.trace(cosines)) / pairs
    above = s - none.sum() / pairs if agents > 1 else 0.0
    if above <= 0:
        tails, length = np.full(agents, 1 / agents), sqrt(max(between.sum(), 0)) / agents
    else:
        c = min(sqrt(cosines.sum()) / agents, 1.0)
        beta = betas[1] - (betas[1] - betas[0]) * ((s + 1) / 2 + (c + 1) / 2) / 2
        length = c**beta * float(r.mean())
        q = r / (r + TINY)
        tails = np.where(none, 0, length / ((sqrt(q @ cosines @ q) + TINY) * (r + TINY)))
    mean_head = sqrt(max(tables.heads.sum(), 0)) / agents
    allowed = budget * agreement(tables.heads) * length if min(length, mean_head) > TINY else 0.0
    return Shares(tails, allowed / (agents * mean_head) if allowed else 0.0, above, above > 0)


def agreement(heads: Array) -> float:
    """g: the mean over pairs of max(0, cos), of the heads that are not 0; 1 of one, 0 of none.

    Args:
        heads: <H[i], H[j]>, float64 [T, T].
    """
    lengths = np.sqrt(np.maximum(np.diag(heads), 0))
    there = np.flatnonzero(lengths > TINY)
    if len(there) < 2:
        return float(len(there))
    cosines = heads[np.ix_(there, there)] / np.outer(lengths[there], lengths[there])
    return float(np.maximum(cosines, 0)[np.triu_indices(len(there), 1)].mean())


def combined(taus: Sequence[Any], heads: Sequence[Factors], tails: Array, head: float, arrays: Arrays) -> Any:
    """M = sum of a[t] tau[t] + sum of (h - a[t]) H[t], float64 [out, in]."""
    found = arrays.put(np.zeros(taus[0].shape), "float64")
    for part in row_blocks(taus[0].shape, len(taus)):
        for tau, mine, share in zip(taus, heads, tails.tolist(), strict=True):
            found[part] += share * arrays.put(tau[part], "float64")
            if len(mine.values) and head != share:
                found[part] += (mine.left[part] * ((head - share) * mine.values)) @ mine.right.T
    return found


def noise(shape: tuple[int, int], agents: int) -> float:
    """Up to which mean cosine agents of unrelated changes may come by chance: one cosine varies by 1 / elements."""
    pairs = agents * (agents - 1) / 2
    return DEVIATIONS / sqrt(shape[0] * shape[1] * pairs) if pairs else 0.0


def row_blocks(shape: tuple[int, int], agents: int) -> list[slice]:
    """Rows of a matrix, some at a time."""
    step = max(spectra.BLOCK // (4 * agents * shape[1]), 1)
    return [slice(low, low + step) for low in range(0, shape[0], step)]


def numbers(values: Any) -> Array:
    """Back to numpy, float64."""
    return np.asarray(values if isinstance(values, np.ndarray) else values.cpu().numpy())
