"""The trial of the gate, as `runner doctor` runs it."""

import concurrent.futures.thread  # noqa: F401 - it comes late by itself, and the child may not read it
import os
import struct
from collections.abc import Callable

import pytest

from sandbox.layers.privileges import refuse_new_privileges
from sandbox.layers.seccomp import supported_architecture
from sandbox.probe import gate as gate_probe
from sandbox.probe.gate import try_gate
from sandbox.syscalls import PR_SET_DUMPABLE, prctl, seccomp_set_listening_filter

pytestmark = pytest.mark.needs_root

# One instruction of BPF: return SECCOMP_RET_ALLOW. Source: seccomp(2).
ALLOW_ALL = struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)


def in_child(function: Callable[[], str]) -> str:
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            os.write(write, function().encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.wait()
    return answer


def test_the_gate_works_on_this_machine() -> None:
    report = try_gate()

    assert report.enforced, report.detail


def test_gate_works_for_workers_with_own_uid() -> None:
    assert os.geteuid() == 0, "only root gives user ids to workers; run these tests as root"

    report = try_gate(1_900_000_000)

    assert report.enforced, report.detail


def test_gate_works_for_unprivileged_user() -> None:
    def act() -> str:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
            # As it is for a program that this user started.
            prctl(PR_SET_DUMPABLE, 1)
        return try_gate().detail

    assert in_child(act) == "a confined process was connected to one address"


def test_other_supervisor_is_named_in_the_report() -> None:
    def act() -> str:
        refuse_new_privileges()
        seccomp_set_listening_filter(supported_architecture().number("seccomp"), ALLOW_ALL)
        report = gate_probe.try_gate()
        return f"{report.enforced}: {report.detail}"

    reply = in_child(act)

    assert reply.startswith("False: the kernel takes no filter that asks: ")
    assert reply.endswith(": Device or resource busy")
