"""All of ours that runs in a zygote or worker."""
