"""What the kernel counted, as connections of service ports and endpoints: pure values and arithmetic."""
