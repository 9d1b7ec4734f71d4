"""Kernels that call NCCL compile, without a GPU; what windows need is checked by its version."""

from __future__ import annotations

import importlib.util

import pytest

from collops import _nvrtc as nvrtc
from collops.comm import nccl, nccl_link, symmetric_nccl
from collops.errors import InputError, TransportError
from tests.array.test_cuda_sources import NEEDS_NCCL, text_of

pytestmark = [pytest.mark.serial]


def lack_of_headers() -> str | None:
    """What is missing to compile; the library of NCCL need not be there."""
    if importlib.util.find_spec("cuda") is None:
        return "needs the package cuda-bindings"
    return nvrtc.missing(nccl_link._LIBRARIES, nccl_link._HEADERS)


@pytest.fixture
def headers(monkeypatch):
    if reason := lack_of_headers():
        pytest.skip(f"compiling {reason}")
    monkeypatch.setattr(nccl_link, "missing_for_nccl", lambda: None)


@pytest.mark.usefixtures("headers")
@pytest.mark.parametrize(("path", "options"), NEEDS_NCCL)
def test_source_compiles(path, options):
    code = nccl_link.compiled_with_nccl(text_of(path), "sm_90", options)
    assert code.startswith(b"\x7fELF")
    assert b"\0sweep_nccl\0" in code


@pytest.mark.usefixtures("headers")
def test_barriers_of_nccl_compile():
    source = """
    extern "C" __global__ void meet(ncclDevComm* comm) {
        ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), *comm, ncclTeamTagLsa(), blockIdx.x);
        barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
    }
    """
    for text, name in ((source, b"meet"), (symmetric_nccl._ADDRESSES, b"addresses")):
        assert b"\0" + name + b"\0" in nccl_link.compiled_with_nccl(text, "sm_90")
    with pytest.raises(InputError, match="no_such_thing"):
        nccl_link.compiled_with_nccl("__device__ int f() { return no_such_thing; }", "sm_90")


@pytest.mark.parametrize(
    ("binding", "version", "windows", "functions"),
    [
        (None, "2.28.9", "needs nccl4py", "needs nccl4py"),
        ("cupy", "2.28.9", "needs nccl4py", "needs nccl4py"),
        ("nccl4py", "2.26.2", "needs NCCL 2.27 or newer, not 2.26.2", "needs NCCL 2.28 or newer, not 2.26.2"),
        ("nccl4py", "2.27.7", None, "needs NCCL 2.28 or newer, not 2.27.7"),
        ("nccl4py", "2.28.9", None, None),
        ("nccl4py", "3.0.0", None, None),
    ],
)
def test_versions(monkeypatch, binding, version, windows, functions):
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    monkeypatch.setattr(nccl, "available_binding", lambda: binding)
    monkeypatch.setattr(nccl, "nccl_version", lambda: version)
    for found, wanted in ((nccl.missing_for_windows(), windows), (nccl.missing_for_device_functions(), functions)):
        assert found is None if wanted is None else str(found).startswith(wanted)


def test_windows_need_access_to_other_gpus(monkeypatch):
    monkeypatch.setattr(nccl, "available_binding", lambda: "nccl4py")
    monkeypatch.setattr(nccl, "nccl_version", lambda: "2.28.9")
    for value, wanted in (
        ("0", None),
        ("1", "needs access to the memory of other GPUs, which NCCL_P2P_DISABLE turns off"),
    ):
        monkeypatch.setenv("NCCL_P2P_DISABLE", value)
        assert nccl.missing_for_windows() == wanted


def test_headers_of_another_version(monkeypatch, tmp_path):
    (tmp_path / "nccl.h").write_text("#define NCCL_MAJOR 2\n#define NCCL_MINOR 27\n#define NCCL_PATCH 5\n")
    monkeypatch.setattr(nccl_link, "headers", lambda name: tmp_path)
    monkeypatch.setattr(nccl_link, "missing_for_device_functions", lambda: None)
    monkeypatch.setattr(nccl_link, "missing", lambda libraries, components: None)
    for version, wanted in (("2.28.9", "needs the header files of NCCL 2.28.9, not 2.27.5"), ("2.27.5", None)):
        monkeypatch.setattr(nccl_link, "nccl_version", lambda version=version: version)
        nccl_link.missing_for_nccl.cache_clear()
        try:
            assert nccl_link.missing_for_nccl() == wanted
            if wanted:
                with pytest.raises(TransportError, match="a kernel that calls NCCL needs the header files"):
                    nccl_link.compiled_with_nccl("", "sm_90")
        finally:
            nccl_link.missing_for_nccl.cache_clear()
