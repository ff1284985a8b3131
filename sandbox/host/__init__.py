"""The host's half: forkserver, zygotes, pools, workers, leases, what workers print, the watch over them."""
