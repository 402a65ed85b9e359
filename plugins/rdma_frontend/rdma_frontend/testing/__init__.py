"""Kits for tests in the guest with two Soft-RoCE devices (tests/rdma)."""
