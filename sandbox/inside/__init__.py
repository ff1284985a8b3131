"""The confined half: what runs in the forkserver, a zygote and a worker."""
