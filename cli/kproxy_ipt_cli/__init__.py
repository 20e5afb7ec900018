"""The command line of kproxy-ipt."""
