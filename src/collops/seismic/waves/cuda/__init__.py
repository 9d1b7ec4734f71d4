"""Waves on devices: the kernels in CUDA C++, their launches, and the time loops that record them."""
