"""Operating system services: files, sockets, threads, environment, logs."""
