"""A Kubernetes control plane and KEDA as plain processes, for tests; a kubelet of our own."""
