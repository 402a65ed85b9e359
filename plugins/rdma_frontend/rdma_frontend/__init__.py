"""A frontend on another machine (a DPU) over RDMA: both sides' verbs. Needs pyverbs when used."""
