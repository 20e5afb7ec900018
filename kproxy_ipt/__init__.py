"""kproxy-ipt: Kubernetes Services and EndpointSlices become iptables rules."""
