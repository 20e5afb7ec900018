"""The machine: iptables programs, namespaces, sysctls, netlink. All I/O with the kernel is here."""
