"""The host's half: the forkserver, zygotes, pools, workers and leases, and the watch over them."""
