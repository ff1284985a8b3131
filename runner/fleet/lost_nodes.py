"""Liveness of worker nodes, as judged by themselves and by the hosts of their calls.

A node that Redis does not answer ends its calls before any host takes them back: none runs twice.

Source: `docs/decisions/0044-fleet-over-redis.md`.
"""

__all__ = ["FENCE_S", "MISSED_S", "TTL_S"]

TTL_S = 7.0
"""After how long without a word a node is known no more, in seconds."""

FENCE_S = 5.0
"""After how long without an answer of Redis a node ends its calls, in seconds: before hosts give up on it."""

MISSED_S = 2.0
"""For how long a host has not known a node before it takes its calls back, in seconds."""
