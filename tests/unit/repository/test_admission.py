from __future__ import annotations

from blink_server.repository.admission import Admission, available_memory


def test_what_fits_is_admitted_and_counted_until_it_settles() -> None:
    admission = Admission(lambda: 10 << 20)
    assert admission.admit("a", 6 << 20) == ""
    assert admission.admit("b", 6 << 20) == "memory: needs 6.0 MiB, 4.0 MiB available"
    admission.settle("a")
    assert admission.admit("b", 6 << 20) == ""


def test_more_than_there_is_never_fits() -> None:
    admission = Admission(lambda: 1 << 30)
    assert admission.admit("a", 5 << 30) == "memory: needs 5.00 GiB, 1.00 GiB available"
    assert admission.admit("b", 1 << 30) == ""


def test_the_machine_has_memory() -> None:
    assert 0 < available_memory() < 1 << 60
