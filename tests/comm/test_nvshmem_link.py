"""Kernels that call NVSHMEM compile and link, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

import collops
from collops.comm import missing_for_nvshmem, nvshmem_link
from collops.errors import InputError, TransportError
from tests.array.test_cuda_sources import NEEDS_NVSHMEM, text_of
from tests.comm.one_sided import documented_kernels

PACKAGE = Path(collops.__file__).parent

pytestmark = [pytest.mark.serial]
needs_linker = pytest.mark.skipif(missing_for_nvshmem() is not None, reason=f"linking {missing_for_nvshmem()}")


@needs_linker
@pytest.mark.parametrize(("path", "options"), NEEDS_NVSHMEM)
def test_source_is_linked(path, options):
    """The code has NVSHMEM's state, which the host sets, and the kernels; references are all resolved."""
    code = nvshmem_link.linked_with_nvshmem(text_of(path), "sm_90", options)
    assert code.startswith(b"\x7fELF")
    kernels = [b"sweep_element", b"sweep_warp", b"sweep_block"] if path.parent.name == "jacobi" else [b"fetch_add_64"]
    for name in (b"nvshmemi_device_state_d", *kernels):
        assert b"\0" + name + b"\0" in code


@needs_linker
def test_kernels_of_the_documentation_are_linked():
    code = nvshmem_link.linked_with_nvshmem(documented_kernels(), "sm_90")
    for name in (b"send", b"exchange"):
        assert b"\0" + name + b"\0" in code


@needs_linker
def test_headers_of_cuda_agree_on_integers():
    """They define the same types as NVSHMEM's, which include them from version 3.8 on."""
    source = """
    #include <nvshmem.h>
    #include <cuda_awbarrier.h>
    #include <cuda_pipeline.h>
    extern "C" __global__ void f(uint64_t* x) { nvshmem_uint64_p(x, 1, 0); }
    """
    assert b"\0f\0" in nvshmem_link.linked_with_nvshmem(source, "sm_90")


@needs_linker
def test_errors_have_the_messages_of_the_tools():
    with pytest.raises(InputError, match="no_such_thing"):
        nvshmem_link.linked_with_nvshmem("__device__ int f() { return no_such_thing; }", "sm_90")
    call = 'extern "C" __device__ int elsewhere(); extern "C" __global__ void f(int* x) { *x = elsewhere(); }'
    with pytest.raises(TransportError, match="elsewhere"):
        nvshmem_link.linked_with_nvshmem(call, "sm_90")


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(nvshmem_link.importlib.util, "find_spec", lambda _: None)
    nvshmem_link.missing_for_nvshmem.cache_clear()
    try:
        with pytest.raises(TransportError, match="a kernel that calls NVSHMEM needs nvshmem4py"):
            nvshmem_link.linked_with_nvshmem("", "sm_90")
    finally:
        nvshmem_link.missing_for_nvshmem.cache_clear()
