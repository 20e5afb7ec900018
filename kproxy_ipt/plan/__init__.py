"""From desired and actual rules to ordered, atomic restore inputs."""
