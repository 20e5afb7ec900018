"""Which endpoints serve which traffic, and the reason for every one left out."""
