"""From state to chains: pure builders of the rules of one family."""
