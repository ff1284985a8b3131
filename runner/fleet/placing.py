"""Placement of users on worker nodes, and each node's share of a limit of the whole fleet.

Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates" (rendezvous hashing);
Schindelhauer and Schomaker, "Weighted distributed hash tables".
"""

import hashlib
import math
from collections.abc import Mapping

from runner.settings.named_limits import LimitSettings

__all__ = ["node_of", "share_of"]


def node_of(user: str, nodes: Mapping[str, int]) -> str | None:
    """Return the node of a user, or None if there is no node.

    Every host computes the same node. When a node leaves, only its own users move; a node with twice the
    capacity gets twice as many users.

    Args:
        user: Segment of the user.
        nodes: Number of concurrent calls that each node accepts.
    """

    def score(node: str) -> float:
        digest = hashlib.blake2b(f"{node}\0{user}".encode(), digest_size=8).digest()
        # Above 0 and below 1, so that its logarithm is negative.
        return -nodes[node] / math.log((int.from_bytes(digest) + 1) / (2**64 + 2))

    return max(nodes, key=score, default=None)


def share_of(limit: LimitSettings, *, rank: int, nodes: int) -> LimitSettings:
    """Return the part of a limit that one node enforces.

    A limit per user is not divided: all calls of a user run on one node. Any other limit is divided equally
    among the nodes, at least one call each.

    Args:
        limit: The limit of the fleet.
        rank: Position of the node among all nodes, from 0.
        nodes: Number of nodes.
    """
    if limit.per == "user":
        return limit
    amounts = {name: getattr(limit, name) for name in ("max_calls", "calls_per_minute")}
    parts = {
        name: max(1, (most + nodes - 1 - rank) // nodes) for name, most in amounts.items() if most is not None
    }
    return limit.model_copy(update=parts)
