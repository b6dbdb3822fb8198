"""Kernels in Triton, for CUDA and, compiled for other targets, ROCm. They read the live counts from device memory."""
