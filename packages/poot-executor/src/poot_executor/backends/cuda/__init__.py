"""NVIDIA GPUs (named ptx on the command line): Triton kernels and cuBLAS, replayed from CUDA graphs."""
