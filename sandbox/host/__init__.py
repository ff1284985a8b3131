"""The host's half: forkserver, zygotes, pools, workers, leases, output of workers, resource usage."""
