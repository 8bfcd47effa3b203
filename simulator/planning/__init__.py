"""From service levels to the fleet to buy, and what a change would do."""
