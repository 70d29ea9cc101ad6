"""cubin and problem -> a time that can be trusted. What touches CUDA lives in a worker process of its own."""
