"""The runner's code in zygotes and workers."""
