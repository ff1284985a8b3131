"""The layers, one kernel mechanism for each module: pure functions decide, thin ones act."""
