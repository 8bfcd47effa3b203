"""Step-time models: what one engine step costs (`step` is the contract)."""
