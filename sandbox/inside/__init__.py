"""The confined half: code of the forkserver, zygotes and workers."""
