"""What is simulated: the typed YAML file and everything looked up for it."""
