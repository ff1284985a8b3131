"""The program of `runner selftest`: the acts of the sandbox's own attempts, and those on artifacts."""

from runner.selftest.artifacts import ARTIFACTS
from sandbox.selftest.program import ATTEMPTS, Attacker

__all__ = ["EVERY", "PROGRAM"]

EVERY = (*ATTEMPTS, *ARTIFACTS)

PROGRAM = Attacker(EVERY)
