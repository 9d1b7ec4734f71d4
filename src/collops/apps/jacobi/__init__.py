"""NVIDIA's multi-GPU samples as one job: Jacobi's method by any programming model, timed, checked and compared."""
