"""What processes cost: memory and descriptors of a server and of what is below it."""

import psutil

__all__ = ["descriptors", "host_mib", "memory_mib", "processor_s", "tree_mib"]

_MIB = 1 << 20


def memory_mib(host: int) -> dict[str, list[float]]:
    """Return the unique memory (USS), in MiB, of the processes below a host, by their part.

    A host has one forkserver, whose children are zygotes, whose children are workers.
    """
    generation = [psutil.Process(host)]
    found: dict[str, list[float]] = {}
    for part in ("host", "forkserver", "zygote", "worker"):
        found[part] = [process.memory_full_info().uss / _MIB for process in generation]
        generation = [child for process in generation for child in process.children()]
    if not found["worker"]:
        raise RuntimeError(f"the host {host} has no parked worker to measure")
    return found


def processor_s(host: int) -> float:
    """Return the processor time that a host alone has had, in seconds: that of its workers is not in it."""
    used = psutil.Process(host).cpu_times()
    return float(used.user + used.system)


def host_mib(host: int) -> float:
    """Return the memory, in MiB, that a host has alone."""
    return float(psutil.Process(host).memory_full_info().uss / _MIB)


def descriptors(host: int) -> int:
    """Return the open descriptors of a host and its forkserver."""
    process = psutil.Process(host)
    return int(process.num_fds() + sum(child.num_fds() for child in process.children()))


def tree_mib(host: int) -> tuple[float, int]:
    """Return the memory, in MiB, and the number of a host and all below it; shared pages count once."""
    process = psutil.Process(host)
    everyone = [process, *process.children(recursive=True)]
    total = 0.0
    for one in everyone:
        try:
            total += one.memory_full_info().pss / _MIB
        except psutil.NoSuchProcess:
            continue
    return total, len(everyone)
