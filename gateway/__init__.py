"""The fronts: KServe v2 over HTTP and gRPC. Places request tensors in shared memory, asks the broker, answers."""
