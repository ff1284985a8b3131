"""What the operating system gives: files, sockets, threads, environment, logs."""
