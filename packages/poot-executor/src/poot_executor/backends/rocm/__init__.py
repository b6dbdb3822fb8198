"""AMD GPUs (rocm on the command line): Triton kernels and hipBLAS, replayed from HIP graphs."""
