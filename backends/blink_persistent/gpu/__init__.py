"""The persistent scheduler on a GPU. Importing this package needs no CUDA; using it does."""
