"""One sync, one check, one clean-up; the daemon that keeps on, and what it tells about itself."""
