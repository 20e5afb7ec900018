"""What objects mean for one IP family: service ports, their endpoints, and the node."""
