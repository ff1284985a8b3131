"""The program of `runner selftest`: the acts of the sandbox's own attempts, and those on artifacts."""

from runner.selftest.artifacts import ARTIFACTS
from sandbox.selftest.attempts import ATTEMPTS
from sandbox.selftest.program import Attacker

__all__ = ["EVERY", "PROGRAM"]

EVERY = (*ATTEMPTS, *ARTIFACTS)

PROGRAM = Attacker(EVERY)
