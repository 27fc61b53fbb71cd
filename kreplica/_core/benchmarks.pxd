# Nothing is declared here: benchmarks.pyx has functions for Python only.
