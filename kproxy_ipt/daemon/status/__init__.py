"""The read-only status page of the daemon."""
