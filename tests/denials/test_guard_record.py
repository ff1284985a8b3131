import pytest

from sandbox.denials.record import Recorder
from sandbox.outcome import Denial


def denial(number: int) -> Denial:
    return Denial(operation="open", path=f"/etc/{number}")


def test_denials_are_recorded_once_each_in_order() -> None:
    recorder = Recorder()

    for number in (2, 1, 2, 2, 1):
        recorder.report(denial(number))

    assert recorder.denials() == (denial(2), denial(1))


def test_full_record_drops_later_denials() -> None:
    recorder = Recorder(limit=3)

    for number in range(1000):
        recorder.report(denial(number))

    assert recorder.denials() == (denial(0), denial(1), denial(2))


def test_each_new_denial_is_forwarded_once() -> None:
    forwarded: list[Denial] = []
    recorder = Recorder(forwarded.append, limit=2)

    for number in (1, 1, 2, 3):
        recorder.report(denial(number))

    assert forwarded == [denial(1), denial(2)]


def test_denial_is_recorded_after_host_exits() -> None:
    def gone(_: Denial) -> None:
        raise BrokenPipeError

    recorder = Recorder(gone)

    recorder.report(denial(1))

    assert recorder.denials() == (denial(1),)


def test_a_fault_in_the_forwarding_program_is_not_hidden() -> None:
    def broken(_: Denial) -> None:
        raise TypeError("broken")

    with pytest.raises(TypeError, match="broken"):
        Recorder(broken).report(denial(1))
