"""The measuring core: jobs in, runs out, and every figure that is made of runs."""
