"""Where objects come from: the cluster, or files, folders and standard input."""
