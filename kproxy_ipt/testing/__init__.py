"""What users import in their own tests: labs of network namespaces, builders, fakes."""
