"""Which transport carries device arrays, by what the ranks have and ask for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from collops.comm import mpi
from collops.comm.transports import DEVICE_TRANSPORTS, Facts, best
from collops.errors import InputError, TransportError
from tests.docs.pages import ROOT, names_of_table

pytestmark = pytest.mark.serial
OWN, ONE = ["a 0", "a 1", "b 0"], ["a 0", "a 0", "b 0"]


def facts(transport="auto", devices=OWN, bindings="nccl4py nccl4py nccl4py", levels="none none none"):
    rows = zip(devices, bindings.split(), levels.split(), strict=True)
    return [
        Facts(transport, device, None if binding == "-" else binding, level, f"{level}, says MPI", 0)
        for device, binding, level in rows
    ]


@pytest.mark.parametrize(
    ("given", "transport", "why"),
    [
        (facts(), "nccl", "a GPU of its own"),
        (facts("nccl"), "nccl", "asked for"),
        (facts(bindings="cupy - -"), "staged", "NCCL has no binding"),
        (facts(bindings="cupy - -", levels="all p2p all"), "mpi", "p2p, says MPI"),
        (facts(devices=ONE), "staged", "ranks share GPUs"),
        (facts(devices=ONE, levels="all all none"), "staged", "ranks share GPUs"),
        (facts(devices=ONE, levels="all all all"), "mpi", "ranks share GPUs"),
        (facts("mpi", levels="all all all"), "mpi", "asked for"),
        (facts("staged", levels="all all all"), "staged", "asked for"),
        (facts(devices=["", "", ""]), None, "no GPU with CuPy on any rank"),
        (facts("mpi", devices=["a 0", "", ""]), None, "no GPU with CuPy on ranks [1, 2]"),
    ],
)
def test_the_best_that_all_have(given, transport, why):
    found = best(given)
    assert found.name == transport
    assert why in found.why
    assert found.level == min((fact.level for fact in given), key=mpi.GPU_LEVELS.index)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (facts("nccl", devices=["a 0", "", "b 0"]), TransportError, "ranks [1] have none"),
        (facts("staged", devices=["", "", ""]), TransportError, "needs a GPU and CuPy on every rank"),
        (facts("nccl", devices=ONE), TransportError, "ranks share GPUs; choose auto, staged"),
        (facts("nccl", bindings="cupy - -"), TransportError, r"no binding on ranks [1, 2]: install collops[cuda13]"),
        (facts("mpi", levels="all none all"), TransportError, "none, says MPI"),
        (facts()[:2] + facts("mpi")[2:], InputError, "ranks 0-1: auto\n  rank 2: mpi"),
    ],
)
def test_what_they_cannot_have(given, error, text):
    with pytest.raises(error) as caught:
        best(given)
    assert text in str(caught.value)


def test_the_table_is_what_programs_and_pages_show():
    for name in DEVICE_TRANSPORTS.rows:
        kind = DEVICE_TRANSPORTS.load(name)
        assert kind.name == name and callable(kind.connect)
    assert list(DEVICE_TRANSPORTS.rows) == names_of_table(ROOT / "docs" / "transports.md", "transport")


@pytest.mark.parametrize(
    ("version", "answer", "environment", "level", "why"),
    [
        ("MPICH Version: 5.0.2", 1, {}, "all", "MPIX_Query_cuda_support answers yes"),
        ("Open MPI v5.0.11", 1, {}, "p2p", "MPIX_Query_cuda_support answers yes"),
        ("Open MPI v5.0.11", 0, {}, "none", "does not report support"),
        ("Open MPI v5.0.11", 0, {"OMPI_MCA_pml": "ucx", "UCX_TLS": "sm,cuda"}, "p2p", "UCX with CUDA"),
        ("Open MPI v5.0.11", 1, {"COLLOPS_GPU_AWARE_MPI": "all"}, "all", "set by COLLOPS_GPU_AWARE_MPI"),
    ],
)
def test_open_mpi_takes_device_pointers_in_messages_only(monkeypatch, version, answer, environment, level, why):
    """Its nonblocking collective calls do not, and there is no other kind here."""

    def query():
        return answer

    for name in ("COLLOPS_GPU_AWARE_MPI", "OMPI_MCA_pml", "UCX_TLS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(mpi.ctypes, "CDLL", lambda _: SimpleNamespace(MPIX_Query_cuda_support=query))
    found = mpi.gpu_awareness(SimpleNamespace(__file__="libmpi", Get_library_version=lambda: version))
    assert found[0] == level and why in found[1]
